// SPDX-License-Identifier: Apache-2.0
//
// How busy a device is, and how near to what it could do: the first figures of a run.
#pragma once

#include "comm/communicator.h"
#include "core/timeline.h"
#include "launch/training.h"

namespace lockstep {

// The share of an account in which the device computed: forward, backward and optimizer, less the time for
// which a CPU's compute threads had no core (Backend::seconds_without_core). 0 of an empty account.
double busy_share(const StepAccount& account, double without_core_seconds);

// Samples per second that all ranks would train together if all products of matrices in the network, counted
// as direct convolution's, ran at the rate that each rank's device reaches now (Backend::measure_gigaflops),
// and all else took no time. Nothing where there are no such products, or a device has no room to measure.
// Collective; between steps.
std::optional<double> attainable_samples_per_second(Communicator& host, Training& training);

}  // namespace lockstep
