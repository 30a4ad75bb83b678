// SPDX-License-Identifier: Apache-2.0
//
// What train.reproducible asks for beside sums along one tree (comm/micro_batch_sums.h, step_statistics.h): a
// dealing of micro-batches that the tree has, and kernels that give the same bits wherever they run.
#pragma once

#include "core/device.h"
#include "launch/config/config.h"

namespace lockstep {

// Where train.reproducible is set: throws ConfigError where so many ranks on this device cannot keep its
// promise; sets what was left to the machine (train.threads = 0, kernels.choose = "time") to what is the same
// everywhere, and says so in the log.
void make_reproducible(Config& config, Device device, int ranks);

}  // namespace lockstep
