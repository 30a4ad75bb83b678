// SPDX-License-Identifier: Apache-2.0
//
// What a Config tells each part of the engine, where its section is not that part's options already: keys in
// other units, keys that several parts share, and what depends on the device.
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
#include "models/optimizer.h"
#include "models/schedule.h"

namespace lockstep {

DatasetOptions dataset_options(const Config& config);
// local: this rank among those of its node; each node verifies its own copy of the dataset, its ranks a share
// each.
VerifyOptions verify_options(const Config& config, Shard local, int threads);
// To train; evaluation has no accumulation and pads.
LoaderOptions loader_options(const Config& config, Device device);
// Without KernelChoices.
NetworkOptions network_options(const Config& config, Device device);
KernelChoices kernel_choices(const Config& config);
// Empty: choices are not kept.
std::filesystem::path kernel_cache_folder(const Config& config);
BucketOptions bucket_options(const Config& config);
DeviceCommunicatorOptions device_communicator_options(const Config& config, bool shared);
LossScaleOptions loss_scale_options(const Config& config);
// total_steps: of all epochs.
Schedule schedule_of(const Config& config, std::int64_t total_steps);

}  // namespace lockstep
