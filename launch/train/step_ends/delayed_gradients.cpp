// SPDX-License-Identifier: Apache-2.0
#include "launch/train/step_ends/delayed_gradients.h"

#include <cmath>

#include "core/error.h"
#include "kernels/backend.h"

namespace lockstep {

DelayedGradients::DelayedGradients(Network& network, GradientBuckets& buckets, Optimizer& optimizer,
                                   int ranks)
    : network_(network),
      buckets_(buckets),
      optimizer_(optimizer),
      ranks_(ranks),
      values_(planned_bytes(network.values().size_bytes()), network.device()),
      control_(sizeof(StepControl) + 2 * (sizeof(float) + sizeof(std::int32_t)), network.device()) {
  CHECK(buckets.delayed(), "DelayedGradients requires BucketOptions::delayed");
}

void DelayedGradients::exchange(Stream& compute, std::span<BucketMoments> moments) {
  buckets_.begin(compute, moments, {.loss_scale = scale()});
  for (std::size_t i = 0; i < network_.parameters().size(); ++i) buckets_.gradient_ready(i);
}

// A loss scale divided by the number of ranks turns this rank's share of the mean over all samples into the
// mean over its own samples.
void DelayedGradients::look_ahead(Stream& compute, StepSlot slot) {
  compute.copy(values_.data(), network_.values().data(), network_.values().size_bytes());
  compute.copy(&own()->loss_scale, scale(), sizeof(float));
  network_.backend().scale(
      compute, {.count = 1, .factor = 1 / static_cast<float>(ranks_), .values = &own()->loss_scale});
  optimizer_.look_ahead(compute, slot, buckets_.own_gradients(), own());
}

// Copies the weights, because a skipped step does not.
void DelayedGradients::restore_parameters(Stream& compute) {
  compute.copy(network_.values().data(), values_.data(), network_.values().size_bytes());
  network_.copy_trained_weights(compute);
}

// The optimizer divides by the scale that the gradients were made with, and adjusts that scale.
void DelayedGradients::use_late_scale(Stream& compute) {
  StepControl* const control = optimizer_.control();
  compute.copy(scale() + 1, &control->loss_scale, sizeof(float));
  compute.copy(&control->loss_scale, scale(), sizeof(float));
  if (!optimizer_.loss_scale_options().dynamic()) return;
  compute.copy(good_steps() + 1, &control->good_steps, sizeof(std::int32_t));
  compute.copy(&control->good_steps, good_steps(), sizeof(std::int32_t));
}

// The adjusted scale is for the next backward pass; the last backward pass used the other one.
void DelayedGradients::keep_new_scale(Stream& compute) {
  compute.copy(scale(), scale() + 1, sizeof(float));
  if (optimizer_.loss_scale_options().dynamic())
    compute.copy(good_steps(), good_steps() + 1, sizeof(std::int32_t));
}

void DelayedGradients::judge_statistics(Stream& compute) {
  judge(compute);
  network_.restore_statistics_if_skipped(compute, own());
}

void DelayedGradients::judge(Stream& compute) {
  Write write = Write::overwrite;
  for (const FlatRange& range : buckets_.own_gradients()) {
    network_.backend().all_finite(compute, {.type = range.type,
                                            .count = range.count(),
                                            .values = range.data,
                                            .finite = &own()->finite,
                                            .write = write});
    write = Write::accumulate;
  }
}

bool DelayedGradients::are_finite(Stream& compute) const {
  if (!under_way()) return true;
  std::int32_t finite = 0;
  compute.copy(&finite, &own()->finite, sizeof(finite));
  compute.synchronize();
  return finite != 0;
}

float DelayedGradients::read_scale(Stream& compute) const {
  float value = 0;
  compute.copy(&value, scale(), sizeof(value));
  compute.synchronize();
  return value;
}

void DelayedGradients::keep(Stream& compute) {
  if (!under_way()) {
    compute.copy(scale(), &optimizer_.control()->loss_scale, sizeof(float));
    compute.copy(good_steps(), &optimizer_.control()->good_steps, sizeof(std::int32_t));
  }
  buckets_.delay(compute);
}

void DelayedGradients::visit_state(StateVisitor& visitor, Stream& compute) {
  if (!visitor.has_value(kUnderWay, StateScope::replicated)) {
    under_way_ = 0;
    return;
  }
  auto* plain = reinterpret_cast<float*>(values_.data());
  for (const FlatRange& range : buckets_.gradients()) {
    network_.backend().cast(compute, {.count = range.count(),
                                      .from_type = range.type,
                                      .to_type = DType::f32,
                                      .from = range.data,
                                      .to = plain + range.begin});
  }
  compute.synchronize();
  visit_flat(visitor, network_.parameters(), {plain, network_.values().size()}, kGradientSuffix,
             StateScope::per_rank);
  float scale_now = 0;
  std::int32_t good_now = 0;
  compute.copy(&scale_now, scale(), sizeof(float));
  compute.copy(&good_now, good_steps(), sizeof(std::int32_t));
  compute.synchronize();
  double loss_scale = scale_now;
  const bool counts_good = visitor.has_value(kGoodSteps, StateScope::replicated);
  std::int64_t good = counts_good ? good_now : 0;
  visitor.value(kUnderWay, StateScope::replicated, &under_way_);
  visitor.value(kLossScale, StateScope::replicated, &loss_scale);
  if (counts_good) visitor.value(kGoodSteps, StateScope::replicated, &good);
  if (!visitor.writes()) return;
  const bool unscaled = std::isnan(loss_scale);
  scale_now = static_cast<float>(loss_scale);
  good_now = unscaled ? 0 : static_cast<std::int32_t>(good);
  compute.copy(scale(), unscaled ? optimizer_.loss_scale() : &scale_now, sizeof(float));
  compute.copy(good_steps(), &good_now, sizeof(std::int32_t));
  for (const std::span<const FlatRange> ranges : {buckets_.gradients(), buckets_.own_gradients()}) {
    for (const FlatRange& range : ranges) {
      network_.backend().cast(compute, {.count = range.count(),
                                        .from_type = DType::f32,
                                        .to_type = range.type,
                                        .from = plain + range.begin,
                                        .to = range.data,
                                        .factor = unscaled ? scale() : nullptr});
    }
  }
  compute.synchronize();
  judge(compute);
}

}  // namespace lockstep
