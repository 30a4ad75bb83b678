// SPDX-License-Identifier: Apache-2.0
//
// Codec: sends compressed gradients between nodes. Gradients are summed densely inside a node; each rank that
// drives then has a share of a bucket's sum, its codec exchanges the share with the same local rank of the
// other nodes, and the result is distributed inside the node (comm/codecs/codec_exchange.h). So a codec does
// not depend on nodes, buckets or the memory of gradients: it replaces flat values with their sum over the
// ranks of one communicator.
//
// A codec is made once, with all its memory. What it enqueues neither allocates nor blocks, and is recorded
// and replayed on a GPU, so values that change from step to step are in device memory.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "comm/gradients/gradient_exchange.h"
#include "core/number_option.h"

namespace lockstep {

// Shares begin at multiples of this, except for codecs of whole parameters.
inline constexpr std::int64_t kCodecBlock = 256;

// A contiguous part of a parameter's memory (Layout) within a share.
struct CodecPiece {
  std::size_t parameter = 0;
  ElementRange range;      // of the parameter's physical elements
  std::int64_t place = 0;  // of its first element in the share
  bool whole(const Parameter& of) const {
    return range.begin == 0 && range.end == of.layout.physical_elements();
  }
};

// The part of one bucket that this rank drives. Between the pieces and after the last one there are zeros,
// which stay zero.
struct CodecShare {
  void* values = nullptr;  // device memory, aligned; buckets may share it
  std::int64_t count = 0;  // a multiple of kCodecBlock times the ranks of `across`, unless parameters are
                           // whole; 0: nothing
  std::vector<CodecPiece> pieces;
};

// Everything referenced outlives the codec and is the same on all ranks of `across`, except addresses.
struct CodecContext {
  const ExchangeChoice& choice;
  std::span<const Parameter> parameters;
  std::span<const CodecShare> shares;  // by bucket
  DType type = DType::f32;             // of values: f32, or CodecKind::alone
  Communicator& across;                // 2 ranks or more
  GradientMomentum momentum = {};      // the optimizer's
  bool delayed = false;                // see ExchangeContext

  std::int64_t largest_share() const {
    std::int64_t most = 0;
    for (const CodecShare& share : shares) most = std::max(most, share.count);
    return most;
  }
  // The suffix of a residual in units of parameter updates. If gradients are delayed, it is in units of
  // gradients and has another name: a training must not resume with a residual in other units.
  std::string_view update_residual() const { return delayed ? "delayed_residual" : "update_residual"; }
};

class Codec {
 public:
  virtual ~Codec() = default;

  // Enqueues on across.stream(): the values of this bucket's share become their decoded sum over the ranks of
  // across, with the same bits on each rank. Called for one bucket after another, once per step. A non-finite
  // value on any rank leaves a non-finite value in the sum. Values are multiplied by the unit's loss scale;
  // kept state is not.
  virtual void exchange(std::size_t bucket, const GradientUnit& unit) = 0;
  // See GradientExchange.
  virtual void settle(Stream& /*compute*/, const std::int32_t* /*finite*/) {}
  virtual std::vector<ExchangeState> state() { return {}; }
  virtual std::size_t memory_bytes() const { return 0; }
};

// Small and one-dimensional tensors (biases, batch norm) save few bytes and tolerate little error.
inline constexpr std::int64_t kLeastCompressed = 1000;
bool takes_large_tensors(const ExchangeChoice& choice, const Parameter& parameter);

// An option of codecs with error feedback.
inline constexpr NumberOption kErrorFeedback = {
    .name = "error_feedback",
    .initial = 1,
    .least = 0,
    .most = 1,
    .meaning = "1 adds the part that was not sent to the next step's gradients; 0 drops it, for comparison",
    .whole = true};

// The properties of a codec.
struct CodecKind {
  // The parameters it compresses; all others are summed densely.
  bool (*takes)(const ExchangeChoice& choice, const Parameter& parameter) = takes_large_tensors;
  // The codec adds the optimizer's momentum, instead of the optimizer. For SGD alone.
  bool adds_momentum = false;
  // The option that enables this if the optimizer has momentum. Empty: there is none.
  std::string_view momentum_option = {};
  // The option with the number of first steps that differ from later ones, for example in message sizes; a
  // GPU does not record them. Empty: there are none.
  std::string_view warmup_option = {};
  // Its state is in units of parameter updates (gradients times GradientUnit::learning_rate).
  bool uses_learning_rate = false;
  // Shares are whole parameters, instead of equal numbers of elements.
  bool whole_parameters = false;
  // The type of the values if every node has one rank, so that nothing was summed; else fp32.
  DType alone = DType::f32;
  // fp32 gradients stay fp32 nevertheless: the codec scales them before it rounds.
  bool scales = false;
  // Collective over across.
  std::unique_ptr<Codec> (*make)(const CodecContext& context) = nullptr;
  // For estimates. sent_share: what a parameter sends between this many nodes, as a share of its dense sum in
  // fp32; null: unknown. round_trips: all-reduces of a bucket that depend on each other. kept: fp32 numbers
  // of state per parameter element.
  double (*sent_share)(const ExchangeChoice& choice, const Parameter& parameter, int nodes) = nullptr;
  double round_trips = 1;
  double (*kept)(const ExchangeChoice& choice, int nodes) = nullptr;
};

// The value of CodecKind::warmup_option; 0 without a codec.
std::int64_t warmup_steps(const ExchangeChoice& choice);
// The same choice without these steps.
ExchangeChoice without_warmup(const ExchangeChoice& choice);
// True if the codec adds this momentum.
bool adds_momentum(const ExchangeChoice& choice, const GradientMomentum& momentum);
// The same choice with momentum_option off, if it has one.
ExchangeChoice without_momentum(const ExchangeChoice& choice);

// ExchangeKind::make of every codec.
std::unique_ptr<GradientExchange> make_codec_exchange(const ExchangeContext& context);

}  // namespace lockstep
