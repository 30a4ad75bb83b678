// SPDX-License-Identifier: Apache-2.0
#include "launch/overlap.h"

#include <algorithm>

#include "core/error.h"

namespace lockstep {
namespace {

// Compute, which is slower while sums are under way.
class Backward {
 public:
  // Until so many seconds of compute are done.
  void compute_until(double done) {
    double left = std::max(0.0, done - done_);
    for (; left > 0 && next_ < sums_.size(); ++next_) {
      const auto& [end, speed] = sums_[next_];
      const double fits = std::max(0.0, end - now_) * speed;
      now_ = left <= fits ? now_ + left / speed : std::max(now_, end);
      left = std::max(0.0, left - fits);
      if (now_ < end) break;
    }
    now_ += left;
    done_ = std::max(done_, done);
  }
  void begin_sum(const BucketInBackward& bucket) {
    sums_.push_back({.end = std::max(now_, last_end()) + bucket.sum_seconds, .speed = 1 - bucket.lost_share});
  }

  double now() const { return now_; }
  double exposed() const { return std::max(0.0, last_end() - now_); }

 private:
  struct Sum {
    double end = 0;
    double speed = 1;  // of compute
  };
  double last_end() const { return sums_.empty() ? 0 : sums_.back().end; }

  std::vector<Sum> sums_;
  std::size_t next_ = 0;  // those before it have ended
  double now_ = 0;
  double done_ = 0;
};

}  // namespace

void GradientArrivals::add(double bytes, double seconds) {
  CHECK(bytes >= points_.back().bytes, "{} bytes of gradients behind {}", bytes, points_.back().bytes);
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
    CHECK(bucket.lost_share >= 0 && bucket.lost_share < 1, "{} of compute is lost", bucket.lost_share);
    backward.compute_until(std::min(bucket.final_seconds, backward_seconds));
    backward.begin_sum(bucket);
  }
  backward.compute_until(backward_seconds);
  return {.seconds = backward.now(), .exposed_seconds = backward.exposed()};
}

}  // namespace lockstep
