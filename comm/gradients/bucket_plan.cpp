// SPDX-License-Identifier: Apache-2.0
#include "comm/gradients/bucket_plan.h"

#include <fmt/format.h>

#include "core/error.h"
#include "core/tensor/buffer.h"

namespace lockstep {
namespace {

std::int64_t elements_of_a_line(DType type) { return static_cast<std::int64_t>(kAlignment / size_of(type)); }

std::int64_t aligned_end(const Parameter& parameter) {
  const std::size_t size = size_of(parameter.gradient_type);
  const std::size_t bytes = static_cast<std::size_t>(parameter.layout.physical_elements()) * size;
  return parameter.offset + static_cast<std::int64_t>(align_up(bytes) / size);
}

// The offset of a parameter; the end of the arena for the index past the last.
std::int64_t boundary(std::span<const Parameter> parameters, std::size_t index) {
  return index < parameters.size() ? parameters[index].offset : aligned_end(parameters.back());
}

std::size_t bytes_between(std::span<const Parameter> parameters, std::size_t first, std::size_t last) {
  std::size_t bytes = 0;
  for (std::size_t i = first; i < last; ++i) {
    bytes += static_cast<std::size_t>(boundary(parameters, i + 1) - parameters[i].offset) *
             size_of(parameters[i].gradient_type);
  }
  return bytes;
}

// True if the next parameter's gradient has another type.
bool type_changes_after(std::span<const Parameter> parameters, std::size_t index) {
  return index + 1 < parameters.size() &&
         parameters[index + 1].gradient_type != parameters[index].gradient_type;
}

void check_offsets(std::span<const Parameter> parameters) {
  std::int64_t end = 0;
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const Parameter& parameter = parameters[i];
    CHECK(!type_changes_after(parameters, i) || parameters[i + 1].gradient_type == DType::f32,
          "the gradient of {} is {} and follows one of {}; 16-bit gradients must come before fp32 ones",
          parameters[i + 1].name, name_of(parameters[i + 1].gradient_type), name_of(parameter.gradient_type));
    CHECK(parameter.offset >= end && parameter.offset % elements_of_a_line(parameter.gradient_type) == 0,
          "{} is at offset {}, which must be aligned and not before the end of the previous parameter at {}",
          parameter.name, parameter.offset, end);
    end = aligned_end(parameter);
  }
}

// The first parameter of the last bucket, which takes as many of the last gradients as its capacity holds, at
// least one.
std::size_t first_of_last_bucket(std::span<const Parameter> parameters, std::size_t capacity) {
  std::size_t first = parameters.size() - 1;
  while (first > 0 && bytes_between(parameters, first - 1, parameters.size()) <= capacity) --first;
  return first;
}

// Buckets whose shares are not set yet.
std::vector<Bucket> fill_buckets(std::span<const Parameter> parameters, const BucketCapacities& capacities) {
  std::vector<Bucket> buckets;
  if (parameters.empty()) return buckets;
  const std::size_t tail = first_of_last_bucket(parameters, capacities.last_bytes);
  std::size_t first = 0;
  const auto close = [&](std::size_t last) {
    if (last == first) return;
    buckets.push_back({.begin = boundary(parameters, first),
                       .end = boundary(parameters, last),
                       .first_parameter = first,
                       .last_parameter = last,
                       .type = parameters[first].gradient_type});
    first = last;
  };
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const std::size_t capacity = buckets.empty() ? capacities.first_bytes : capacities.middle_bytes;
    const bool full = i < tail && bytes_between(parameters, first, i + 1) >= capacity;
    if (full || i + 1 == tail || type_changes_after(parameters, i)) close(i + 1);
  }
  close(parameters.size());
  return buckets;
}

}  // namespace

BucketPlan::BucketPlan(std::span<const Parameter> parameters, const BucketCapacities& capacities,
                       int world_size)
    : world_size_(world_size), bucket_of_(parameters.size()) {
  CHECK(world_size > 0, "the number of ranks is {}", world_size);
  check_offsets(parameters);
  buckets_ = fill_buckets(parameters, capacities);
  for (std::size_t index = 0; index < buckets_.size(); ++index) {
    Bucket& bucket = buckets_[index];
    const std::int64_t line = elements_of_a_line(bucket.type);
    bucket.share = bucket.count() / line / world_size * line;
    for (std::size_t i = bucket.first_parameter; i < bucket.last_parameter; ++i) bucket_of_[i] = index;
    if (ranges_.empty() || ranges_.back().type != bucket.type)
      ranges_.push_back({.type = bucket.type, .begin = bucket.begin});
    ranges_.back().end = bucket.end;
  }
}

std::size_t BucketPlan::bytes() const {
  std::size_t bytes = 0;
  for (const FlatRange& range : ranges_) bytes += range.bytes();
  return bytes;
}

std::string BucketPlan::describe(std::span<const Parameter> parameters) const {
  std::string text;
  for (const Parameter& parameter : parameters) {
    text += fmt::format("{} {} in {} at {}\n", parameter.name, parameter.layout.describe(),
                        name_of(parameter.gradient_type), parameter.offset);
  }
  for (const Bucket& bucket : buckets_) text += fmt::format("bucket {} {}\n", bucket.begin, bucket.end);
  return text;
}

}  // namespace lockstep
