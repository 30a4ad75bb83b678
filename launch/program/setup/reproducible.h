// SPDX-License-Identifier: Apache-2.0
//
// Requirements of train.reproducible besides sums along one tree (comm/gradients/micro_batch_sums.h,
// step_statistics.h): a number of micro-batches per rank that fits the tree, and kernels that give the same
// bits on any machine.
#pragma once

#include "core/device.h"
#include "launch/program/config/config.h"

namespace lockstep {

// With train.reproducible: throws ConfigError if this number of ranks on this device cannot be reproducible.
// Replaces settings that depend on the machine (train.threads = 0, kernels.choose = "time") by fixed ones,
// and logs that.
void make_reproducible(Config& config, Device device, int ranks);

}  // namespace lockstep
