// SPDX-License-Identifier: Apache-2.0
#include "launch/overlap.h"

#include <algorithm>

#include "core/error.h"

namespace lockstep {
namespace {

// Compute, which is slower while the link is busy.
class Backward {
 public:
  explicit Backward(double stretch) : stretch_(stretch) {}

  // Until so many seconds of compute are done.
  void compute_until(double done) {
    double left = std::max(0.0, done - done_);
    const double slow = std::max(0.0, busy_until_ - now_) / stretch_;
    if (left <= slow) {
      now_ += left * stretch_;
    } else {
      if (slow > 0) now_ = busy_until_;
      now_ += left - slow;
    }
    done_ = std::max(done_, done);
  }
  void begin_sum(double seconds) { busy_until_ = std::max(now_, busy_until_) + seconds; }

  double now() const { return now_; }
  double exposed() const { return std::max(0.0, busy_until_ - now_); }

 private:
  double stretch_;
  double now_ = 0;
  double done_ = 0;
  double busy_until_ = 0;
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

OverlappedBackward overlap_backward(std::span<const BucketInBackward> buckets, double backward_seconds,
                                    double stretch) {
  CHECK(stretch >= 1, "compute at {} of its time", stretch);
  Backward backward(stretch);
  for (const BucketInBackward& bucket : buckets) {
    backward.compute_until(std::min(bucket.final_seconds, backward_seconds));
    backward.begin_sum(bucket.sum_seconds);
  }
  backward.compute_until(backward_seconds);
  return {.seconds = backward.now(), .exposed_seconds = backward.exposed()};
}

}  // namespace lockstep
