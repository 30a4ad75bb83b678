// SPDX-License-Identifier: Apache-2.0
//
// Candidate values of comm.bucket_mib for a network's gradients. advise() compares them.
#pragma once

#include <span>
#include <vector>

#include "core/tensor/parameter.h"
#include "launch/observe/account/advice.h"

namespace lockstep {

// Middle buckets hold 1/2 to 1/32 of all gradients; first and last buckets have the same size or less.
// weight_type: in which the sums of weights are sent (GradientBuckets::sent_type()).
std::vector<BucketChoice> bucket_choices(std::span<const Parameter> parameters, DType weight_type, int ranks);

}  // namespace lockstep
