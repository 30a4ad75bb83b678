// SPDX-License-Identifier: Apache-2.0
//
// BucketPlan: divides gradients into buckets, and buckets into shares of ranks. Pure arithmetic over the flat
// order (core/tensor/parameter.h): no memory, no communication. A bucket is a contiguous range of the flat
// order with one element type. Buckets cover the flat order without gaps. A parameter is never split.
//
// Exchanges that give each rank a part of a bucket use its shares: equal parts of whole cache lines, in rank
// order from the start of the bucket, as reduce_scatter and all_gather expect. The remainder, less than one
// cache line per rank, belongs to every rank. It is not padded: the flat order does not depend on the number
// of ranks, and values and optimizer states share it.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/tensor/parameter.h"

namespace lockstep {

// A bucket is closed when its size reaches the capacity. The first bucket is small so that communication
// starts early; the last one because no backward work is left to hide its exchange.
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
  std::int64_t share = 0;  // elements of each rank's share

  std::int64_t count() const { return end - begin; }
  std::size_t bytes() const { return static_cast<std::size_t>(count()) * size_of(type); }
  // The bytes of its sum over ranks, if no codec compresses it. weight_type: GradientBuckets::sent_type().
  std::size_t sent_bytes(DType weight_type) const {
    return static_cast<std::size_t>(count()) * sent_size(weight_type);
  }
  // The bytes of one element in such a sum.
  std::size_t sent_size(DType weight_type) const { return std::max(size_of(type), size_of(weight_type)); }
  // Empty if the bucket has fewer cache lines than there are ranks.
  ElementRange share_of(int rank) const { return {begin + rank * share, begin + (rank + 1) * share}; }
};

class BucketPlan {
 public:
  // Parameters have ascending offsets, and 16-bit gradients come before fp32 ones. Throws Error otherwise.
  BucketPlan(std::span<const Parameter> parameters, const BucketCapacities& capacities, int world_size);

  // In the default order of exchange.
  std::span<const Bucket> buckets() const { return buckets_; }
  std::size_t bucket_of(std::size_t parameter) const { return bucket_of_[parameter]; }
  // The remainder of a bucket after the last rank's share.
  ElementRange rest_of(const Bucket& bucket) const {
    return {bucket.share_of(world_size_ - 1).end, bucket.end};
  }
  // The flat order as one range per element type; data is null.
  std::span<const FlatRange> ranges() const { return ranges_; }
  // Elements of the flat order, padding included.
  std::int64_t elements() const { return ranges_.empty() ? 0 : ranges_.back().end; }
  // The type of weight gradients: fp32 if no gradient has 16 bits.
  DType gradient_type() const { return ranges_.empty() ? DType::f32 : ranges_.front().type; }
  std::size_t bytes() const;
  // Text of the names, layouts and offsets of all parameters, and the buckets. Two ranks have equal plans
  // exactly if the texts are equal.
  std::string describe(std::span<const Parameter> parameters) const;

 private:
  int world_size_;
  std::vector<Bucket> buckets_;
  std::vector<std::size_t> bucket_of_;
  std::vector<FlatRange> ranges_;
};

}  // namespace lockstep
