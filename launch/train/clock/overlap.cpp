// SPDX-License-Identifier: Apache-2.0
#include "launch/train/clock/overlap.h"

#include <algorithm>

#include "core/error.h"

namespace lockstep {
namespace {

// Compute, which runs slower during sums.
class Backward {
 public:
  // Advances to the moment at which `done` seconds of compute are done.
  void compute_until(double done) {
    double left = std::max(0.0, done - done_);
    for (; left > 0 && next_ < sums_.size(); ++next_) {
      const Sum& sum = sums_[next_];
      const double fits = std::max(0.0, sum.end - now_) * sum.speed;
      now_ = left <= fits ? now_ + left / sum.speed : std::max(now_, sum.end);
      left = std::max(0.0, left - fits);
      if (now_ < sum.end) break;
    }
    now_ += left;
    done_ = std::max(done_, done);
  }
  void begin_sum(const BucketInBackward& bucket) {
    const double beside = bucket.beside_seconds > 0 ? bucket.beside_seconds : bucket.sum_seconds;
    const double begin = sums_.empty() ? now_ : std::max(now_, sums_.back().end);
    sums_.push_back({.end = begin + beside,
                     .speed = 1 - bucket.lost_share,
                     .beside_seconds = beside,
                     .sum_seconds = bucket.sum_seconds});
  }

  double now() const { return now_; }
  // Time until the last sum ends, without more compute.
  double exposed() const {
    double seconds = 0;
    for (const Sum& sum : sums_)
      if (sum.end > now_) seconds += std::min(1.0, (sum.end - now_) / sum.beside_seconds) * sum.sum_seconds;
    return seconds;
  }

 private:
  struct Sum {
    double end = 0;    // if compute runs until then
    double speed = 1;  // of compute
    double beside_seconds = 0;
    double sum_seconds = 0;
  };

  std::vector<Sum> sums_;
  std::size_t next_ = 0;  // those before it have ended
  double now_ = 0;
  double done_ = 0;
};

}  // namespace

void GradientArrivals::add(double bytes, double seconds) {
  CHECK(bytes >= points_.back().bytes, "{} bytes of gradients after {}: they must not decrease", bytes,
        points_.back().bytes);
  points_.push_back({.bytes = bytes, .seconds = std::max(seconds, points_.back().seconds)});
}

double GradientArrivals::final_seconds(double bytes) const {
  const auto above = std::ranges::lower_bound(points_, bytes, {}, &Point::bytes);
  if (above == points_.end()) return points_.back().seconds;
  if (above == points_.begin()) return above->seconds;
  const Point& below = *std::prev(above);
  const double share = (bytes - below.bytes) / (above->bytes - below.bytes);
  return below.seconds + share * (above->seconds - below.seconds);
}

GradientArrivals GradientArrivals::slowed(double factor) const {
  GradientArrivals arrivals = *this;
  for (Point& point : arrivals.points_) point.seconds *= factor;
  return arrivals;
}

OverlappedBackward overlap_backward(std::span<const BucketInBackward> buckets, double backward_seconds) {
  Backward backward;
  for (const BucketInBackward& bucket : buckets) {
    CHECK(bucket.lost_share >= 0 && bucket.lost_share < 1, "lost_share = {}, must be at least 0 and below 1",
          bucket.lost_share);
    backward.compute_until(std::min(bucket.final_seconds, backward_seconds));
    backward.begin_sum(bucket);
  }
  backward.compute_until(backward_seconds);
  return {.seconds = backward.now(), .exposed_seconds = backward.exposed()};
}

}  // namespace lockstep
