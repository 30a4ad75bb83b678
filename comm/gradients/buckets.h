// SPDX-License-Identifier: Apache-2.0
//
// GradientBuckets: exchanges gradients while backward is still running. It combines a plan of buckets
// (comm/gradients/bucket_plan.h), the memory of the gradients (comm/gradients/gradient_arena.h), and an
// exchange (comm/gradients/gradient_exchange.h). When the last gradient of a bucket is final, the bucket is
// exchanged on the communication stream, always in the same order. Nothing is packed or copied by default.
// Nothing is divided: the loss gradient is already scaled by the global batch.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "comm/exchanges/exchanges.h"
#include "comm/gradients/bucket_plan.h"
#include "comm/gradients/gradient_arena.h"
#include "comm/gradients/gradient_exchange.h"
#include "comm/gradients/micro_batch_sums.h"
#include "comm/gradients/running_sums.h"
#include "comm/gradients/sum_type.h"
#include "core/tensor/parameter.h"
#include "core/timeline.h"

namespace lockstep {

// dense: every rank gets the sums of all gradients and updates all parameters. sharded: each rank gets the
// sums of its share, updates the parameters there, and sends them to all ranks (ZeRO stage 1: Rajbhandari et
// al., "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models", 2020).
enum class ExchangeForm { dense, sharded };
inline constexpr std::string_view kExchangeFormWords[] = {"dense", "sharded"};
constexpr std::span<const std::string_view> words_of(ExchangeForm) { return kExchangeFormWords; }

// Settings as the user gives them.
struct GradientSettings {
  ExchangeForm exchange = ExchangeForm::dense;
  bool overlap = true;
  bool cross_barrier = false;                     // the exchange may overlap the next forward pass
  std::array<double, 3> bucket_mib = {1, 25, 1};  // first, middle, last; each > 0
  std::string codec = std::string(kDenseSum.name);
  std::string codec_for = std::string(kDenseSum.name);  // "PATTERN=CODEC, PATTERN=CODEC", or none
  // Limit of the codecs that "auto" may choose or that may be advised; see codecs_within().
  std::string codec_limit = "powersgd";
  bool compress_within_node = false;
  SumType sum_type = SumType::automatic;
  std::int64_t staleness = 0;  // steps by which gradients reach the optimizer late: 0 or 1
  OwnNumbers own;              // options of the exchanges
};

struct BucketOptions {
  // See BucketCapacities.
  std::size_t first_bytes = BucketCapacities{}.first_bytes;
  std::size_t middle_bytes = BucketCapacities{}.middle_bytes;
  std::size_t last_bytes = BucketCapacities{}.last_bytes;
  bool overlap = true;  // false: launch every bucket in wait(), after backward
  ExchangeChoice exchange = {.kind = &kDenseSum};
  CodecRules codecs = {};
  GradientMomentum momentum = {};  // the optimizer's, for codecs that add it
  std::int64_t micro_batches = 1;  // per step
  // Micro-batches and ranks are summed along one tree (comm/gradients/micro_batch_sums.h); the exchange is
  // then the dense sum.
  bool along_tree = false;
  SumType sum_type = SumType::automatic;
  // The exchange works on a copy of the gradients, made by delay(), while backward writes the next ones.
  bool delayed = false;
  // wait_for() can wait for a single bucket. The exchange must give the same result on every rank.
  bool one_by_one = false;

