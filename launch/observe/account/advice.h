// SPDX-License-Identifier: Apache-2.0
//
// Advice: why compute waits for communication, and the change with the largest estimated gain. A pure
// function of an epoch's sums. The gain is estimated with the model of overlap.h, in which each bucket takes
// alpha + beta * bytes. Alpha, beta and the moments at which gradients are final are measured.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "comm/codecs/bucket_travel.h"
#include "comm/gradients/sum_type.h"
#include "launch/train/clock/communication.h"

namespace lockstep {

// The change to make.
struct Advice {
  std::string cause;  // late_rank, slow_wire, last_bucket, first_bucket, no_core
  std::string text;   // complete sentences
  std::string key;    // configuration key; empty if no setting helps
  std::string value;
  double samples_per_second = 0;      // estimated, over all ranks
  std::string without_estimate = {};  // text without the estimated gain
};

// A possible value of comm.bucket_mib and the buckets that it makes.
struct BucketChoice {
  std::string value;  // for comm.bucket_mib
  std::vector<double> bucket_bytes;
};

// A value of comm.codec, and the traffic of each bucket with it.
struct CodecAdvice {
  std::string codec;
  std::vector<BucketTravel> travel;
};

struct AdviceContext {
  double step_seconds = 0;
  double samples_per_second = 0;
  bool on_gpu = false;
  int nodes = 1;
  int threads = 1;
  std::int64_t accumulation = 1;
  // The largest accumulation for which the dataset has samples.
  std::int64_t most_accumulation = std::numeric_limits<std::int64_t>::max();
  bool halves_are_fast = false;           // gradients are fp32, and 16 bits need no more compute
  SumType sum_type = SumType::automatic;  // comm.sum_type
  std::vector<BucketChoice> buckets;
  bool may_cross = false;      // comm.cross_barrier is allowed and not set
  double forward_seconds = 0;  // a step's first micro-batch; communication could overlap it
  // Returns the codecs to compare. Called only where the wire is slow. Null: compares none.
  std::function<std::vector<CodecAdvice>()> codecs = nullptr;
};

// Returns nothing for one rank, or where no rank waits for more than a twentieth of the step.
std::optional<Advice> advise(const EpochCommunication& epoch, const AdviceContext& context);

}  // namespace lockstep
