// SPDX-License-Identifier: Apache-2.0
//
// Codec: what travels between nodes in place of fp32. Gradients are summed densely inside a node; each rank
// that drives then has a share of a bucket's sum, its codec exchanges the share with the same local rank of
// the other nodes, and what comes out is handed out inside the node (comm/codecs/codec_exchange.h). So a
// codec knows nothing of nodes, buckets or where gradients lie: it turns flat fp32 values into their sum over
// the ranks of one communicator.
//
// A codec is made once, with all its memory; what it enqueues neither allocates nor blocks, and is recorded
// and replayed on a GPU. What differs from step to step it keeps in memory of the device.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "comm/gradient_exchange.h"
#include "core/number_option.h"

namespace lockstep {

// Shares of codecs that take single elements begin at multiples of this.
inline constexpr std::int64_t kCodecBlock = 256;

// A stretch of a parameter, in the order of its memory (Layout), within a share.
struct CodecPiece {
  std::size_t parameter = 0;
  ElementRange range;      // of the parameter's physical elements
  std::int64_t place = 0;  // of the first one in the share
  bool whole(const Parameter& of) const {
    return range.begin == 0 && range.end == of.layout.physical_elements();
  }
};

// What this rank drives of one bucket. Between the pieces and behind the last one there are zeros, which stay
// zero.
struct CodecShare {
  void* values = nullptr;  // in memory of the device, aligned; other buckets' may lie in the same
  std::int64_t count = 0;  // a multiple of kCodecBlock times the ranks of `across`, unless parameters are
                           // whole; 0: nothing
  std::vector<CodecPiece> pieces;
};

// All of it outlives the codec, and is the same on all ranks of `across` but for addresses.
struct CodecContext {
  const ExchangeChoice& choice;
  std::span<const Parameter> parameters;
  std::span<const CodecShare> shares;  // by bucket
  DType type = DType::f32;             // of values: f32, or CodecKind::alone
  Communicator& across;                // 2 ranks or more
  GradientMomentum momentum = {};      // of the optimizer

  std::int64_t largest_share() const {
    std::int64_t most = 0;
    for (const CodecShare& share : shares) most = std::max(most, share.count);
    return most;
  }
};

class Codec {
 public:
  virtual ~Codec() = default;

  // Enqueues on across.stream(): the values of this bucket's share become their sum over the ranks of across,
  // decoded, with the same bits on each of them. Buckets come one after another, once each step. What is not
  // finite anywhere leaves something that is not finite in the sum. Values come multiplied by the unit's loss
  // scale; what is remembered is not.
  virtual void exchange(std::size_t bucket, const GradientUnit& unit) = 0;
  // See GradientExchange.
  virtual void settle(Stream& /*compute*/, const std::int32_t* /*finite*/) {}
  virtual std::vector<ExchangeState> state() { return {}; }
  virtual std::size_t memory_bytes() const { return 0; }
};

// Small tensors and those of one dimension (biases, batch norm) cost little and tolerate little.
inline constexpr std::int64_t kLeastCompressed = 1000;
bool takes_large_tensors(const ExchangeChoice& choice, const Parameter& parameter);

// An option of codecs that remember what they did not send.
inline constexpr NumberOption kErrorFeedback = {
    .name = "error_feedback",
    .initial = 1,
    .least = 0,
    .most = 1,
    .meaning = "1: what was not sent is added to the next step's gradients; 0: it is lost, for comparison",
    .whole = true};

// What an ExchangeKind says of its codec.
struct CodecKind {
  // Which parameters it compresses; all others are summed densely.
  bool (*takes)(const ExchangeChoice& choice, const Parameter& parameter) = takes_large_tensors;
  // It adds the optimizer's momentum to what it takes, which the optimizer then does not. For SGD alone.
  bool adds_momentum = false;
  // The option that has it do so where the optimizer has momentum. Empty: there is none.
  std::string_view momentum_option = {};
  // The option that says how many of the first steps differ from those that follow, as in the sizes of what
  // is sent: a GPU records none of them. Empty: none do.
  std::string_view warmup_option = {};
  // What it remembers is kept in units of what parameters lack (GradientUnit::learning_rate).
  bool uses_learning_rate = false;
  // Its share is whole parameters, instead of equal numbers of elements.
  bool whole_parameters = false;
  // The type in which values come where no node has a second rank, and so nothing was summed; else fp32.
  DType alone = DType::f32;
  // Values of fp32 come in fp32 nevertheless: their scale is chosen before they are rounded.
  bool scales = false;
  // Collective over across.
  std::unique_ptr<Codec> (*make)(const CodecContext& context) = nullptr;
  // For estimates: what travels of a parameter that it takes between so many nodes, as a share of what the
  // dense sum of it in fp32 sends; null: not known. How many messages of a bucket wait for each other, as
  // all-reduces; and how much it remembers, in fp32 numbers for each of the parameter's elements.
  double (*sent_share)(const ExchangeChoice& choice, const Parameter& parameter, int nodes) = nullptr;
  double round_trips = 1;
  double (*kept)(const ExchangeChoice& choice, int nodes) = nullptr;
};

// By CodecKind::warmup_option; 0 for what is no codec.
std::int64_t warmup_steps(const ExchangeChoice& choice);
// The same choice, as it is behind those steps.
ExchangeChoice without_warmup(const ExchangeChoice& choice);
// Whether it adds this momentum to what it takes.
bool adds_momentum(const ExchangeChoice& choice, const GradientMomentum& momentum);
// The same choice, which does not where that is an option.
ExchangeChoice without_momentum(const ExchangeChoice& choice);

// ExchangeKind::make of every codec.
std::unique_ptr<GradientExchange> make_codec_exchange(const ExchangeContext& context);

}  // namespace lockstep
