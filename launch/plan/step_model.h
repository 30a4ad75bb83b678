// SPDX-License-Identifier: Apache-2.0
//
// A training step on a cluster that is not there: measured compute, the real buckets and an alpha-beta model
// of the links (launch/account/overlap.h); sums take a part of compute while they are under way; and n ranks,
// which wait for each other at every sum, take as long as the slowest of n draws from the measured steps, or
// of nodes, where the ranks of a node share its cores. Pure: no clock, no ranks, no chance.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "launch/account/overlap.h"
#include "launch/plan/all_reduce_cost.h"
#include "launch/plan/step_trace.h"

namespace lockstep {

// How a step computes where nobody sums: what is measured of a device.
struct ComputeModel {
  // From the traces of a run. Where several ranks were traced, a bucket that waited for the one before it
  // does not tell when its gradients were final, and is left out.
  static ComputeModel of(const StepTrace& trace);

  double forward_seconds = 0;   // of all micro-batches
  double before_seconds = 0;    // data, forward, backward of earlier micro-batches
  double backward_seconds = 0;  // the last one
  double after_seconds = 0;     // optimizer
  double rest_seconds = 0;      // between steps
  std::vector<double> factors;  // each traced step's time over the median, ascending

  GradientArrivals arrivals;  // in the last backward, of gradients as they were traced

  // The same on cores so much slower.
  ComputeModel slowed(double factor) const;

  double step_seconds() const { return before_seconds + backward_seconds + after_seconds + rest_seconds; }
};

// The cores that the ranks of a node share. Where more threads compute than there are cores, all of them take
// as many times as long; and of ranks that wait for each other, those that wait leave their cores to the
// others.
struct NodeCores {
  int threads_per_rank = 0;  // 0: ranks have devices of their own
  int cores = 0;             // 0: not known, enough

  double slowdown(int ranks_per_node) const;
};

// What a sum takes from compute while it is under way, in seconds of compute: a share of the time, as where
// both read a GPU's memory, and so much for each byte that the rank sends, as where its messages are copied
// and added on the cores that compute.
struct ComputeLoss {
  double per_second = 0;
  double per_byte = 0;

  double share_of(double seconds, double bytes) const;
};

struct StepModel {
  ComputeModel compute;  // of a rank that has its cores for itself
  NodeCores node;
  std::vector<std::size_t> bucket_bytes;  // the plan's, in the order they leave
  double bytes_factor = 1;                // of what is sent: 0.5 for gradients of half the width
  ComputeLoss loss;
  bool overlap = true;
  std::int64_t samples_per_rank = 1;  // of a step
};

struct StepPrediction {
  int ranks = 1;
  int nodes = 1;
  double seconds = 0;       // median
  double low_seconds = 0;   // one step in ten is faster
  double high_seconds = 0;  // one in ten is slower
  double exposed_seconds = 0;
  double sum_seconds = 0;  // all sums, hidden or not
  double samples_per_second = 0;
  double efficiency = 1;  // samples per second and rank over those of one rank alone
};
StepPrediction predict_step(const StepModel& model, const Cluster& cluster);

// At 1, 2, 4, .. ranks of a node, then at 1, 2, 4, .. nodes of it, up to those of the cluster.
std::vector<StepPrediction> predict_scaling(const StepModel& model, const Cluster& cluster);

// The number of ranks from which doubling them brings less than kWorthwhile times the samples per second;
// 0: none up to a million.
inline constexpr double kWorthwhile = 1.5;
int find_knee(const StepModel& model, const Cluster& cluster);

}  // namespace lockstep
