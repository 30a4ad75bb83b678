// SPDX-License-Identifier: Apache-2.0
//
// Defaults that depend on the network and the batch: a learning rate that suits one can make another diverge.
#pragma once

#include "launch/program/config/config.h"

namespace lockstep {

// A safe learning rate for the network: proportional to a rank's samples per step for sgd (Goyal et al.,
// "Accurate, Large Minibatch SGD", 2017, section 2.1), to their square root for adamw and lars, and never
// above the rate for 256 samples. More ranks do not raise it, which is the safe choice; nor do more
// micro-batches with train.reproducible, which must give equal results for ranks and micro-batches. The
// tables of optimizers and networks hold the rates.
double gentle_learning_rate(const Config& config, const Registry& registry);

// Epochs of warm-up for that rate: 1, or 0.5 of a single epoch.
double gentle_warmup_epochs(const Config& config);

}  // namespace lockstep
