// SPDX-License-Identifier: Apache-2.0
#include "launch/train/step_ends/cross_barrier.h"

#include <algorithm>

#include <fmt/ranges.h>

#include "core/error.h"
#include "core/log.h"
#include "core/timeline.h"
#include "kernels/backend.h"

namespace lockstep {
namespace {

// By bucket: the first node of forward that needs it.
std::vector<std::size_t> order_of_need(const Network& network, const BucketPlan& plan) {
  const std::size_t none = network.nodes().size();
  std::vector<std::size_t> needed(plan.buckets().size(), none);
  for (std::size_t node = 0; node < network.nodes().size(); ++node) {
    for (const std::size_t index : network.parameters_of(node)) {
      std::size_t& first = needed[plan.bucket_of(index)];
      first = std::min(first, node);
    }
  }
  return needed;
}

}  // namespace

CrossBarrier::CrossBarrier(Network& network, GradientBuckets& buckets, Optimizer& optimizer, StepClock& clock,
                           StepResults& results)
    : network_(network),
      buckets_(buckets),
      optimizer_(optimizer),
      clock_(clock),
      results_(results),
      times_(buckets.buckets().size()),
      updated_(buckets.buckets().size(), true),
      values_(network.values().size_bytes(), network.device()),
      statistics_(network.statistics().size_bytes(), network.device()) {
  CHECK(buckets.one_by_one(), "CrossBarrier requires BucketOptions::one_by_one");
}

std::size_t CrossBarrier::planned_bytes(const MemoryPlan& network) {
  return network.parameters + network.statistics / 3;
}

void CrossBarrier::learn(const Ledger& ledger, Communicator& host) {
  if (timed_++ == 0) std::ranges::fill(times_, BucketTimes{});
  if (timed_ == 1) return;
  for (std::size_t bucket = 0; bucket < times_.size(); ++bucket) {
    const BucketPassage& passage = ledger.passages()[bucket];
    const std::int64_t began_ns = passage.started_ns + passage.late_ns;
    times_[bucket].final_seconds += seconds_between(ledger.compute().backward_ns, passage.final_ns);
    times_[bucket].wire_seconds += seconds_between(began_ns, passage.finished_ns);
  }
  if (learns()) return;
  const std::vector<std::size_t> needed = order_of_need(network_, buckets_.plan());
  for (std::size_t bucket = 0; bucket < times_.size(); ++bucket) times_[bucket].needed = needed[bucket];
  std::vector<std::size_t> order = order_by_need(times_);
  host.complete({.kind = CollectiveKind::broadcast,
                 .dtype = DType::u8,
                 .root = 0,
                 .recv = order.data(),
                 .count = order.size() * sizeof(std::size_t)});
  buckets_.set_order(order);
  log::info("the exchange of gradients overlaps the next forward pass, in the order of buckets {}",
            fmt::join(order, " "));
}

void CrossBarrier::keep_statistics(Stream& compute) {
  if (!under_way_) return network_.keep_statistics(compute);
  statistics_kept_ = true;
  if (!network_.statistics().empty())
    compute.copy(statistics_.data(), network_.statistics().data(), statistics_.bytes());
}

void CrossBarrier::defer(Stream& compute, StepSlot slot) {
  under_way_ = true;
  compute_ = &compute;
  slot_ = slot;
  next_ = 0;
  statistics_kept_ = false;
  updated_.assign(updated_.size(), false);
  clock_.defer_exchange();
  optimizer_.begin_step(compute, slot);
}

void CrossBarrier::parameter_needed(std::size_t index) {
  const std::size_t bucket = buckets_.plan().bucket_of(index);
  while (!updated_[bucket]) update_next();
}

void CrossBarrier::update_next() {
  const std::size_t number = buckets_.order()[next_++];
  const Bucket& bucket = buckets_.buckets()[number];
  Stream& compute = *compute_;
  clock_.before_bucket(
      slot_, number,
      [&] {
        // Overlaps the wait.
        compute.copy(reinterpret_cast<float*>(values_.data()) + bucket.begin,
                     network_.values().data() + bucket.begin,
                     static_cast<std::size_t>(bucket.count()) * sizeof(float));
        buckets_.wait_for(compute, number);
      },
      [&] { optimizer_.step_range(compute, number); });
  updated_[number] = true;
}

void CrossBarrier::finish() {
  if (!under_way_) return;
  while (next_ < buckets_.order().size()) update_next();
  Stream& compute = *compute_;
  const StepControl* control = optimizer_.control();
  buckets_.wait(compute);
  buckets_.agree_finite(compute, &optimizer_.control()->finite);
  network_.backend().restore_if_skipped(compute,
                                        {.control = control,
                                         .count = static_cast<std::int64_t>(network_.values().size()),
                                         .from = reinterpret_cast<const float*>(values_.data()),
                                         .to = network_.values().data()});
  // A skipped step restores the running statistics from before it, and they stay the kept ones. Otherwise
  // those after it are kept for the step that has begun.
  network_.restore_statistics_if_skipped(compute, control);
  if (statistics_kept_) network_.keep_unless_skipped(compute, control, statistics());
  optimizer_.finish_step(compute);
  results_.copy_control(compute, slot_, control);
  results_.enqueued(compute, slot_);
  clock_.exchange_ended();
  under_way_ = false;
}

}  // namespace lockstep
