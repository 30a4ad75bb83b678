// SPDX-License-Identifier: Apache-2.0
//
// The report of a simulated plan: a table of predicted steps by ranks, the knee, worthwhile changes and the
// source of each constant. Formats it as text and as JSON.
#pragma once

#include <array>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "launch/program/plan/fit.h"
#include "launch/program/plan/step_model.h"

namespace lockstep {

// A change of the configuration, and the predicted step with it.
struct PlanChange {
  std::string change;  // "comm.bucket_mib = [1, 8, 1]"
  StepPrediction step;
};

// Capacity of the first, the middle and the last buckets.
using BucketMib = std::array<double, 3>;
// Returns the buckets for these capacities.
using PlanBuckets = std::function<std::vector<PlannedBucket>(const BucketMib&)>;

// NCCL's predicted all-reduce of the largest bucket.
struct NcclSum {
  int ranks = 1;
  int nodes = 1;
  double bytes = 0;
  NcclAllReduce all_reduce;
};

struct SimulationReport {
  StepModel model;
  Cluster cluster;
  std::vector<StepPrediction> rows;  // the last one is of the whole cluster
  int knee = 0;
  std::vector<PlanChange> changes;          // those that shorten the step by more than 0.5 %, the best first
  std::optional<AllReduceRun> largest_sum;  // of the largest bucket, between nodes; nullopt with NCCL
  std::vector<NcclSum> nccl_sums;           // for each row of several ranks; empty without NCCL
  std::optional<LinkFit> link;              // between nodes; nullopt: not measured
  std::optional<TierFit> in_node;
  std::vector<std::string> from;  // the source of each constant, a line each
};

// Tries a grid of bucket capacities, and, where gradients_are_wide, 16-bit gradients and both: all gradients
// are then fp32, and fp16 would be sent as fp16. Deterministic: depends on the arguments only. Does not set
// link, in_node and from.
SimulationReport simulate(const StepModel& model, const Cluster& cluster, const PlanBuckets& buckets,
                          bool gradients_are_wide);

// Lines for a terminal.
std::vector<std::string> to_lines(const SimulationReport& report);
std::string to_json(const SimulationReport& report);

}  // namespace lockstep
