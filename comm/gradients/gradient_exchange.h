// SPDX-License-Identifier: Apache-2.0
//
// GradientExchange: combines the gradients of one bucket over all ranks into the optimizer's input: a dense
// sum, a codec or a sharded sum. GradientBuckets calls it for the buckets in one order on every rank, as
// their gradients become final.
//
// An exchange works in place on the communicator's stream: on the CPU the communication thread, on a GPU a
// CUDA stream. It may use every collective of the communicator and own memory. A step neither allocates nor
// blocks. On a GPU it is recorded once and replayed, so values that change from step to step are in device
// memory.
//
// A non-finite gradient leaves a non-finite value in the result on at least one rank, because the decision to
// skip a step is based on the results.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "comm/communicator.h"
#include "comm/gradients/bucket_plan.h"
#include "comm/gradients/gradient_arena.h"
#include "comm/gradients/sum_type.h"
#include "core/number_option.h"
#include "core/state.h"
#include "core/tensor/tensor.h"

namespace lockstep {

// How to restore an exchange's state on a different number of ranks.
enum class OnOtherRanks {
  sum,   // only the sum over ranks matters: it is added up and divided
  same,  // equal on every rank, or another rank's value is valid too
};

// State of an exchange to save and restore: fp32 memory of the communicator's device. The name begins with
// the parameter's name if it belongs to one.
struct ExchangeState {
  std::string name;
  // sharded: this rank's shares (BucketPlan), in the order of the buckets.
  StateScope scope = StateScope::per_rank;
  Tensor memory;
  bool unsent = false;  // a part of gradients that is added to a later step
  OnOtherRanks on_other_ranks = OnOtherRanks::sum;
  bool counts_skipped = false;  // StepDigits (kernels/codec.h) that also count skipped steps

  StateTensor tensor() const {
    return {.name = name,
            .layout = Layout(memory.shape, DType::f32),
            .value = static_cast<float*>(memory.data),
            .elements = memory.shape.elements()};
  }
};

// The factors of a step's gradients, in device memory. The addresses stay the same; the values are the
// step's.
struct GradientUnit {
  const float* loss_scale = nullptr;  // gradients are multiplied by this; null: 1
  // The step's learning rate, above 0: a value that is sent a step later is used with that step's rate. Null:
  // the rate is constant.
  const float* learning_rate = nullptr;
};

class AutoExchange;

class GradientExchange {
 public:
  virtual ~GradientExchange() = default;

  // Call before the first bucket of a step.
  virtual void begin(const GradientUnit& /*unit*/) {}
  // True if GradientUnit::learning_rate is used. The same on every rank.
  virtual bool uses_learning_rate() const { return false; }

  // Enqueues the in-place exchange of one bucket on the communicator's stream. In the order of that stream
  // this rank's gradients are final before it, and the optimizer reads after it.
  virtual void enqueue(std::size_t bucket) = 0;

  // True if every rank gets the same bits in every bucket. If not, each rank checks only its own part, and
  // ranks must agree on whether gradients are finite.
  virtual bool same_on_every_rank() const = 0;

  // True if this parameter's gradient already contains momentum when the optimizer reads it.
  virtual bool adds_momentum(std::size_t /*parameter*/) const { return false; }

  // The number of first steps whose exchange differs from later ones. The same on every rank.
  virtual std::int64_t warmup_steps() const { return 0; }

  // Call after the last bucket of a step, on the compute stream: *finite, in device memory, is 0 if all ranks
  // skip the step. State must then be what it was before the step.
  virtual void settle(Stream& /*compute*/, const std::int32_t* /*finite*/) {}

  // The current state; its addresses may change with the next step. No step is under way.
  virtual std::vector<ExchangeState> state() { return {}; }
  // The communicators it uses beside the one it was made with, in the same order on every rank that has them.
  virtual std::vector<Communicator*> communicators() { return {}; }
  // Bytes beside the gradients.
  virtual std::size_t memory_bytes() const { return 0; }

  // This as an AutoExchange if the caller can choose codecs (comm/codecs/auto_exchange.h); else null.
  virtual AutoExchange* to_choose() { return nullptr; }
};

struct ExchangeContext;
struct CodecKind;

// An entry of the table (comm/exchanges/exchanges.h).
struct ExchangeKind {
  std::string_view name;
  std::string_view meaning;               // one line
  std::span<const NumberOption> options;  // keys comm.NAME.OPTION
  // Collective.
  std::unique_ptr<GradientExchange> (*make)(const ExchangeContext& context);
  // Set for codecs (comm/codecs/codec.h), whose `make` is make_codec_exchange(); else null.
  const CodecKind* codec = nullptr;
};

struct ExchangeSetting {
  std::string_view option;
  double value = 0;
};

// An exchange and its options; options without a setting keep their initial values.
struct ExchangeChoice {
  const ExchangeKind* kind = nullptr;
  std::vector<ExchangeSetting> settings = {};

  // Throws ConfigError for a setting that the kind does not have or that is out of its range.
  void check() const;
  // Value of one of the kind's options.
  double option(std::string_view name) const;
  // Value of a whole-number option.
  std::int64_t whole_option(std::string_view name) const { return static_cast<std::int64_t>(option(name)); }
  // Text such as "topk density=0.01"; equal for two choices exactly if the choices are.
  std::string describe() const;
};

// A codec, or none, for parameters whose names match the pattern; "*" matches any characters.
struct CodecRule {
  std::string pattern;
  ExchangeChoice choice;
};

// How codecs are applied.
struct CodecRules {
  std::vector<CodecRule> rules = {};  // the first match wins
  bool compress_within_node = false;  // treats each rank as a separate node
  // Codecs that may be chosen or advised, least lossy first (comm.codec_limit).
  std::vector<ExchangeChoice> candidates = {};
  // Text of `rules` and compress_within_node, to compare ranks.
  std::string describe() const;
};

// The momentum of SGD, for exchanges that add it before they compress.
struct GradientMomentum {
  double momentum = 0;
  bool nesterov = false;
};

// The inputs of an exchange; everything referenced outlives it. The choice has been checked.
struct ExchangeContext {
  ExchangeChoice choice;
  std::span<const Parameter> parameters;
  const BucketPlan& plan;
  const GradientArena& arena;
  Communicator& communicator;
  const CodecRules& codecs;
  GradientMomentum momentum = {};
  SumType sum_type = SumType::automatic;
  bool delayed = false;  // gradients are a step late, and GradientUnit::learning_rate is null
};

// The type in which ranks send and sum gradients of this type without a codec.
inline DType dense_type(SumType given, DType gradients, const Communicator& communicator) {
  const int terms = communicator.rounds_partial_sums() ? communicator.size() : 1;
  return sums_in_f32(given, gradients, terms) ? DType::f32 : gradients;
}

}  // namespace lockstep
