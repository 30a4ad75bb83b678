// SPDX-License-Identifier: Apache-2.0
#include "launch/program/config/config_defaults.h"

#include <algorithm>
#include <string>

#include <fmt/format.h>

namespace lockstep {

double gentle_learning_rate(const Config& config, const Registry& registry) {
  const std::int64_t micro_batches = config.reproducible ? 1 : config.loader.accumulation;
  // A batch that is not found yet counts as 1, the safe choice.
  const double samples = static_cast<double>(std::max<std::int64_t>(1, config.loader.batch) * micro_batches);
  const double few_layers = find_network(registry.networks, config.model.name).shallow ? 2 : 1;
  const double rate =
      few_layers * optimizer_kind(config.optimizer.name, registry.optimizers).gentle_rate.of(samples);
  return std::stod(fmt::format("{:.1e}", rate));  // two significant digits
}

double gentle_warmup_epochs(const Config& config) { return config.trainer.epochs > 1 ? 1 : 0.5; }

}  // namespace lockstep
