// SPDX-License-Identifier: Apache-2.0
//
// BucketTravel: what an exchange sends of a bucket, by the formulas of its codecs, to estimate the time of
// another codec on a measured link. Pure arithmetic.
#pragma once

#include <span>
#include <vector>

#include "comm/codecs/codec_plan.h"

namespace lockstep {

struct BucketTravel {
  double bytes = 0;          // size of a dense sum with the same traffic
  double round_trips = 0;    // sums that depend on each other
  double codec_seconds = 0;  // encoding and decoding on this rank
};

// The travel of each bucket. weight_type: in which dense sums of weights are sent
// (GradientBuckets::sent_type()). seconds_per_element: codec time of each of the assignment's choices
// (codec_speed.h). Choices without an estimate count as the dense sum.
std::vector<BucketTravel> travel_of(std::span<const Bucket> buckets, std::span<const Parameter> parameters,
                                    DType weight_type, const CodecAssignment& assignment, int nodes,
                                    std::span<const double> seconds_per_element);

// The load of a codec exchange, in compressed elements; drivers: ranks of a node that share the codec's work.
// planned_codec_bytes() estimates its memory on a rank, beside the gradients.
struct CodecLoad {
  double elements = 0;
  double largest_bucket = 0;
  int nodes = 2;
  int drivers = 1;
};
std::size_t planned_codec_bytes(const ExchangeChoice& choice, const CodecLoad& load);

// True if its codec has a formula for what it sends.
bool has_estimate(const ExchangeChoice& choice);

}  // namespace lockstep
