// SPDX-License-Identifier: Apache-2.0
//
// Finds a batch by measurement, agreed over ranks: `lockstep find-batch`, and `train.batch = "auto"`. Nothing
// of it is left behind but kernel choices of the machine: a training afterwards is, bit for bit, what it is
// without.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "comm/world.h"
#include "launch/config/config.h"
#include "launch/find_batch/batch_search.h"
#include "launch/find_batch/noise_scale.h"
#include "launch/find_batch/recommendation.h"

namespace lockstep {

// Where the configuration names none.
inline constexpr std::int64_t kFirstBatch = 32;

struct FindBatchOptions {
  double seconds = 45;   // about, for all of it
  bool confirms = true;  // measures once more what is recommended
  bool proves_most = true;
  bool measures_noise = true;
  RateScaling scaling = RateScaling::linear;
};

struct FoundBatch {
  AsConfigured configured;
  std::vector<BatchFigure> figures;  // by batch
  std::int64_t multiple = 1;         // suits the kernels of all ranks
  std::int64_t most = 0;      // that fits by plan and dataset, and was not short of memory where it was run
  std::int64_t most_run = 0;  // the largest that was run; less than that where it would have taken too long
  std::string most_problem = {};  // what was short in the run of a larger one
  NoiseScale noise;
  BatchRecommendation recommended;
  double ratio =
      1;  // of samples per second to those as configured, measured once more; 1 where nothing changes
  double seconds = 0;
};

// Told of what is done, on every rank.
struct FindBatchTeller {
  std::function<void(const std::string& what, double seconds)> begins =
      {};  // and how long it has taken so far
  std::function<void(const BatchFigure& figure)> measured = {};
};

// Collective. Ranks agree over `control`. Throws agreed errors: a MemoryError where not even the smallest
// batch has room, and what Training throws.
FoundBatch find_batch(World& world, Communicator& control, const Config& config, const Registry& registry,
                      const FindBatchOptions& options, const FindBatchTeller& teller = {});

}  // namespace lockstep
