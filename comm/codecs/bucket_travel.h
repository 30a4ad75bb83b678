// SPDX-License-Identifier: Apache-2.0
//
// BucketTravel: what an exchange sends of a bucket, by the formulas of its codecs: for estimates of what
// another codec would take on a measured link. Pure arithmetic.
#pragma once

#include <span>
#include <vector>

#include "comm/codecs/codec_plan.h"

namespace lockstep {

struct BucketTravel {
  double bytes = 0;          // as the dense sum of so many bytes would send
  double round_trips = 0;    // sums that wait for each other
  double codec_seconds = 0;  // of this rank: encoding and decoding
};

// Of each bucket. seconds_per_element: by the assignment's choices, of what their codecs take
// (codec_speed.h). Choices without an estimate count as the dense sum.
std::vector<BucketTravel> travel_of(std::span<const Bucket> buckets, std::span<const Parameter> parameters,
                                    const CodecAssignment& assignment, int nodes,
                                    std::span<const double> seconds_per_element);

// About what an exchange that compresses so many elements holds on a rank beside the gradients, with buckets
// of this many. drivers: ranks of a node that share the codec's work.
struct CodecLoad {
  double elements = 0;
  double largest_bucket = 0;
  int nodes = 2;
  int drivers = 1;
};
std::size_t planned_codec_bytes(const ExchangeChoice& choice, const CodecLoad& load);

// Whether there is one of what it sends.
bool has_estimate(const ExchangeChoice& choice);

}  // namespace lockstep
