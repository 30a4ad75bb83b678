// SPDX-License-Identifier: Apache-2.0
//
// What parts of the engine are told beyond the options that Config holds for each: what a person says once
// and several parts heed, and what depends on the device.
#pragma once

#include <string_view>
#include <vector>

#include "launch/config/config.h"

namespace lockstep {

// To train; evaluation has no accumulation and pads.
LoaderOptions loader_options(const Config& config, Device device);
// Without KernelChoices.
NetworkOptions network_options(const Config& config, Device device);
BucketOptions bucket_options(const Config& config, const Registry& registry = {});
// None but in fp16.
LossScaleOptions loss_scale_options(const Config& config);
TrainerOptions trainer_options(const Config& config);
// With which other keys, and why, comm.cross_barrier is allowed alone; empty where it is.
std::vector<std::string_view> cross_barrier_needs(const Config& config);

}  // namespace lockstep
