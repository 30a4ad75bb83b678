// SPDX-License-Identifier: Apache-2.0
//
// Chooses a codec per bucket, by the model of what backward hides (launch/train/clock/overlap.h) on a
// measured link. Pure.
#pragma once

#include <span>
#include <vector>

#include "comm/codecs/bucket_travel.h"
#include "launch/train/clock/wait_model.h"

namespace lockstep {

struct CodecChoice {
  std::vector<int> by_bucket;  // codec number of each bucket
  double seconds = 0;          // backward and the communication exposed after it
};

// ways[codec][bucket]; codec 0 is the dense sum, and codecs are in order of increasing loss. Returns the
// least lossy choice that takes at most `negligible` seconds more than the fastest one found.
CodecChoice choose_codecs(const WaitModel& model, std::span<const std::vector<BucketTravel>> ways,
                          double negligible);

}  // namespace lockstep
