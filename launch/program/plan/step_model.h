// SPDX-License-Identifier: Apache-2.0
//
// Predicts a training step on a cluster from measured compute, the real buckets and an alpha-beta model of
// the links (launch/train/clock/overlap.h). The all-reduce of a bucket, called its sum, slows compute while
// it runs. Ranks wait for each other at every sum, so n ranks take as long as the slowest of n draws from the
// measured steps, or of one draw for each node where ranks compete for its cores. Pure: no clock, no ranks,
// no random numbers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "comm/gradients/sum_type.h"
#include "core/tensor/dtype.h"
#include "launch/program/plan/all_reduce_cost.h"
#include "launch/program/plan/step_trace.h"
#include "launch/train/clock/overlap.h"

namespace lockstep {

// The measured compute of a step without communication.
struct ComputeModel {
  // In a trace of several ranks, skips buckets that waited for the previous one: their begin is not the
  // moment at which their gradients were final.
  static ComputeModel of(const StepTrace& trace);

  double forward_seconds = 0;   // of all micro-batches
  double before_seconds = 0;    // data, forward, and backward of all micro-batches but the last
  double backward_seconds = 0;  // of the last micro-batch
  double after_seconds = 0;     // optimizer
  double rest_seconds = 0;      // between steps
  std::vector<double> factors;  // each traced step's time over the median, ascending

  GradientArrivals arrivals;  // in the last backward, in bytes of the traced gradients

  // The same on cores that are `factor` times slower.
  ComputeModel slowed(double factor) const;

  double step_seconds() const { return before_seconds + backward_seconds + after_seconds + rest_seconds; }
};

// The cores that the ranks of a node share. Compute slows down by the ratio of compute threads to cores where
// it is above 1. A rank that waits for peers frees its cores for them.
struct NodeCores {
  int threads_per_rank = 0;  // 0: each rank has its own device
  int cores = 0;             // 0: not known; no slowdown

  double slowdown(int ranks_per_node) const;
};

// Seconds of compute lost to a sum while it is under way: per second, as where both read a GPU's memory, and
// per byte that the rank sends, as where the cores that compute also copy and add its messages.
struct ComputeLoss {
  double per_second = 0;
  double per_byte = 0;

  // The share of compute lost during a sum of `seconds` and `bytes`; at most 0.9.
  double share_of(double seconds, double bytes) const;
};

struct PlannedBucket {
  std::size_t bytes = 0;  // of its gradients
  DType type = DType::f32;
};

struct StepModel {
  ComputeModel compute;  // of a rank that has its cores to itself
  NodeCores node;
  std::vector<PlannedBucket> buckets;  // in the order they leave
  double bytes_factor = 1;             // 0.5: gradients of half the width
  // The type of sums over ranks. `gradients` also for CPUs, which send gradients in their own type.
  SumType sum_type = SumType::gradients;
  ComputeLoss loss;
  bool overlap = true;
  std::int64_t samples_per_rank = 1;  // of a step

  // The data of the bucket's sum over this many ranks.
  double summed_bytes(const PlannedBucket& bucket, int ranks) const;
};

struct StepPrediction {
  int ranks = 1;
  int nodes = 1;
  double seconds = 0;       // median
  double low_seconds = 0;   // 10th percentile
  double high_seconds = 0;  // 90th percentile
  double exposed_seconds = 0;
  double sum_seconds = 0;  // all sums, hidden or not
  double samples_per_second = 0;
  double efficiency = 1;  // samples per second and rank, over those of a single rank
};
StepPrediction predict_step(const StepModel& model, const Cluster& cluster);

// Predicts 1, 2, 4, .. ranks on one node, then 1, 2, 4, .. full nodes, up to the size of the cluster.
std::vector<StepPrediction> predict_scaling(const StepModel& model, const Cluster& cluster);

// The number of ranks from which a doubling multiplies the samples per second by less than kWorthwhile; 0:
// there is none up to a million ranks.
inline constexpr double kWorthwhile = 1.5;
int find_knee(const StepModel& model, const Cluster& cluster);

}  // namespace lockstep
