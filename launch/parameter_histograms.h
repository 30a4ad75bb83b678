// SPDX-License-Identifier: Apache-2.0
//
// How the values of a network's parameters, and of their gradients, are distributed: a histogram of each, of
// equal buckets from the smallest value to the largest. Values that are not finite are left out, and a tensor
// that has no others. Memory of the device is read, and nothing changed.
#pragma once

#include <span>
#include <vector>

#include "core/stream.h"
#include "launch/run_files/event_record.h"
#include "models/network.h"

namespace lockstep {

// "weights/fc.weight". Waits for the stream.
std::vector<Histogram> weight_histograms(Network& network, Stream& stream);
// "gradients/fc.weight": of Parameter::gradient, which was multiplied by the loss scale. Waits for the
// stream.
std::vector<Histogram> gradient_histograms(Network& network, Stream& stream, double loss_scale);

// Of values that were multiplied by the scale.
Histogram histogram_of(std::string tag, std::span<const float> values, double scale = 1);

}  // namespace lockstep
