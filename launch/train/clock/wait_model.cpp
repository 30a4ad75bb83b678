// SPDX-License-Identifier: Apache-2.0
#include "launch/train/clock/wait_model.h"

#include <algorithm>

#include "core/error.h"
#include "launch/train/clock/least_squares.h"

namespace lockstep {

WaitModel::WaitModel(const LedgerSums& sums, std::span<const double> bucket_bytes, double common_wait) {
  const double steps = static_cast<double>(sums.steps);
  const double waited_each = common_wait / static_cast<double>(std::max<std::size_t>(1, bucket_bytes.size()));
  backward_ = sums.backward / steps;
  std::vector<FitEquation> sums_by_bytes;
  double late = 0, bytes = 0;
  for (std::size_t i = 0; i < bucket_bytes.size(); ++i) {
    const BucketSums& bucket = sums.buckets[i];
    bytes += bucket_bytes[i];
    arrivals_.add(bytes, backward_ - bucket.lead / steps);
    final_seconds_.push_back(arrivals_.final_seconds(bytes));
    sums_by_bytes.push_back({.terms = {1, bucket_bytes[i]}, .value = (bucket.wire + waited_each) / steps});
    late += bucket.late / steps;
  }
  // Buckets of one size do not determine alpha: beta then takes all of the time.
  constexpr FitTermSet kAlpha = 1, kBeta = 2;
  constexpr FitTermSet kSets[] = {kAlpha | kBeta, kBeta, kAlpha};
  const FitTerms line = fit_terms(sums_by_bytes, kSets).value_or(FitTerms());
  alpha_ = line[0];
  beta_ = line[1];
  late_ = std::max(0.0, late - common_wait / steps);
}

double WaitModel::exposed(std::span<const double> bucket_bytes, double wire_speed) const {
  std::vector<BucketInBackward> buckets;
  double bytes = 0;
  for (const double bucket : bucket_bytes) {
    bytes += bucket;
    buckets.push_back({.final_seconds = arrivals_.final_seconds(bytes),
                       .sum_seconds = alpha_ + beta_ * bucket / wire_speed});
  }
  if (!buckets.empty()) buckets.front().sum_seconds += late_;
  return overlap_backward(buckets, backward_).exposed_seconds;
}

OverlappedBackward WaitModel::with(std::span<const BucketTravel> travel) const {
  CHECK(travel.size() == final_seconds_.size(), "{} buckets, the model has {}", travel.size(),
        final_seconds_.size());
  constexpr double kMostLost = 0.95;
  std::vector<BucketInBackward> buckets;
  for (std::size_t i = 0; i < travel.size(); ++i) {
    const BucketTravel& each = travel[i];
    const double sum = alpha_ * each.round_trips + beta_ * each.bytes + each.codec_seconds;
    const double taken = each.codec_seconds + taken_share_ * (sum - each.codec_seconds);
    buckets.push_back({.final_seconds = final_seconds_[i],
                       .sum_seconds = sum,
                       .lost_share = sum > 0 ? std::min(kMostLost, taken / sum) : 0});
  }
  if (!buckets.empty()) buckets.front().sum_seconds += late_;
  return overlap_backward(buckets, backward_);
}

}  // namespace lockstep
