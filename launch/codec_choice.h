// SPDX-License-Identifier: Apache-2.0
//
// Which codec pays for which bucket, by the model of what backward hides (launch/account/overlap.h) on a link
// that was measured. Pure.
#pragma once

#include <span>
#include <vector>

#include "comm/codecs/bucket_travel.h"
#include "launch/account/advice.h"

namespace lockstep {

struct CodecChoice {
  std::vector<int> by_bucket;  // a number each
  double seconds = 0;          // of backward and of what is exposed behind it
};

// ways: by number, of each bucket; 0 is the dense sum, and those that lose more stand behind. Of all that is
// as fast but for `negligible` seconds, what loses least.
CodecChoice choose_codecs(const WaitModel& model, std::span<const std::vector<BucketTravel>> ways,
                          double negligible);

}  // namespace lockstep
