// SPDX-License-Identifier: Apache-2.0
#include "launch/train/step_ends/local_sgd.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "comm/agreement.h"
#include "core/error.h"
#include "kernels/backend.h"
#include "launch/train/step/step_statistics.h"

namespace lockstep {
namespace {

// Upper bound for a codec's unsent parts, as a multiple of the largest difference.
constexpr int kUnsentRoom = 1024;

bool has_halves(const GradientBuckets& buckets) {
  return std::ranges::any_of(buckets.gradients(),
                             [](const FlatRange& range) { return range.type != DType::f32; });
}

}  // namespace

LocalSgd::LocalSgd(Network& network, GradientBuckets& buckets, Communicator& communicator,
                   const LocalSgdOptions& options)
    : network_(network),
      buckets_(buckets),
      communicator_(communicator),
      options_(options),
      scales_(has_halves(buckets)),
      memory_(planned_bytes(bytes()), network.device()),
      negative_(reinterpret_cast<float*>(memory_.data())),
      own_(negative_ + count()),
      device_(sizeof(OnDevice), network.device()),
      finite_by_slot_(StepSlot::kCount * sizeof(std::int32_t), network.device(), MemoryKind::pinned_host) {
  CHECK(options.every >= 1 && options.after >= 0, "every = {} must be at least 1, after = {} at least 0",
        options.every, options.after);
  // Equal on all ranks, because it determines the scale; some ranks have no codec.
  if (scales_)
    has_unsent_ = first_rank_where(communicator.host(), std::ranges::any_of(buckets.exchange().state(),
                                                                            &ExchangeState::unsent)) >= 0;
  Stream stream(network.device(), StreamUse::compute);
  if (options.every == LocalSgdOptions::kNever) {
    stream.copy(negative_, network_.values().data(), bytes());
    scale(stream, negative_, -1);
  }
  stream.synchronize();
}

bool LocalSgd::apart_before(std::int64_t step) const {
  return step > 0 && options_.kind_of(step - 1) == StepKind::local;
}

void LocalSgd::begin_step(Stream& compute, std::int64_t step) {
  leave_average(compute);
  if (step != options_.after || options_.every == LocalSgdOptions::kNever) return;
  compute.copy(negative_, network_.values().data(), bytes());
  scale(compute, negative_, -1);
  if (step > 0) drop_unsent(compute);
}

void LocalSgd::average(Stream& compute, StepSlot slot, std::span<BucketMoments> moments) {
  Backend& backend = network_.backend();
  backend.add(compute, {.count = count(), .a = network_.values().data(), .b = negative_, .sum = own_});
  if (scales_) choose_scale(compute);
  fill_gradients(compute);
  exchange(compute, moments);
  take_sums(compute);
  scale(compute, own_, -1 / static_cast<float>(communicator_.size()));
  backend.add(compute, {.count = count(), .a = own_, .b = negative_, .sum = own_});
  backend.all_finite(compute, {.count = count(), .values = own_, .finite = finite()});
  buckets_.agree_finite(compute, finite());
  backend.keep_if_finite(compute, {.finite = finite(), .count = count(), .from = own_, .to = negative_});
  set_values(compute, negative_, -1);
  compute.copy(flags() + slot.index, finite(), sizeof(std::int32_t));
}

void LocalSgd::scale(Stream& compute, float* values, float factor) {
  network_.backend().scale(compute, {.count = count(), .factor = factor, .values = values});
}

// Multiplies differences that are sent in 16 bits by a power of two, so that fp16 holds the largest of any
// rank and the sum over ranks: parameters may change by 1e-8 or by 10 between two averages. A codec adds
// unsent parts of earlier differences, which may be larger.
void LocalSgd::choose_scale(Stream& compute) {
  Backend& backend = network_.backend();
  backend.largest_magnitude(
      compute,
      {.type = DType::f32, .count = count(), .values = own_, .largest = &on_device()->largest_difference});
  buckets_.agree_largest(compute, &on_device()->largest_difference);
  backend.half_scale(compute, {.largest = &on_device()->largest_difference,
                               .terms = communicator_.size() * (has_unsent_ ? kUnsentRoom : 1),
                               .scale = &on_device()->scale,
                               .inverse = &on_device()->inverse});
}

// Overwrites the gradients, which this step has used.
void LocalSgd::fill_gradients(Stream& compute) {
  for (const FlatRange& range : buckets_.gradients()) {
    network_.backend().cast(compute, {.count = range.count(),
                                      .from_type = DType::f32,
                                      .to_type = range.type,
                                      .from = own_ + range.begin,
                                      .to = range.data,
                                      .factor = scales_ ? &on_device()->scale : nullptr});
  }
}

void LocalSgd::exchange(Stream& compute, std::span<BucketMoments> moments) {
  buckets_.begin(compute, moments, {.loss_scale = scales_ ? &on_device()->scale : nullptr});
  for (std::size_t i = 0; i < network_.parameters().size(); ++i) buckets_.gradient_ready(i);
  buckets_.wait(compute);
}

void LocalSgd::take_sums(Stream& compute) {
  for (const FlatRange& range : buckets_.gradients()) {
    network_.backend().cast(compute, {.count = range.count(),
                                      .from_type = range.type,
                                      .to_type = DType::f32,
                                      .from = range.data,
                                      .to = own_ + range.begin,
                                      .factor = scales_ ? &on_device()->inverse : nullptr});
  }
}

void LocalSgd::set_values(Stream& compute, const float* from, float factor) {
  compute.copy(network_.values().data(), from, bytes());
  if (factor != 1) scale(compute, network_.values().data(), factor);
  network_.copy_trained_weights(compute);
}

void LocalSgd::drop_unsent(Stream& compute) {
  compute.synchronize();
  for (const ExchangeState& state : buckets_.exchange().state()) {
    if (!state.unsent) continue;
    const std::vector<float> zeros(static_cast<std::size_t>(state.memory.shape.elements()));
    compute.copy(state.memory.data, zeros.data(), zeros.size() * sizeof(float));
    compute.synchronize();
  }
}

void LocalSgd::leave_average(Stream& compute) {
  if (std::exchange(holds_average_, false)) set_values(compute, own_, 1);
}

void LocalSgd::show_average(Stream& compute, std::int64_t step) {
  if (holds_average_ && options_.every != LocalSgdOptions::kNever) return;
  leave_average(compute);  // on a ring, this rank's peers may have taken steps since
  holds_average_ = true;
  compute.copy(own_, network_.values().data(), bytes());
  if (!apart_before(step)) return;
  average_over_ranks(compute, communicator_, network_.values(), communicator_.size());
  network_.copy_trained_weights(compute);
}

void LocalSgd::remember_average(Stream& compute) {
  CHECK(holds_average_, "call show_average() first: the network has this rank's own parameters");
  compute.copy(negative_, network_.values().data(), bytes());
  scale(compute, negative_, -1);
}

void LocalSgd::show_last_average(Stream& compute) {
  if (!std::exchange(holds_average_, true)) compute.copy(own_, network_.values().data(), bytes());
  set_values(compute, negative_, -1);
}

void LocalSgd::visit_state(StateVisitor& visitor, Stream& compute) {
  CHECK(holds_average_ != visitor.writes(),
        "call show_average() first, or leave_average() if the visitor writes");
  if (visitor.writes()) {
    compute.copy(own_, network_.values().data(), bytes());
    compute.synchronize();  // the visitor writes on another stream
  }
  const auto visit = [&](float* values, const char* suffix, StateScope scope) {
    visit_flat(visitor, network_.parameters(), {values, network_.values().size()}, suffix, scope);
  };
  visit(own_, "", StateScope::per_rank);
  scale(compute, negative_, -1);
  compute.synchronize();
  visit(negative_, ".last_average", StateScope::replicated);
  scale(compute, negative_, -1);
  compute.synchronize();
  holds_average_ = true;
}

}  // namespace lockstep
