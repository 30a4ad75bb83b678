// SPDX-License-Identifier: Apache-2.0
#include "launch/program/plan/step_model.h"

#include <algorithm>
#include <cmath>

#include "core/error.h"
#include "launch/train/quantile.h"

namespace lockstep {
namespace {

constexpr int kMostModelledRanks = 1 << 20;

// The cluster with the processing of messages slowed down as compute is.
Cluster slowed(Cluster cluster, double slowdown) {
  cluster.in_node.seconds_per_byte *= slowdown;
  cluster.between_nodes.seconds_per_byte *= slowdown;
  if (cluster.beside_compute) cluster.beside_compute->seconds_per_byte *= slowdown;
  return cluster;
}

Cluster beside_compute(Cluster cluster) {
  cluster.between_nodes = cluster.beside_compute.value_or(cluster.between_nodes);
  return cluster;
}

// Compute and buckets, which are equal in every step.
struct Buckets {
  ComputeModel compute;
  double slowdown = 1;
  std::vector<BucketInBackward> buckets;
};

Buckets buckets_of(const StepModel& model, const Cluster& asked) {
  Buckets result{.slowdown = model.node.slowdown(asked.ranks_per_node)};
  result.compute = model.compute.slowed(result.slowdown);
  const Cluster cluster = slowed(asked, result.slowdown);
  double bytes = 0;
  for (const PlannedBucket& planned : model.buckets) {
    bytes += static_cast<double>(planned.bytes);
    BucketInBackward& bucket = result.buckets.emplace_back();
    bucket.final_seconds =
        model.overlap ? result.compute.arrivals.final_seconds(bytes) : result.compute.backward_seconds;
    if (cluster.ranks() == 1) continue;
    const double data = model.summed_bytes(planned, cluster.ranks());
    bucket.sum_seconds = all_reduce_seconds(data, cluster);
    bucket.beside_seconds = all_reduce_seconds(data, beside_compute(cluster));
    bucket.lost_share =
        model.loss.share_of(bucket.beside_seconds, result.slowdown * all_reduce_sent_bytes(data, cluster));
  }
  return result;
}

// Predicts a step whose compute takes `factor` times the median.
StepPrediction step_with(double factor, Buckets step) {
  for (BucketInBackward& bucket : step.buckets) bucket.final_seconds *= factor;
  const ComputeModel& compute = step.compute;
  const OverlappedBackward backward = overlap_backward(step.buckets, compute.backward_seconds * factor);
  return {.seconds = (compute.before_seconds + compute.after_seconds) * factor + compute.rest_seconds +
                     backward.seconds + backward.exposed_seconds,
          .exposed_seconds = backward.exposed_seconds};
}

// Growing sizes; the last one is `cluster`.
std::vector<Cluster> sizes_up_to(const Cluster& cluster) {
  std::vector<Cluster> sizes;
  Cluster size = cluster;
  size.nodes = 1;
  for (int ranks = 1; ranks < cluster.ranks_per_node; ranks *= 2) {
    size.ranks_per_node = ranks;
    sizes.push_back(size);
  }
  size.ranks_per_node = cluster.ranks_per_node;
  for (int nodes = 1; nodes < cluster.nodes; nodes *= 2) {
    size.nodes = nodes;
    sizes.push_back(size);
  }
  sizes.push_back(cluster);
  return sizes;
}

}  // namespace

ComputeModel ComputeModel::of(const StepTrace& trace) {
  CHECK(!trace.steps.empty());
  using Step = StepTrace::Step;
  const auto median = [&](const auto& value) { return quantile_over(trace.steps, 0.5, value); };
  ComputeModel model;
  model.forward_seconds = median([](const Step& step) { return step.forward; });
  model.before_seconds =
      median([](const Step& step) { return step.data + step.forward + step.backward - step.last_backward; });
  model.backward_seconds = median([](const Step& step) { return step.last_backward; });
  model.after_seconds = median([](const Step& step) { return step.optimizer; });
  model.rest_seconds =
      median([](const Step& step) { return std::max(0.0, step.seconds - step.compute() - step.exchange); });
  const double compute = median([](const Step& step) { return step.compute(); });
  for (const Step& step : trace.steps) model.factors.push_back(step.compute() / compute);
  std::ranges::sort(model.factors);

  double bytes = 0;
  for (std::size_t i = 0; i < trace.run.bucket_bytes.size(); ++i) {
    bytes += static_cast<double>(trace.run.bucket_bytes[i]);
    const bool last = i + 1 == trace.run.bucket_bytes.size();
    const double begin = median([&](const Step& step) { return step.sums[i].begin; });
    // A shorter gap means that the sum waited for the previous one: a stream takes this long to start it.
    constexpr double kAtOnce = 20e-6;
    const bool waited = i > 0 && trace.run.ranks > 1 && median([&](const Step& step) {
                                                          return step.sums[i].begin - step.sums[i - 1].end;
                                                        }) < kAtOnce;
    if (waited && !last) continue;
    const double seconds = waited ? model.backward_seconds : std::min(begin, model.backward_seconds);
    model.arrivals.add(bytes, seconds);
  }
  return model;
}

ComputeModel ComputeModel::slowed(double factor) const {
  ComputeModel model = *this;
  for (double* seconds :
       {&model.forward_seconds, &model.before_seconds, &model.backward_seconds, &model.after_seconds})
    *seconds *= factor;
  model.arrivals = arrivals.slowed(factor);
  return model;
}

double NodeCores::slowdown(int ranks_per_node) const {
  if (threads_per_rank == 0 || cores == 0) return 1;
  return std::max(1.0, static_cast<double>(ranks_per_node) * threads_per_rank / cores);
}

double ComputeLoss::share_of(double seconds, double bytes) const {
  constexpr double kMost = 0.9;
  return seconds > 0 ? std::min(kMost, per_second + per_byte * bytes / seconds) : 0;
}

double StepModel::summed_bytes(const PlannedBucket& bucket, int ranks) const {
  const std::size_t widths =
      sums_in_f32(sum_type, bucket.type, ranks) ? sizeof(float) / size_of(bucket.type) : 1;
  return static_cast<double>(widths * bucket.bytes) * bytes_factor;
}

// The largest of n draws is below the q-quantile with probability q^n. Step time increases with compute time,
// so a quantile of step times is the step at that quantile of compute.
StepPrediction predict_step(const StepModel& model, const Cluster& cluster) {
  const Buckets step = buckets_of(model, cluster);
  const int draws = step.slowdown > 1 ? cluster.nodes : cluster.ranks();
  const auto step_at = [&](double fraction) {
    return step_with(quantile(model.compute.factors, std::pow(fraction, 1.0 / draws)), step);
  };
  StepPrediction result = step_at(0.5);
  result.ranks = cluster.ranks();
  result.nodes = cluster.nodes;
  result.low_seconds = step_at(0.1).seconds;
  result.high_seconds = step_at(0.9).seconds;
  for (const BucketInBackward& bucket : step.buckets) result.sum_seconds += bucket.sum_seconds;
  const auto samples = static_cast<double>(model.samples_per_rank);
  result.samples_per_second = cluster.ranks() * samples / result.seconds;
  result.efficiency = model.compute.step_seconds() / result.seconds;
  return result;
}

std::vector<StepPrediction> predict_scaling(const StepModel& model, const Cluster& cluster) {
  std::vector<StepPrediction> rows;
  for (const Cluster& size : sizes_up_to(cluster)) rows.push_back(predict_step(model, size));
  return rows;
}

int find_knee(const StepModel& model, const Cluster& cluster) {
  Cluster largest = cluster;
  largest.nodes = 1;
  while (largest.ranks() <= kMostModelledRanks / 2) largest.nodes *= 2;
  StepPrediction before;
  for (const Cluster& size : sizes_up_to(largest)) {
    const StepPrediction row = predict_step(model, size);
    // The last size may be less than twice the one before: scale the gain to a full doubling.
    if (before.seconds > 0) {
      const double doublings = std::log2(static_cast<double>(row.ranks) / before.ranks);
      const double gain = std::pow(row.samples_per_second / before.samples_per_second, 1 / doublings);
      if (gain < kWorthwhile) return before.ranks;
    }
    before = row;
  }
  return 0;
}

}  // namespace lockstep
