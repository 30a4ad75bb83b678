// SPDX-License-Identifier: Apache-2.0
//
// Effect of codecs on a training's gradients, for advice and plans.
#pragma once

#include <cstddef>
#include <functional>
#include <vector>

#include "comm/gradients/buckets.h"
#include "comm/world.h"
#include "launch/observe/account/advice.h"

namespace lockstep {

// Returns a function that lists the codecs allowed by comm.codec_limit, each applied to all buckets. Its
// first call measures their speed on this machine, without a collective call. Null if there is nothing to
// advise: with one node, or where a codec is set. parameters and buckets outlive it. weight_type: as in
// travel_of().
std::function<std::vector<CodecAdvice>()> codecs_to_advise(const BucketOptions& options,
                                                           std::span<const Parameter> parameters,
                                                           std::span<const Bucket> buckets, DType weight_type,
                                                           Device device, int nodes);

// Estimated bytes that codecs hold on a rank for gradients of this many elements; for "auto", the most of its
// candidates.
std::size_t planned_codec_bytes(const BucketOptions& options, std::int64_t elements, const World& world);

}  // namespace lockstep
