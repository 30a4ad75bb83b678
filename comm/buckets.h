// SPDX-License-Identifier: Apache-2.0
//
// GradientBuckets: exchanges gradients while backward is still running. It puts three things together: a plan
// of buckets (comm/bucket_plan.h), the memory of the gradients (comm/gradient_arena.h), and an exchange
// (comm/gradient_exchange.h). When the last gradient of a bucket is final the bucket leaves on the
// communication stream, never out of order. Nothing is packed or copied; nothing here divides: the loss
// gradient is already scaled by the global batch.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "comm/bucket_plan.h"
#include "comm/communicator.h"
#include "comm/exchanges/exchanges.h"
#include "comm/gradient_arena.h"
#include "comm/gradient_exchange.h"
#include "comm/micro_batch_sums.h"
#include "comm/running_sums.h"
#include "comm/sum_type.h"
#include "core/parameter.h"
#include "core/timeline.h"

namespace lockstep {

// As a person gives them.
struct GradientSettings {
  bool overlap = true;
  bool cross_barrier = false;                     // the exchange goes on beside the next step's forward pass
  std::array<double, 3> bucket_mib = {1, 25, 1};  // first, middle, last; each > 0
  std::string codec = std::string(kDenseSum.name);
  std::string codec_for = std::string(kDenseSum.name);  // "PATTERN=CODEC, PATTERN=CODEC", or none
  // Of what may be chosen ("auto") or advised; see codecs_within().
  std::string codec_limit = "powersgd";
  bool compress_within_node = false;
  SumType sum_type = SumType::automatic;
  std::int64_t staleness = 0;  // steps by which gradients reach the optimizer late: 0 or 1
  OwnNumbers own;              // of exchanges
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
  std::int64_t micro_batches = 1;  // of a step
  // Micro-batches and ranks are summed along one tree (comm/micro_batch_sums.h); the exchange is then the
  // dense sum.
  bool along_tree = false;
  SumType sum_type = SumType::automatic;
  // The exchange works on a copy of the gradients, which delay() takes, while backward writes the next ones.
  bool delayed = false;
  // wait_for() says when a single bucket is there. Every rank must find the same in it.
  bool one_by_one = false;

  BucketCapacities capacities() const {
    return {.first_bytes = first_bytes, .middle_bytes = middle_bytes, .last_bytes = last_bytes};
  }
};

// Of the exchanges in the table; throws ConfigError for one that it has not, and for rules that it cannot
// read.
BucketOptions bucket_options(const GradientSettings& settings,
                             const std::vector<const ExchangeKind*>& table = exchange_kinds());

// When a GPU began and ended the sum of a bucket.
struct BucketMoments {
  explicit BucketMoments(Device device) : produced(device), begun(device), ended(device) {}
  TimedEvent produced;  // its gradients are final, on the stream that computes
  TimedEvent begun;     // the sum may start: its gradients are final, and the bucket before it is summed
  TimedEvent ended;
};

// Of a sum, for a timeline. By the host's clock.
Span bucket_span(std::size_t bucket, std::int64_t begin_ns, std::int64_t end_ns);

class GradientBuckets final : public GradientListener {
 public:
  // Collective: allocates gradient memory, points every parameter's gradient into it, and compares the plan
  // (names, layouts, buckets, exchange) over ranks; throws ConfigError on all ranks, naming those that differ
  // from rank 0. parameters must outlive this. A timeline gets the exchanges of a CPU; those of a GPU are
  // told by begin().
  GradientBuckets(std::span<Parameter> parameters, Communicator& communicator, const BucketOptions& options,
                  Timeline* timeline = nullptr);
  // Waits for exchanges under way, which use the arena. Those of a pass that wait() was not called for may be
  // without peers: the job is abandoned, so that they end.
  ~GradientBuckets() override;

