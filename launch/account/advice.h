// SPDX-License-Identifier: Apache-2.0
//
// Advice: why compute waits for communication, and the change that is estimated to gain most. A pure function
// over an epoch's sums. What a change gains is estimated by the model of overlap.h, in which each bucket
// takes alpha + beta * bytes; when gradients are final, alpha and beta are measured.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "comm/codecs/bucket_travel.h"
#include "launch/account/communication.h"
#include "launch/account/overlap.h"

namespace lockstep {

// The ledger's step as the model has it, in seconds.
class WaitModel {
 public:
  // steps > 0. common_wait: of an epoch; what each rank waits for the others in collectives is the wire's.
  WaitModel(const LedgerSums& sums, std::span<const double> bucket_bytes, double common_wait);

  // How long compute waits, with buckets of these bytes, which are all of them, on a wire that carries this
  // many times as much as the measured one.
  double exposed(std::span<const double> bucket_bytes, double wire_speed = 1) const;
  // Backward, and what is exposed behind it, where the measured buckets travel in another way: the bytes that
  // the model was made with are those of one round trip. Codecs take cores from backward: as if none were
  // free.
  OverlappedBackward with(std::span<const BucketTravel> travel) const;
  // From now on with() knows that what travels beside backward takes this share of compute, too.
  void take_from_compute(double share) { taken_share_ = share; }
  double wire_seconds(double bytes) const { return alpha_ + beta_ * bytes; }
  // How long backward goes on when gradients up to this byte are final.
  double lead(double bytes) const { return backward_ - arrivals_.final_seconds(bytes); }

 private:
  double backward_ = 0;
  GradientArrivals arrivals_;
  std::vector<double> final_seconds_;  // of the measured buckets
  double alpha_ = 0;
  double beta_ = 0;  // seconds per byte
  double late_ = 0;  // before the first bucket travels
  double taken_share_ = 0;
};

// A value that the configuration may have, and what buckets would be.
struct BucketChoice {
  std::string value;  // of comm.bucket_mib
  std::vector<double> bucket_bytes;
};

// comm.codec, and what would travel of each bucket.
struct CodecAdvice {
  std::string codec;
  std::vector<BucketTravel> travel;
};

struct AdviceContext {
  double step_seconds = 0;
  double samples_per_second = 0;
  int nodes = 1;
  int threads = 1;
  std::int64_t accumulation = 1;
  bool halves_are_fast = false;  // and gradients are fp32: 16 bits take half the wire and no more compute
  std::vector<BucketChoice> buckets;
  bool may_cross = false;      // comm.cross_barrier may be set, and is not
  double forward_seconds = 0;  // of a step's first micro-batch: what gradients could then travel beside
  // Asked where the wire is slow: codecs that may be advised. Null: none.
  std::function<std::vector<CodecAdvice>()> codecs = nullptr;
};

// Nothing where no rank waits for more than a twentieth of the step.
std::optional<Advice> advise(const EpochCommunication& epoch, const AdviceContext& context);

}  // namespace lockstep
