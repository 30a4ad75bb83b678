// SPDX-License-Identifier: Apache-2.0
//
// What a backward pass hides of the sums of its gradients: the one model of it, behind the advice of a
// training (launch/account/advice.h) and the steps that `lockstep plan` predicts (launch/plan/step_model.h).
// Buckets pass one after another, each as soon as its gradients are final: the sum of bucket i ends at
// max(final_i, end_{i-1}) + t_i. Meanwhile compute may be slower: sums take cores, or a GPU's memory, from
// it. Pure.
#pragma once

#include <span>
#include <vector>

namespace lockstep {

// After how many seconds of backward so many bytes of gradients are final, in the order in which buckets
// leave: linear between moments that are known, from none at the beginning.
class GradientArrivals {
 public:
  // Behind those that were added before: more bytes, and no earlier, since buckets leave in their order.
  void add(double bytes, double seconds);
  // Behind the last one that is known, its moment; 0 where none is.
  double final_seconds(double bytes) const;
  // The same where backward takes so many times as long.
  GradientArrivals slowed(double factor) const;

 private:
  struct Point {
    double bytes = 0;
    double seconds = 0;
  };
  std::vector<Point> points_ = {{}};
};

// A bucket in a step: when its gradients are final, in seconds of compute since backward began, and how long
// its sum takes.
struct BucketInBackward {
  double final_seconds = 0;
  double sum_seconds = 0;
  double lost_share = 0;      // of compute, while its sum is under way; below 1
  double beside_seconds = 0;  // what the sum takes where compute goes on beside it; 0: as long
};
struct OverlappedBackward {
  double seconds = 0;          // of backward
  double exposed_seconds = 0;  // behind it, until the last sum ends
};
// Buckets in the order they leave.
OverlappedBackward overlap_backward(std::span<const BucketInBackward> buckets, double backward_seconds);

}  // namespace lockstep