  BucketCapacities capacities() const {
    return {.first_bytes = first_bytes, .middle_bytes = middle_bytes, .last_bytes = last_bytes};
  }
};

// Looks up exchanges in the table. Throws ConfigError for an unknown exchange or malformed rules.
BucketOptions bucket_options(const GradientSettings& settings,
                             const std::vector<const ExchangeKind*>& table = exchange_kinds());

// Events that time the exchange of one bucket on a GPU.
struct BucketMoments {
  explicit BucketMoments(Device device) : produced(device), begun(device), ended(device) {}
  TimedEvent produced;  // gradients are final, on the compute stream
  TimedEvent begun;     // the sum may start: gradients are final and the previous bucket is summed
  TimedEvent ended;
};

// Timeline span of a bucket's exchange, in host time (now_ns()).
Span bucket_span(std::size_t bucket, std::int64_t begin_ns, std::int64_t end_ns);

class GradientBuckets final : public GradientListener {
 public:
  // Collective: allocates gradient memory, points every parameter's gradient into it, and compares the plan
  // (names, layouts, buckets, exchange) across ranks. Throws ConfigError on all ranks that names the ranks
  // that differ from rank 0. parameters must outlive this. timeline records the exchanges on a CPU; for a GPU
  // pass moments to begin().
  GradientBuckets(std::span<Parameter> parameters, Communicator& communicator, const BucketOptions& options,
                  Timeline* timeline = nullptr);
  // Waits for running exchanges, because they use the arena. If wait() was not called for a pass, its
  // exchanges may have no peers: the destructor then abandons the job so that they end.
  ~GradientBuckets() override;

  const BucketPlan& plan() const { return plan_; }
  std::span<const Bucket> buckets() const { return plan_.buckets(); }
  // Gradients as the exchange and the optimizer use them: the whole arena, padding included, one range per
  // element type.
  std::span<const FlatRange> gradients() const { return exchanged().ranges(); }
  // Gradients as backward writes them: the same memory unless delayed().
  std::span<const FlatRange> own_gradients() const { return arena_->ranges(); }
  std::int64_t micro_batches() const { return options_.micro_batches; }  // BucketOptions::micro_batches
  bool delayed() const { return options_.delayed; }
  bool one_by_one() const { return options_.one_by_one; }
  // gradients(), one range per bucket.
  std::span<const FlatRange> bucket_gradients() const { return bucket_gradients_; }
  // True if each rank gets the sums of its share only (kShardedExchange).
  bool sharded() const { return options_.exchange.kind == &kShardedExchange; }
  // The gradients that this rank's optimizer applies: the ranges of gradients(), of bucket_gradients() if
  // one_by_one(), or if sharded() this rank's share of each bucket and the elements that belong to all ranks.
  std::span<const FlatRange> applied_gradients() const;
  // Bytes of gradients, of their sums and of the exchange.
  std::size_t memory_bytes() const {
    return arena_->bytes() + (delayed_ ? delayed_->bytes() : 0) + (running_ ? running_->memory_bytes() : 0) +
           exchange_->memory_bytes();
  }
  // Part of memory_bytes(): memory of codecs.
  std::size_t codec_bytes() const { return exchanges_sums() ? 0 : exchange_->memory_bytes(); }
  // Part of memory_bytes(): fp32 sums of 16-bit gradients and sums along the tree.
  std::size_t sum_bytes() const {
    return (running_ ? running_->memory_bytes() : 0) + (exchanges_sums() ? exchange_->memory_bytes() : 0);
  }
  // The type in which weight gradients are sent without a codec.
  DType sent_type() const;
  GradientExchange& exchange() { return *exchange_; }

  // How backward writes gradients in micro-batch `micro` of a step, from 0: it overwrites them or adds to
  // them.
  Write write(std::int64_t micro) const {
    return micro == 0 || sums_ != nullptr || running_ ? Write::overwrite : Write::accumulate;
  }
  // Call after the backward pass of each micro-batch, except the last one of a step if its buckets are
  // exchanged during that pass.
  void behind_micro_batch(Stream& compute, std::int64_t micro);

