// SPDX-License-Identifier: Apache-2.0
//
// The dimensions of `lockstep tune`: keys of a configuration that change the speed of a training and not its
// result. A key that this build does not have is skipped.
#pragma once

#include <array>
#include <functional>
#include <string>
#include <vector>

#include "launch/program/config/config.h"
#include "launch/program/tune/search.h"

namespace lockstep {

// The dimension that bucket_chart() draws.
inline constexpr const char* kBucketSizeStage = "bucket size";

struct TuneSituation {
  int ranks = 1;
  int nodes = 1;
  bool gpu = false;
  int threads = 1;             // configured threads of a rank
  int cores = 1;               // share of a rank
  bool allow_inexact = false;  // also tries settings that change the result
  // Returns a name of the bucket plan for capacities in MiB; equal plans have equal names.
  std::function<std::string(const std::array<double, 3>& bucket_mib)> buckets;
};

// Capacity of the first, middle and last buckets in MiB, of the configuration with these settings.
std::array<double, 3> bucket_mib_of(const Config& config, const TuneSettings& settings);

// The dimensions that can matter in this situation, with the values that differ from the configuration's.
std::vector<TuneStage> tune_stages(const Config& config, const Registry& registry,
                                   const TuneSituation& situation);

}  // namespace lockstep
