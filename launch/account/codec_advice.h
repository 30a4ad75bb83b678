// SPDX-License-Identifier: Apache-2.0
//
// What codecs would make of a training's gradients, for those who advise and plan.
#pragma once

#include <cstddef>
#include <functional>
#include <vector>

#include "comm/buckets.h"
#include "comm/world.h"
#include "launch/account/advice.h"

namespace lockstep {

// The codecs that comm.codec_limit allows, each for all of these buckets; measures once how fast they are on
// this machine, when it is asked first, and meets nobody. Null where there is nothing to advise: with one
// node, or where a codec is set. What is given outlives it.
std::function<std::vector<CodecAdvice>()> codecs_to_advise(const BucketOptions& options,
                                                           std::span<const Parameter> parameters,
                                                           std::span<const Bucket> buckets, Device device,
                                                           int nodes);

// What codecs of gradients with so many elements hold on a rank, about: the most of those that "auto" may
// choose.
std::size_t planned_codec_bytes(const BucketOptions& options, std::int64_t elements, const World& world);

}  // namespace lockstep
