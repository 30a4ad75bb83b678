// SPDX-License-Identifier: Apache-2.0
//
// What a Config tells each part of the engine. The only place where keys become options.
#pragma once

#include <cstdint>
#include <filesystem>

#include "comm/buckets.h"
#include "comm/world.h"
#include "data/batch_loader.h"
#include "data/dataset.h"
#include "data/verify.h"
#include "kernels/kernel_choices.h"
#include "launch/config.h"
#include "models/network.h"
#include "models/networks/networks.h"
#include "models/optimizer.h"
#include "models/schedule.h"

namespace lockstep {

DatasetOptions dataset_options(const Config& config);
// local: this rank among those of its node; each node verifies its own copy of the dataset, its ranks a share
// each.
VerifyOptions verify_options(const Config& config, Shard local, int threads);
// To train; evaluation has no accumulation and pads.
LoaderOptions loader_options(const Config& config, Device device);
NetworkChoice network_choice(const Config& config);
// Without KernelChoices.
NetworkOptions network_options(const Config& config, Device device);
KernelChoices kernel_choices(const Config& config);
// Empty: choices are not kept.
std::filesystem::path kernel_cache_folder(const Config& config);
BucketOptions bucket_options(const Config& config);
DeviceCommunicatorOptions device_communicator_options(const Config& config, bool shared);
OptimizerOptions optimizer_options(const Config& config);
LossScaleOptions loss_scale_options(const Config& config);
// total_steps: of all epochs.
Schedule schedule_of(const Config& config, std::int64_t total_steps);

}  // namespace lockstep