  // Starts the backward pass that finishes gradients, on the stream `compute`. moments: on a GPU empty, or
  // one entry per bucket to record; they outlive the pass and its recorded work. unit: see
  // GradientExchange::begin.
  void begin(Stream& compute, std::span<BucketMoments> moments = {}, const GradientUnit& unit = {});
  // The network calls this once per parameter and pass, in any order.
  void gradient_ready(std::size_t index) override;
  // Copies backward's gradients to the exchanged memory, in the order of `compute`. Only with
  // BucketOptions::delayed.
  void delay(Stream& compute);
  // Sets the order in which buckets are exchanged from the next pass on: all bucket indices, the same on
  // every rank. The initial order is that of the plan. No pass may be under way.
  void set_order(std::span<const std::size_t> order);
  std::span<const std::size_t> order() const { return order_; }
  // Makes later work on the stream wait for one launched bucket. Only with BucketOptions::one_by_one.
  void wait_for(Stream& compute, std::size_t bucket);
  // Makes later work on the stream wait for every bucket. Throws Error naming a parameter whose gradient is
  // missing.
  void wait(Stream& compute);
  // Only if sharded(). Collective. values: fp32 memory of the device in the flat order. Sends the elements of
  // one range of applied_gradients(), after the work on compute so far, to all ranks, and receives theirs.
  void send_values(Stream& compute, float* values, std::size_t range);
  // Makes later work on the stream wait for all send_values() so far.
  void wait_for_values(Stream& compute);
  // If sharded(), a collective function: sends this rank's elements of all ranges of applied_gradients() to
  // all ranks, receives theirs, and waits for them. values: fp32 host memory in the flat order. Else null.
  std::function<void(float* values)> completion();
  // Call after wait() and the check of this rank's gradients: *finite, in device memory, is 1, or 0 if a
  // value is not finite. Makes *finite equal on every rank and passes it to the exchange (settle()).
  void agree_finite(Stream& compute, std::int32_t* finite);
  // Sets *value, in device memory, to its maximum over all ranks, after the work on compute so far.
  void agree_largest(Stream& compute, std::int32_t* value);

 private:
  void agree(Stream& compute, std::int32_t* value, ReduceOp op);
  void launch(std::size_t bucket, std::int64_t enqueued_ns);
  void compare_plans();
  void make_exchange();
  void list_shares();
  void gather_range(Communicator& communicator, float* values, std::size_t range);
  // True if the exchange's memory holds sums rather than codec state.
  bool exchanges_sums() const {
    return sums_ != nullptr || sharded() ||
           (options_.exchange.kind == &kDenseSum && options_.codecs.rules.empty());
  }
  const GradientArena& exchanged() const { return delayed_ ? *delayed_ : *arena_; }

  struct Progress {
    std::size_t pending = 0;      // gradients not yet final
    std::int64_t final_ns = 0;    // time of the last final gradient
    std::int64_t started_ns = 0;  // used only on the communication stream: passes may overlap
  };

  std::span<Parameter> parameters_;
  Communicator& communicator_;
  BucketOptions options_;
  Timeline* timeline_;  // null on a GPU
  BucketPlan plan_;
  std::vector<bool> ready_;  // this pass, by parameter
  std::vector<Progress> progress_;
  std::vector<std::size_t> order_;
  std::size_t next_ = 0;  // first entry of order_ not launched
  std::unique_ptr<GradientArena> arena_;
  std::unique_ptr<GradientArena> delayed_;  // null unless options_.delayed
  std::unique_ptr<GradientExchange> exchange_;
  MicroBatchSums* sums_ = nullptr;  // exchange_ if along_tree, else null
  std::optional<RunningSums> running_;
  Stream* compute_ = nullptr;         // of the current pass; null between passes
  std::span<BucketMoments> moments_;  // of the current pass, by bucket
  Event produced_;
  Event reduced_;
  std::vector<Event> arrived_;  // by bucket, if one_by_one
  std::vector<FlatRange> bucket_gradients_;
  std::vector<FlatRange> shares_;             // of applied_gradients(), if sharded(): shares, then the rest
  std::vector<std::size_t> share_of_bucket_;  // the bucket of each share
};

}  // namespace lockstep
