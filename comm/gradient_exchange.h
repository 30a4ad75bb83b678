// SPDX-License-Identifier: Apache-2.0
//
// GradientExchange: turns the gradients of one bucket, of all ranks, into what the optimizer needs. The dense
// sum is one, a codec or a sharded sum are others. GradientBuckets says when: it calls for the buckets in
// their order, on every rank alike, as their gradients become final.
//
// An exchange works on the gradients where they lie, on the communicator's stream: on the CPU that is the
// communication thread, which it may give tasks, on a GPU a stream of kernels. It may use every collective of
// the communicator, and hold memory of its own. A step neither allocates nor blocks, and on a GPU it is
// recorded once and replayed: what changes from step to step lies in memory of the device.
//
// What is not finite in a gradient is never swallowed. It leaves something that is not finite in the result
// of some rank, from which the skip of the step is judged.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "comm/bucket_plan.h"
#include "comm/communicator.h"
#include "comm/gradient_arena.h"
#include "comm/sum_type.h"
#include "core/number_option.h"
#include "core/state.h"
#include "core/tensor.h"

namespace lockstep {

// What becomes of what an exchange remembers where training goes on with another number of ranks.
enum class OnOtherRanks {
  sum,   // over all ranks that is what counts: it is added up and dealt out
  same,  // every rank has the same, or can go on with another's
};

// A piece of what an exchange remembers from step to step, to be saved and restored: memory of the
// communicator's device, in fp32. The name begins with the parameter's, if it is one's.
struct ExchangeState {
  std::string name;
  // sharded: of this rank's shares (BucketPlan), in the order of the buckets.
  StateScope scope = StateScope::per_rank;
  Tensor memory;
  bool unsent = false;  // a part of gradients that is to be added to the next ones
  OnOtherRanks on_other_ranks = OnOtherRanks::sum;
};

// What an exchange finds gradients multiplied by, and what becomes of them. Memory of the device, which stays
// where it is; what lies there belongs to the step.
struct GradientUnit {
  const float* loss_scale = nullptr;  // what they come multiplied by; null: 1
  // What the optimizer is about to multiply them by, above 0: what is sent a step later takes part with that
  // step's. Null: all steps alike.
  const float* learning_rate = nullptr;
};

class AutoExchange;

class GradientExchange {
 public:
  virtual ~GradientExchange() = default;

  // Before the first bucket of a step.
  virtual void begin(const GradientUnit& /*unit*/) {}
  // Whether GradientUnit::learning_rate makes a difference. The same on every rank.
  virtual bool uses_learning_rate() const { return false; }

  // Enqueues the exchange of one bucket, in place, on the communicator's stream. This rank's gradients are
  // final in the order of that stream, and the optimizer reads behind what is enqueued here.
  virtual void enqueue(std::size_t bucket) = 0;

  // Whether every rank finds the same bits in all of every bucket. If not, ranks ask each other whether
  // gradients are finite: each judges only what it has.
  virtual bool same_on_every_rank() const = 0;

  // Whether what the optimizer finds of this parameter's gradient has momentum already.
  virtual bool adds_momentum(std::size_t /*parameter*/) const { return false; }

  // How many of the first steps exchange otherwise than all that follow. The same on every rank.
  virtual std::int64_t warmup_steps() const { return 0; }

  // Behind the last bucket of a step, on the stream that computes: *finite, in memory of the device, is 0
  // where all ranks skip the step. State must then be what it was before.
  virtual void settle(Stream& /*compute*/, const std::int32_t* /*finite*/) {}

  // Where it is now: after the next step it may lie elsewhere. No step is under way.
  virtual std::vector<ExchangeState> state() { return {}; }
  // Those it uses beside the one it was made with, in the same order on every rank that has them.
  virtual std::vector<Communicator*> communicators() { return {}; }
  // Held beside the gradients.
  virtual std::size_t memory_bytes() const { return 0; }

  // Where somebody is to choose how buckets travel (comm/codecs/auto_exchange.h); else null.
  virtual AutoExchange* to_choose() { return nullptr; }
};

struct ExchangeContext;
struct CodecKind;

// An entry of the table (comm/exchanges/exchanges.h).
struct ExchangeKind {
  std::string_view name;
  std::string_view meaning;               // in one line
  std::span<const NumberOption> options;  // keys comm.NAME.OPTION
  // Collective.
  std::unique_ptr<GradientExchange> (*make)(const ExchangeContext& context);
  // Of a codec (comm/codecs/codec.h), whose exchange make_codec_exchange() makes; else null.
  const CodecKind* codec = nullptr;
};

struct ExchangeSetting {
  std::string_view option;
  double value = 0;
};

// Which exchange, and what it is told; options that are not named keep their initial values.
struct ExchangeChoice {
  const ExchangeKind* kind = nullptr;
  std::vector<ExchangeSetting> settings = {};

  // Throws ConfigError for a setting that the kind does not have or that is out of its range.
  void check() const;
  // Of one of the kind's options.
  double option(std::string_view name) const;
  // Of one that is a whole number.
  std::int64_t whole_option(std::string_view name) const { return static_cast<std::int64_t>(option(name)); }
  // "topk density=0.01": equal on two ranks exactly if the choices are.
  std::string describe() const;
};

// Another codec, or none, for the parameters whose names match: "*" stands for any characters.
struct CodecRule {
  std::string pattern;
  ExchangeChoice choice;
};

// How codecs are put to use.
struct CodecRules {
  std::vector<CodecRule> rules = {};  // the first that matches counts
  bool compress_within_node = false;  // as if each rank were a node of its own
  // Codecs that may be chosen or advised, the one that loses least first (comm.codec_limit).
  std::vector<ExchangeChoice> candidates = {};
  // Equal on two ranks exactly if the rules are.
  std::string describe() const;
};

// The momentum of SGD, for exchanges that add it before they compress.
struct GradientMomentum {
  double momentum = 0;
  bool nesterov = false;
};

// What an exchange is made of; all of it outlives the exchange. The choice has been checked.
struct ExchangeContext {
  ExchangeChoice choice;
  std::span<const Parameter> parameters;
  const BucketPlan& plan;
  const GradientArena& arena;
  Communicator& communicator;
  const CodecRules& codecs;
  GradientMomentum momentum = {};
  SumType sum_type = SumType::automatic;
};

// The type in which ranks send and add up gradients of this type that no codec takes.
inline DType dense_type(SumType given, DType gradients, const Communicator& communicator) {
  const int terms = communicator.rounds_partial_sums() ? communicator.size() : 1;
  return sums_in_f32(given, gradients, terms) ? DType::f32 : gradients;
}

}  // namespace lockstep
