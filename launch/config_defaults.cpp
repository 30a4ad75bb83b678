// SPDX-License-Identifier: Apache-2.0
#include "launch/config_defaults.h"

#include <algorithm>
#include <cmath>
#include <string>

#include <fmt/format.h>

namespace lockstep {
namespace {

constexpr double kReferenceBatch = 256;  // of the rates below

struct Rates {
  double sgd;
  double adamw;
  double lars;
};

// Few layers bear twice as much.
Rates reference_rates(const std::string& network) {
  if (network == "mlp" || network == "cnn") return {.sgd = 0.2, .adamw = 2e-3, .lars = 2};
  return {.sgd = 0.1, .adamw = 1e-3, .lars = 1};
}

// As people would write it.
double two_digits(double value) { return std::stod(fmt::format("{:.1e}", value)); }

}  // namespace

double gentle_learning_rate(const Config& config) {
  const double samples = static_cast<double>(config.train.batch * config.train.accumulation);
  const double share = std::min(samples / kReferenceBatch, 1.0);
  const Rates rates = reference_rates(config.model.name);
  if (config.optimizer.name == "adamw") return two_digits(rates.adamw * std::sqrt(share));
  if (config.optimizer.name == "lars") return two_digits(rates.lars * std::sqrt(share));
  return two_digits(rates.sgd * share);
}

double gentle_warmup_epochs(const Config& config) { return config.train.epochs > 1 ? 1 : 0.5; }

}  // namespace lockstep
