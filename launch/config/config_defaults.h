// SPDX-License-Identifier: Apache-2.0
//
// Defaults that depend on what is trained: a rate that suits one network and batch destroys another.
#pragma once

#include "launch/config/config.h"

namespace lockstep {

// A learning rate that trains the network without care: in proportion to a rank's samples per step for sgd
// (Goyal et al., "Accurate, Large Minibatch SGD", 2017, section 2.1), to their square root for adamw and
// lars, and never above the rate for 256. More ranks leave it as it is, which is the safe side; so do
// more micro-batches with train.reproducible, which must not tell the two apart. The tables of
// optimizers and networks say which rate that is.
double gentle_learning_rate(const Config& config, const Registry& registry);

// Epochs of warm-up before it: 1, or half of all where there is only one.
double gentle_warmup_epochs(const Config& config);

}  // namespace lockstep
