// SPDX-License-Identifier: Apache-2.0
//
// BucketPlan: how gradients fall into buckets, and buckets to ranks. Pure arithmetic over the flat order
// (core/parameter.h): no memory, no communication. A bucket is a contiguous stretch of the flat order, of
// one element type; buckets cover it without gaps, and a parameter is never split.
//
// For exchanges that give each rank a part of a bucket to work on or to keep, the plan names shares: equal
// ones, of whole cache lines, in rank order from the beginning of the bucket, as reduce_scatter and
// all_gather want them. What cannot be dealt equally, less than a cache line for each rank, is the bucket's
// rest, and everybody's. Nothing is padded for it: the flat order is the same on any number of ranks, and
// values and optimizer states share it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/parameter.h"

namespace lockstep {

// A bucket is closed when its size reaches the capacity. The first leaves early so that communication starts
// early; the last is small because nothing is left to hide it.
struct BucketCapacities {
  std::size_t first_bytes = std::size_t{1} << 20;
  std::size_t middle_bytes = std::size_t{25} << 20;
  std::size_t last_bytes = std::size_t{1} << 20;
};

// Elements of the flat order.
struct ElementRange {
  std::int64_t begin = 0;
  std::int64_t end = 0;
  std::int64_t count() const { return end - begin; }
  bool operator==(const ElementRange&) const = default;
};

struct Bucket {
  std::int64_t begin = 0;  // elements of the flat order
  std::int64_t end = 0;
  std::size_t first_parameter = 0;  // parameters [first_parameter, last_parameter) in the order given
  std::size_t last_parameter = 0;
  DType type = DType::f32;
  std::int64_t share = 0;  // elements of each rank's

  std::int64_t count() const { return end - begin; }
  std::size_t bytes() const { return static_cast<std::size_t>(count()) * size_of(type); }
  // Empty where the bucket has fewer cache lines than there are ranks.
  ElementRange share_of(int rank) const { return {begin + rank * share, begin + (rank + 1) * share}; }
};

class BucketPlan {
 public:
  // Of parameters with ascending offsets and half gradients first. Throws an Error where they are not.
  BucketPlan(std::span<const Parameter> parameters, const BucketCapacities& capacities, int world_size);

  // In the order they leave.
  std::span<const Bucket> buckets() const { return buckets_; }
  // Which bucket a parameter is in.
  std::size_t bucket_of(std::size_t parameter) const { return bucket_of_[parameter]; }
  // What is left of a bucket behind the last rank's share.
  ElementRange rest_of(const Bucket& bucket) const {
    return {bucket.share_of(world_size_ - 1).end, bucket.end};
  }
  // The flat order, one range for each element type there is; without memory.
  std::span<const FlatRange> ranges() const { return ranges_; }
  // Of the flat order, padding included.
  std::int64_t elements() const { return ranges_.empty() ? 0 : ranges_.back().end; }
  // The type of weights' gradients: fp32 where no gradient is of 16 bits.
  DType gradient_type() const { return ranges_.empty() ? DType::f32 : ranges_.front().type; }
  std::size_t bytes() const;
  int world_size() const { return world_size_; }
  // Names, layouts and places of all parameters, and the buckets: equal on two ranks exactly if the plans
  // are.
  std::string describe(std::span<const Parameter> parameters) const;

 private:
  int world_size_;
  std::vector<Bucket> buckets_;
  std::vector<std::size_t> bucket_of_;
  std::vector<FlatRange> ranges_;
};

}  // namespace lockstep
