// SPDX-License-Identifier: Apache-2.0
//
// How busy a device is, and how close it is to its attainable rate: the first figures of a run.
#pragma once

#include <algorithm>
#include <functional>
#include <optional>

#include "comm/communicator.h"
#include "core/timeline.h"
#include "models/compute_roof.h"
#include "models/graph.h"
#include "models/network.h"

namespace lockstep {

// Share of the account in which the device computes: forward, backward and optimizer, less the time for which
// a CPU's compute threads waited for a core meanwhile (Trainer::compute_without_core()). 0 for an empty
// account.
double busy_share(const StepAccount& account, double without_core_seconds);

struct Attainable {
  // Rate of all ranks together if every matrix product that the network's kernels execute ran at the rate
  // measured now on each rank's device, and all else took no time.
  double samples_per_second = 0;
  double gigaflops = 0;  // this rank's rate (Backend::measure_gigaflops)
};

// A rate over the attainable one, at most 1: a peak that was measured beside other processes is too low.
inline double peak_share(double samples_per_second, double attainable) {
  return std::min(samples_per_second / attainable, 1.0);
}

// Returns nothing if the network has no matrix products, or if a device cannot be measured, for lack of
// memory for example. Collective; call it between steps.
std::optional<Attainable> measure_attainable(Communicator& host, const Graph& graph, Network& network);

// The returned function measures the memory bandwidth in its first call, which takes about 0.1 s. It returns
// nothing if that fails, for lack of memory for example. Graph and network outlive it.
std::function<std::optional<ComputeRoof>()> roof_of(const Graph& graph, Network& network, double gigaflops);

}  // namespace lockstep
