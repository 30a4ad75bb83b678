// SPDX-License-Identifier: Apache-2.0
//
// What `lockstep tune` tries: the keys of a configuration that change how fast it trains and not what. They
// are looked up by name in the table of keys: one that a build does not have is not tried.
#pragma once

#include <array>
#include <functional>
#include <string>
#include <vector>

#include "launch/config/config.h"
#include "launch/tune/search.h"

namespace lockstep {

// The dimension of the chart.
inline constexpr const char* kBucketSizeStage = "bucket size";

struct TuneSituation {
  int ranks = 1;
  int nodes = 1;
  bool gpu = false;
  int threads = 1;             // of a rank, as configured
  int cores = 1;               // a rank's share
  bool allow_inexact = false;  // also what gives other bits or another meaning
  // Names the buckets that such capacities, in MiB, make: equal for those that make the same ones.
  std::function<std::string(const std::array<double, 3>& bucket_mib)> buckets;
};

// First, middle and last capacity of the configuration with these settings.
std::array<double, 3> bucket_mib_of(const Config& config, const TuneSettings& settings);

// Only dimensions that make a difference here; each with the values that are not the configuration's.
std::vector<TuneStage> tune_stages(const Config& config, const Registry& registry,
                                   const TuneSituation& situation);

}  // namespace lockstep
