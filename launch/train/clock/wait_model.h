// SPDX-License-Identifier: Apache-2.0
//
// WaitModel: how long compute waits for the communication of a step, by the model of overlap.h, in which each
// bucket takes alpha + beta * bytes. Alpha, beta and the moments at which gradients are final are measured.
#pragma once

#include <span>
#include <vector>

#include "comm/codecs/bucket_travel.h"
#include "launch/train/clock/ledger.h"
#include "launch/train/clock/overlap.h"

namespace lockstep {

// Model of the ledger's mean step, in seconds.
class WaitModel {
 public:
  // sums.steps > 0. common_wait: the least time of the epoch that any rank waits in collectives for its
  // peers; it counts as wire time.
  WaitModel(const LedgerSums& sums, std::span<const double> bucket_bytes, double common_wait);

  // Time that compute waits with buckets of these sizes, which together are all gradients, on a wire with
  // `wire_speed` times the measured bandwidth.
  double exposed(std::span<const double> bucket_bytes, double wire_speed = 1) const;
  // Backward time and exposed communication when each measured bucket travels as `travel` says (one entry per
  // measured bucket). The measured case is one round trip of the bucket's bytes. Codecs slow down backward as
  // if no other core were free.
  OverlappedBackward with(std::span<const BucketTravel> travel) const;
  // From now on with() assumes that communication beside backward also takes this share of compute.
  void take_from_compute(double share) { taken_share_ = share; }

 private:
  double backward_ = 0;
  GradientArrivals arrivals_;
  std::vector<double> final_seconds_;  // of the measured buckets
  double alpha_ = 0;
  double beta_ = 0;  // seconds per byte
  double late_ = 0;  // lateness of peers, added to the first bucket
  double taken_share_ = 0;
};

}  // namespace lockstep
