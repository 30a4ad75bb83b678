// SPDX-License-Identifier: Apache-2.0
//
// What a simulated plan says: the table of ranks, the knee, what to change, and what was assumed. As text for
// a person and as JSON.
#pragma once

#include <array>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "launch/plan/fit.h"
#include "launch/plan/step_model.h"

namespace lockstep {

// A change of the configuration, and the step with it.
struct PlanChange {
  std::string change;  // "comm.bucket_mib = [1, 8, 1]"
  StepPrediction step;
};

using BucketMib = std::array<double, 3>;
// The buckets of a step with these capacities.
using PlanBuckets = std::function<std::vector<std::size_t>(const BucketMib&)>;
// The best buckets of a few; gradients of 16 bits where they have more; both. Those that make the step
// shorter, the best one first.
std::vector<PlanChange> find_changes(const StepModel& model, const Cluster& cluster,
                                     const PlanBuckets& buckets, bool gradients_are_wide);

struct SimulationReport {
  StepModel model;
  Cluster cluster;
  std::vector<StepPrediction> rows;  // the last one is what was asked for
  int knee = 0;
  std::vector<PlanChange> changes;
  std::optional<AllReduceRun> largest_sum;  // between nodes, message by message
  std::optional<LinkFit> link;              // between nodes, where it was measured
  std::optional<TierFit> in_node;
  std::vector<std::string> from;  // where each constant comes from, a line each
};

// All that is in it follows from the model, the cluster and the buckets.
SimulationReport simulate(const StepModel& model, const Cluster& cluster, const PlanBuckets& buckets,
                          bool gradients_are_wide);

// Lines for a terminal.
std::vector<std::string> to_lines(const SimulationReport& report);
std::string to_json(const SimulationReport& report);

}  // namespace lockstep
