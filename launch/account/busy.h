// SPDX-License-Identifier: Apache-2.0
//
// How busy a device is, and how near to what it could do: the first figures of a run.
#pragma once

#include <functional>
#include <optional>

#include "comm/communicator.h"
#include "core/timeline.h"
#include "launch/training.h"
#include "models/compute_roof.h"

namespace lockstep {

// The share of an account in which the device computed: forward, backward and optimizer, less the time for
// which a CPU's compute threads had no core (Backend::seconds_without_core). 0 of an empty account.
double busy_share(const StepAccount& account, double without_core_seconds);

struct Attainable {
  // That all ranks would train together if all products of matrices in the network, counted as direct
  // convolution's, ran at the rate that each rank's device reaches now, and all else took no time.
  double samples_per_second = 0;
  double gigaflops = 0;  // this rank's rate (Backend::measure_gigaflops)
};

// Nothing where there are no such products, or a device has no room to measure. Collective; between steps.
std::optional<Attainable> measure_attainable(Communicator& host, Training& training);

// Measures the memory's rate the first time it is asked, which takes a tenth of a second, and says nothing
// where there is no room for that. Both outlive it.
std::function<std::optional<ComputeRoof>()> roof_of(Training& training, double gigaflops);

}  // namespace lockstep
