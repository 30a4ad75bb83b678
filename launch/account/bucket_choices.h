// SPDX-License-Identifier: Apache-2.0
//
// What comm.bucket_mib could be told for a network's gradients, for advice to choose from.
#pragma once

#include <span>
#include <vector>

#include "core/parameter.h"
#include "launch/account/advice.h"

namespace lockstep {

// Buckets from half of all gradients down to a thirty-second, with smaller first and last ones.
std::vector<BucketChoice> bucket_choices(std::span<const Parameter> parameters, int ranks);

}  // namespace lockstep
