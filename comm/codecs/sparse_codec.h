// SPDX-License-Identifier: Apache-2.0
//
// SparseCodec: sends the largest elements of every parameter, each with its index, and adds the others to the
// next gradient. Base of topk and dgc.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "comm/codecs/codec.h"
#include "comm/codecs/kept_memory.h"
#include "comm/codecs/residual.h"
#include "kernels/sparse.h"

namespace lockstep {

struct SparseOptions {
  double density = 0.01;  // share of a parameter's elements that are sent
  bool error_feedback = true;
  bool adds_momentum = false;
  GradientMomentum momentum = {};
  // Largest norm of a parameter's gradient, over the exchanging ranks; 0: unlimited. If the ranks of a node
  // divide a parameter, each piece may have this norm.
  double clip = 0;
  // Warm-up steps: the first has density warmup_density, which then falls geometrically to `density`.
  std::int64_t warmup_steps = 0;
  double warmup_density = 0;
};

// Options of both codecs.
inline constexpr const char* kWarmupSteps = "warmup_steps";
constexpr NumberOption warmup_steps(double initial) {
  return {.name = kWarmupSteps,
          .initial = initial,
          .least = 0,
          .most = 1e9,
          .meaning = "warm-up steps, in which the share that is sent falls from warmup_density to density",
          .whole = true};
}
constexpr NumberOption share_option(const char* name, double initial, const char* meaning) {
  return {.name = name, .initial = initial, .least = 1e-6, .most = 1, .meaning = meaning};
}
constexpr NumberOption sparse_density(double initial) {
  return share_option("density", initial, "share of a parameter's elements that are sent");
}
constexpr NumberOption warmup_density(double initial) {
  return share_option("warmup_density", initial, "share that is sent in the first warm-up step");
}
// The options of the context's choice.
SparseOptions sparse_options(const CodecContext& context);

// CodecKind::sent_share: a word goes to every other node; the dense sum sends 2 (n - 1) / n.
double sparse_sent_share(const ExchangeChoice& choice, const Parameter& parameter, int nodes);

class SparseCodec final : public Codec {
 public:
  SparseCodec(const CodecContext& context, const SparseOptions& options);

  void exchange(std::size_t bucket, const GradientUnit& unit) override;
  void settle(Stream& compute, const std::int32_t* finite) override;
  std::vector<ExchangeState> state() override;
  std::size_t memory_bytes() const override;

 private:
  // In the current step.
  SparseMessage message_of(const CodecPiece& piece) const;
  std::int64_t words(const CodecShare& share) const;
  double density_at(std::int64_t step) const;
  // The share of its velocity that an element keeps when it is sent in this step.
  float kept_velocity() const;
  void choose(std::size_t bucket, const GradientUnit& unit);

  std::span<const Parameter> parameters_;
  std::span<const CodecShare> shares_;
  Communicator& across_;
  SparseOptions options_;
  std::optional<Residual> residual_;  // with error feedback
  std::optional<Residual> velocity_;  // if it adds momentum
  Buffer chosen_;                     // the messages of one bucket's pieces, one after another
  Buffer gathered_;                   // chosen_ of every rank
  Buffer scratch_;
  StepCount steps_;
  double density_ = 0;  // in the current step
  bool begun_ = false;
};

}  // namespace lockstep
