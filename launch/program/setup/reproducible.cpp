// SPDX-License-Identifier: Apache-2.0
#include "launch/program/setup/reproducible.h"

#include <fmt/format.h>

#include "comm/gradients/pending_sums.h"
#include "core/error.h"
#include "core/log.h"

namespace lockstep {

void make_reproducible(Config& config, Device device, int ranks) {
  if (!config.reproducible) return;
  if (device.kind != DeviceKind::cpu) {
    throw ConfigError(fmt::format(
        "train.reproducible = true: on {} NCCL adds up ranks, in an order of its own that depends "
        "on how many there are; set world.device = \"cpu\", or train.reproducible = false",
        to_string(device)));
  }
  if (!make_up_a_subtree(config.loader.accumulation, ranks)) {
    throw ConfigError(fmt::format(
        "train.reproducible = true: {} ranks with train.accumulation = {} cannot add up micro-batches "
        "along one tree; with more than one rank train.accumulation must be a power of two",
        ranks, config.loader.accumulation));
  }
  if (config.threads == 0) {
    config.threads = 1;
    log::info("train.threads = 0: 1 thread per rank, because their number changes bits (train.reproducible)");
  }
  if (config.kernels.choose == "time") {
    config.kernels.choose = "direct";
    log::info(
        "kernels.choose = \"time\": direct kernels, because the choice changes bits (train.reproducible)");
  }
}

}  // namespace lockstep
