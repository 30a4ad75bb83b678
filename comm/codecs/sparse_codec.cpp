// SPDX-License-Identifier: Apache-2.0
#include "comm/codecs/sparse_codec.h"

#include <algorithm>
#include <cmath>

#include "core/error.h"
#include "kernels/backend.h"

namespace lockstep {
namespace {

// Bytes at the beginning of scratch_ for a piece's threshold and clip factor; working memory follows.
constexpr std::size_t kThresholdBytes = 64;

std::int64_t most_elements(std::span<const CodecShare> shares) {
  std::int64_t most = 0;
  for (const CodecShare& share : shares) {
    for (const CodecPiece& piece : share.pieces) most = std::max(most, piece.range.count());
  }
  return most;
}

}  // namespace

SparseOptions sparse_options(const CodecContext& context) {
  const ExchangeChoice& choice = context.choice;
  return {.density = choice.option("density"),
          .adds_momentum = adds_momentum(choice, context.momentum),
          .momentum = context.momentum,
          .warmup_steps = choice.whole_option(kWarmupSteps),
          .warmup_density = choice.option("warmup_density")};
}

double sparse_sent_share(const ExchangeChoice& choice, const Parameter&, int nodes) {
  return choice.option("density") * nodes / 2;
}

SparseCodec::SparseCodec(const CodecContext& context, const SparseOptions& options)
    : parameters_(context.parameters),
      shares_(context.shares),
      across_(context.across),
      options_(options),
      steps_(context.across.stream().device()) {
  const Device device = across_.stream().device();
  density_ = options_.density;
  if (options_.warmup_steps > 0) density_ = std::max(density_, options_.warmup_density);
  std::int64_t most = 0;
  for (const CodecShare& share : shares_) most = std::max(most, words(share));
  const std::size_t bytes = static_cast<std::size_t>(most) * sizeof(std::uint32_t);
  chosen_ = across_.allocate(bytes);
  gathered_ = across_.allocate(bytes * static_cast<std::size_t>(across_.size()));
  scratch_ = Buffer(kThresholdBytes + sparse_scratch_bytes(most_elements(shares_)), device);
  if (options_.error_feedback) residual_.emplace(context.update_residual(), shares_, parameters_, device);
  if (options_.adds_momentum) velocity_.emplace("velocity", shares_, parameters_, device);
}

SparseMessage SparseCodec::message_of(const CodecPiece& piece) const {
  const std::int64_t count = piece.range.count();
  const std::int64_t wanted = std::llround(density_ * static_cast<double>(count));
  return {.count = count, .capacity = std::clamp<std::int64_t>(wanted, 1, count)};
}

std::int64_t SparseCodec::words(const CodecShare& share) const {
  std::int64_t words = 0;
  for (const CodecPiece& piece : share.pieces) words += message_of(piece).words();
  return words;
}

double SparseCodec::density_at(std::int64_t step) const {
  if (step >= options_.warmup_steps || options_.warmup_density <= options_.density) return options_.density;
  const double passed = static_cast<double>(step) / static_cast<double>(options_.warmup_steps);
  return options_.warmup_density * std::pow(options_.density / options_.warmup_density, passed);
}

// An element is sent about every k = 1 / density steps. If its momentum m is reset each time, it grows over k
// steps only, and 1 - m (1 - m^k) / (k (1 - m)) is left of a gradient's effect: 0.36 at a density of 1/8 and
// m = 0.9, and 0.91 at 1/100. It is reset because a direction that is older than momentum remembers misleads
// (DGC, section 3.2); so an element that is sent more often than momentum decays by itself, every 1 / (1 - m)
// steps, keeps it.
float SparseCodec::kept_velocity() const {
  return static_cast<float>(std::min(1.0, density_ / (1 - options_.momentum.momentum)));
}

void SparseCodec::exchange(std::size_t bucket, const GradientUnit& unit) {
  if (!begun_) density_ = options_.warmup_steps > 0 ? density_at(steps_.begin()) : options_.density;
  begun_ = true;
  const CodecShare& share = shares_[bucket];
  if (share.count == 0 || share.pieces.empty()) return;
  choose(bucket, unit);
  const std::int64_t stride = words(share);
  across_.all_gather(chosen_.data(), gathered_.data(), static_cast<std::size_t>(stride), DType::i32);
  Stream& stream = across_.stream();
  const auto* messages = reinterpret_cast<const std::uint32_t*>(gathered_.data());
  for (const CodecPiece& piece : share.pieces) {
    const SparseMessage shape = message_of(piece);
    backend_for(stream.device())
        .sparse_sum(stream, {.shape = shape,
                             .ranks = across_.size(),
                             .messages = messages,
                             .stride = stride,
                             .loss_scale = unit.loss_scale,
                             .sums = static_cast<float*>(share.values) + piece.place});
    messages += shape.words();
  }
}

void SparseCodec::choose(std::size_t bucket, const GradientUnit& unit) {
  const CodecShare& share = shares_[bucket];
  Stream& stream = across_.stream();
  Backend& backend = backend_for(stream.device());
  auto* threshold = reinterpret_cast<std::uint32_t*>(scratch_.data());
  auto* clip = reinterpret_cast<float*>(scratch_.data() + sizeof(*threshold));
  auto* message = reinterpret_cast<std::uint32_t*>(chosen_.data());
  const auto now = [&](const std::optional<Residual>& memory, const CodecPiece& piece) {
    return memory ? memory->now(bucket) + piece.place : nullptr;
  };
  const auto next = [&](const std::optional<Residual>& memory, const CodecPiece& piece) {
    return memory ? memory->next(bucket) + piece.place : nullptr;
  };
  void* scratch = scratch_.data() + kThresholdBytes;
  for (const CodecPiece& piece : share.pieces) {
    const SparseNumbers numbers{.count = piece.range.count(),
                                .gradient = static_cast<const float*>(share.values) + piece.place,
                                .loss_scale = unit.loss_scale,
                                .learning_rate = unit.learning_rate,
                                .clip = options_.clip > 0 ? clip : nullptr,
                                .residual = now(residual_, piece),
                                .velocity = now(velocity_, piece),
                                .momentum = static_cast<float>(options_.momentum.momentum),
                                .nesterov = options_.momentum.nesterov};
    if (options_.clip > 0) {
      const double most = options_.clip / std::sqrt(static_cast<double>(across_.size()));
      backend.sparse_clip(stream, {.count = numbers.count,
                                   .gradient = numbers.gradient,
                                   .loss_scale = unit.loss_scale,
                                   .most = static_cast<float>(most),
                                   .clip = clip,
                                   .scratch = scratch});
    }
    const SparseMessage shape = message_of(piece);
    backend.sparse_threshold(
        stream, {.numbers = numbers, .kept = shape.capacity, .threshold = threshold, .scratch = scratch});
    backend.sparse_select(stream, {.numbers = numbers,
                                   .capacity = shape.capacity,
                                   .threshold = threshold,
                                   .message = message,
                                   .next_residual = next(residual_, piece),
                                   .next_velocity = next(velocity_, piece),
                                   .kept_velocity = kept_velocity(),
                                   .scratch = scratch});
    message += shape.words();
  }
}

void SparseCodec::settle(Stream& compute, const std::int32_t* finite) {
  if (!begun_) return;  // this rank drives nothing
  begun_ = false;
  steps_.settle(compute, finite);
  if (residual_) residual_->settle(compute, finite);
  if (velocity_) velocity_->settle(compute, finite);
}

std::vector<ExchangeState> SparseCodec::state() {
  std::vector<ExchangeState> states;
  for (const CodecShare& share : shares_) {
    if (share.pieces.empty() || !states.empty()) continue;
    const CodecPiece& first = share.pieces.front();
    states.push_back({.name = fmt::format("{}.sparse_steps[{}:{}]", parameters_[first.parameter].name,
                                          first.range.begin, first.range.end),
                      .memory = {.data = steps_.memory(),
                                 .shape = {StepCount::kNumbers},
                                 .device = across_.stream().device()},
                      .on_other_ranks = OnOtherRanks::same,
                      .counts_skipped = steps_.counts_skipped()});
  }
  if (residual_) residual_->add_state(states);
  if (velocity_) velocity_->add_state(states);
  return states;
}

std::size_t SparseCodec::memory_bytes() const {
  return (residual_ ? residual_->memory_bytes() : 0) + (velocity_ ? velocity_->memory_bytes() : 0) +
         chosen_.bytes() + gathered_.bytes() + scratch_.bytes() + steps_.memory_bytes();
}

}  // namespace lockstep