  const BucketPlan& plan() const { return plan_; }
  std::span<const Bucket> buckets() const { return plan_.buckets(); }
  // Where gradients are exchanged and the optimizer finds them: the whole arena, padding included, one range
  // for each element type there is.
  std::span<const FlatRange> gradients() const { return exchanged().ranges(); }
  // Where backward leaves them: the same unless they are delayed.
  std::span<const FlatRange> own_gradients() const { return arena_->ranges(); }
  bool delayed() const { return options_.delayed; }
  bool one_by_one() const { return options_.one_by_one; }
  // gradients(), bucket by bucket.
  std::span<const FlatRange> bucket_gradients() const { return bucket_gradients_; }
  // Of gradients, and of what the exchange keeps.
  std::size_t memory_bytes() const {
    return arena_->bytes() + (delayed_ ? delayed_->bytes() : 0) + (running_ ? running_->memory_bytes() : 0) +
           exchange_->memory_bytes();
  }
  // Part of memory_bytes(): what a codec keeps.
  std::size_t codec_bytes() const { return exchanges_sums() ? 0 : exchange_->memory_bytes(); }
  // Part of memory_bytes(): sums in fp32, of gradients of 16 bits and along the tree.
  std::size_t sum_bytes() const {
    return (running_ ? running_->memory_bytes() : 0) + (exchanges_sums() ? exchange_->memory_bytes() : 0);
  }
  // The type in which weights' gradients travel where no codec takes them.
  DType sent_type() const;
  GradientExchange& exchange() { return *exchange_; }

  // What backward does to the gradients in a micro-batch of a step, counted from 0.
  Write write(std::int64_t micro) const {
    return micro == 0 || sums_ != nullptr || running_ ? Write::overwrite : Write::accumulate;
  }
  // After the backward pass of each micro-batch; not of a step's last, if its buckets leave during that pass.
  void behind_micro_batch(Stream& compute, std::int64_t micro);

  // Starts the backward pass that finishes gradients; compute is the stream they are computed on. A GPU takes
  // the moments of each bucket, where they are given: one for each of buckets(), which outlive the pass and
  // whatever is recorded of it. unit: see GradientExchange::begin.
  void begin(Stream& compute, std::span<BucketMoments> moments = {}, const GradientUnit& unit = {});
  // From the network, once for each parameter and pass, in any order.
  void gradient_ready(std::size_t index) override;
  // Copies what backward has left to where it is exchanged, behind the use of what was there. With
  // BucketOptions::delayed alone.
  void delay(Stream& compute);
  // Numbers of buckets, in the order in which they leave from the next pass on: all of them, the same on
  // every rank. At first that of the plan. No pass is under way.
  void set_order(std::span<const std::size_t> order);
  std::span<const std::size_t> order() const { return order_; }
  // Makes later work on the stream wait for one bucket that has left. With BucketOptions::one_by_one alone.
  void wait_for(Stream& compute, std::size_t bucket);
  // Makes later work on the stream wait for every bucket. Throws if a gradient is missing, naming it.
  void wait(Stream& compute);
  // Behind wait() and what judged the gradients of this rank into *finite, memory of the device: 1, or 0
  // where something is not finite. Leaves 1 on every rank or 0 on every rank, and tells the exchange.
  void agree_finite(Stream& compute, std::int32_t* finite);
  // Behind the work on compute so far: *value, memory of the device, becomes the largest of all ranks'.
  void agree_largest(Stream& compute, std::int32_t* value);

 private:
  void agree(Stream& compute, std::int32_t* value, ReduceOp op);
  void launch(std::size_t bucket, std::int64_t enqueued_ns);
  void compare_plans();
  void make_exchange();
  // Whether the exchange's memory is that of sums, and not a codec's.
  bool exchanges_sums() const {
    return sums_ != nullptr || (options_.exchange.kind == &kDenseSum && options_.codecs.rules.empty());
  }
  const GradientArena& exchanged() const { return delayed_ ? *delayed_ : *arena_; }

  struct Progress {
    std::size_t pending = 0;    // gradients not yet final
    std::int64_t final_ns = 0;  // when the last of them was
    std::int64_t started_ns =
        0;  // the communication stream's alone: a pass may begin before the last one's ended
  };

  std::span<Parameter> parameters_;
  Communicator& communicator_;
  BucketOptions options_;
  Timeline* timeline_;  // a CPU's
  BucketPlan plan_;
  std::vector<bool> ready_;  // this pass, by parameter
  std::vector<Progress> progress_;
  std::vector<std::size_t> order_;
  std::size_t next_ = 0;  // first of them that was not launched
  std::unique_ptr<GradientArena> arena_;
  std::unique_ptr<GradientArena> delayed_;  // the copy, where there is one
  std::unique_ptr<GradientExchange> exchange_;
  MicroBatchSums* sums_ = nullptr;  // the exchange, where it is this
  std::optional<RunningSums> running_;
  Stream* compute_ = nullptr;         // of the pass under way
  std::span<BucketMoments> moments_;  // of that, by bucket
  Event produced_;
  Event reduced_;
  std::vector<Event> arrived_;  // by bucket, where they are waited for one by one
  std::vector<FlatRange> bucket_gradients_;
};

}  // namespace lockstep
