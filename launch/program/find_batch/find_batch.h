// SPDX-License-Identifier: Apache-2.0
//
// Finds a batch by measurement, agreed over ranks: `lockstep find-batch`, and `train.batch = "auto"`. It
// keeps only the kernel choices of the machine: a training afterwards is bit for bit the same as without it.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "comm/world.h"
#include "launch/program/config/config.h"
#include "launch/program/find_batch/batch_search.h"
#include "launch/program/find_batch/noise_scale.h"
#include "launch/program/find_batch/recommendation.h"

namespace lockstep {

// The first batch if the configuration names none.
inline constexpr std::int64_t kFirstBatch = 32;

struct FindBatchOptions {
  double seconds = 45;        // total time budget, approximate
  bool only_figures = false;  // no gradient noise, no recommendation, no run of the largest batch
  bool automatic = false;     // train.batch = "auto": the configuration's batch is kFirstBatch
  RateScaling scaling = RateScaling::linear;
};

struct FoundBatch {
  AsConfigured configured;
  std::vector<BatchFigure> figures;  // ascending by batch
  std::int64_t multiple = 1;         // suits the kernels of all ranks
  std::int64_t most = 0;      // the largest that fits by memory plan, dataset and the batches that were run
  std::int64_t most_run = 0;  // the largest that was run; below `most` if that would take too long
  std::string most_problem = {};  // the shortage when a larger one was run
  NoiseScale noise;
  BatchRecommendation recommended;
  // Samples per second over those as configured, measured again; 1 if nothing changes or no batch is
  // configured.
  double ratio = 1;
  double seconds = 0;
};

// Progress callbacks, called on every rank.
struct FindBatchTeller {
  std::function<void(const std::string& what, double seconds)> begins = {};  // seconds: since the start
  std::function<void(const BatchFigure& figure)> measured = {};
};

// Collective. Ranks agree over `control`. Throws agreed errors: a MemoryError if no tried batch can be
// trained, and what TrainingSetup throws.
FoundBatch find_batch(World& world, Communicator& control, const Config& config, const Registry& registry,
                      const FindBatchOptions& options, const FindBatchTeller& teller);

}  // namespace lockstep
