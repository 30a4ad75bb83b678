// SPDX-License-Identifier: Apache-2.0
//
// Derives the engine's options from a Config: adds settings that several parts use, and what depends on the
// device.
#pragma once

#include <string_view>
#include <vector>

#include "launch/program/config/config.h"

namespace lockstep {

// For training; evaluation does not accumulate, and pads.
LoaderOptions loader_options(const Config& config, Device device);
// Without KernelChoices.
NetworkOptions network_options(const Config& config, Device device);
BucketOptions bucket_options(const Config& config, const Registry& registry = {});
// LossScaleOptions{} unless the precision is fp16.
LossScaleOptions loss_scale_options(const Config& config);
TrainerOptions trainer_options(const Config& config);
// Settings that comm.cross_barrier requires and this configuration lacks, each with the reason; empty: none.
std::vector<std::string_view> cross_barrier_needs(const Config& config);

}  // namespace lockstep
