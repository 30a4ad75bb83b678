// SPDX-License-Identifier: Apache-2.0
//
// Derives the engine's options from a Config: adds settings that several parts use, and what depends on the
// device.
#pragma once

#include "launch/program/config/config.h"

namespace lockstep {

// For training; evaluation does not accumulate, and pads.
LoaderOptions loader_options(const Config& config, Device device);
// Without KernelChoices.
NetworkOptions network_options(const Config& config, Device device);
BucketOptions bucket_options(const Config& config, const Registry& registry = {});
// Throws ConfigError if the device cannot run comm.topology or comm.exchange.
void require_features_on(const Config& config, Device device);
// LossScaleOptions{} unless the precision is fp16.
LossScaleOptions loss_scale_options(const Config& config);
TrainerOptions trainer_options(const Config& config);

}  // namespace lockstep
