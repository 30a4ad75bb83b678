// SPDX-License-Identifier: Apache-2.0
//
// The model of how much communication a backward pass hides. Used by the advice of a training
// (launch/observe/account/advice.h) and by the steps that `lockstep plan` predicts
// (launch/program/plan/step_model.h). Buckets are summed one after another, each as soon as its gradients are
// final: the sum of bucket i ends at max(final_i, end_{i-1}) + t_i. Sums may slow down compute: they take
// cores, or a GPU's memory bandwidth. Pure functions.
#pragma once

#include <span>
#include <vector>

namespace lockstep {

// Seconds of backward after which a number of bytes of gradients is final, in the order in which buckets
// are sent. Linear between known moments, from 0 bytes at 0 s.
class GradientArrivals {
 public:
  // bytes: at least those added before. An earlier time than the last one added counts as equal to it.
  void add(double bytes, double seconds);
  // After the last known moment: that moment; 0 if none is known.
  double final_seconds(double bytes) const;
  // The moments in a backward pass that takes `factor` times as long.
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
  double lost_share = 0;      // of compute, while the sum runs; below 1
  double beside_seconds = 0;  // time of the sum while compute runs; 0: the same
};
struct OverlappedBackward {
  double seconds = 0;          // of backward
  double exposed_seconds = 0;  // after backward, until the last sum ends
};
// Buckets are in the order in which they are sent.
OverlappedBackward overlap_backward(std::span<const BucketInBackward> buckets, double backward_seconds);

}  // namespace lockstep
