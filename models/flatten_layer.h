// SPDX-License-Identifier: Apache-2.0
//
// Layers of a Network whose output is a matrix of their input's elements: flatten, [N, C, H, W] as
// [N, C * H * W], and the pixels of an image as rows, [N * H * W, C]. An input that already is in this order
// is not copied.
#pragma once

#include <memory>

#include "models/planned_layer.h"

namespace lockstep {

std::unique_ptr<PlannedLayer> plan_flatten(Backend& backend, const Layout& input);
std::unique_ptr<PlannedLayer> plan_pixels(Backend& backend, const Layout& input);

}  // namespace lockstep
