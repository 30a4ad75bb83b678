// SPDX-License-Identifier: Apache-2.0
//
// Histograms of each parameter and gradient tensor, with equal buckets from the smallest value to the
// largest. They omit values that are not finite, and tensors without finite values. Device memory is only
// read.
#pragma once

#include <span>
#include <vector>

#include "core/stream.h"
#include "launch/observe/tensorboard/event_record.h"
#include "models/network.h"

namespace lockstep {

// "weights/fc.weight". Waits for the stream.
std::vector<Histogram> weight_histograms(Network& network, Stream& stream);
// "gradients/fc.weight", of Parameter::gradient divided by the loss scale. Waits for the stream.
std::vector<Histogram> gradient_histograms(Network& network, Stream& stream, double loss_scale);

// The histogram of values / scale.
Histogram histogram_of(std::string tag, std::span<const float> values, double scale = 1);

}  // namespace lockstep
