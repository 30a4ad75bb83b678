// SPDX-License-Identifier: Apache-2.0
#include "comm/buckets.h"

#include <exception>

#include <fmt/ranges.h>

#include "core/error.h"
#include "core/log.h"

namespace lockstep {
namespace {

std::int64_t aligned_end(const Parameter& parameter) {
  const std::size_t size = size_of(parameter.gradient_type);
  const std::size_t bytes = static_cast<std::size_t>(parameter.layout.physical_elements()) * size;
  return parameter.offset + static_cast<std::int64_t>(align_up(bytes) / size);
}

// Where a parameter begins; the end of the arena for the one past the last.
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

// The next parameter's gradient has another type.
bool type_changes_after(std::span<const Parameter> parameters, std::size_t index) {
  return index + 1 < parameters.size() &&
         parameters[index + 1].gradient_type != parameters[index].gradient_type;
}

void check_offsets(std::span<const Parameter> parameters) {
  std::int64_t end = 0;
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const Parameter& parameter = parameters[i];
    CHECK(!type_changes_after(parameters, i) || parameters[i + 1].gradient_type == DType::f32,
          "the gradient of {} is {}, behind one of {}", parameters[i + 1].name,
          name_of(parameters[i + 1].gradient_type), name_of(parameter.gradient_type));
    const auto alignment = static_cast<std::int64_t>(kAlignment / size_of(parameter.gradient_type));
    CHECK(parameter.offset >= end && parameter.offset % alignment == 0,
          "{} lies at {}, the parameter before it ends at {}", parameter.name, parameter.offset, end);
    end = aligned_end(parameter);
  }
}

// Where the last bucket begins: as many of the last gradients as its capacity holds, at least one.
std::size_t first_of_last_bucket(std::span<const Parameter> parameters, std::size_t capacity) {
  std::size_t first = parameters.size() - 1;
  while (first > 0 && bytes_between(parameters, first - 1, parameters.size()) <= capacity) --first;
  return first;
}

std::uint64_t hash_of(const std::string& text) {  // FNV-1a
  std::uint64_t hash = 0xcbf29ce484222325u;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  return hash;
}

}  // namespace

std::vector<Bucket> plan_buckets(std::span<const Parameter> parameters, const BucketOptions& options) {
  check_offsets(parameters);
  std::vector<Bucket> buckets;
  if (parameters.empty()) return buckets;
  const std::size_t tail = first_of_last_bucket(parameters, options.last_bytes);
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
    const std::size_t capacity = buckets.empty() ? options.first_bytes : options.middle_bytes;
    const bool full = i < tail && bytes_between(parameters, first, i + 1) >= capacity;
    if (full || i + 1 == tail || type_changes_after(parameters, i)) close(i + 1);
  }
  close(parameters.size());
  return buckets;
}

Span bucket_span(std::size_t bucket, std::int64_t begin_ns, std::int64_t end_ns) {
  return {.name = "bucket",
          .track = Track::communication,
          .index = static_cast<std::int32_t>(bucket),
          .numbered = true,
          .begin_ns = begin_ns,
          .end_ns = end_ns};
}

GradientBuckets::GradientBuckets(std::span<Parameter> parameters, Communicator& communicator,
                                 const BucketOptions& options, Timeline* timeline)
    : parameters_(parameters),
      communicator_(communicator),
      options_(options),
      timeline_(communicator.stream().device().kind == DeviceKind::cpu ? timeline : nullptr),
      buckets_(plan_buckets(parameters, options)),
      bucket_of_(parameters.size()),
      ready_(parameters.size()),
      progress_(buckets_.size()),
      exceptions_(std::uncaught_exceptions()),
      produced_(communicator.stream().device()),
      reduced_(communicator.stream().device()) {
  compare_plans();
  place_gradients();
  for (std::size_t bucket = 0; bucket < buckets_.size(); ++bucket) {
    for (std::size_t i = buckets_[bucket].first_parameter; i < buckets_[bucket].last_parameter; ++i) {
      bucket_of_[i] = bucket;
    }
  }
}

GradientBuckets::~GradientBuckets() {
  for (Parameter& parameter : parameters_) parameter.gradient = nullptr;
  const bool unwinding = std::uncaught_exceptions() > exceptions_;
  if (unwinding) {
    if (compute_ == nullptr || next_ == 0) return;  // no sum is under way
    communicator_.abandon();
  }
  try {
    communicator_.stream().synchronize();  // a sum may still be using the arena
  } catch (const std::exception& error) {
    if (!unwinding) log::warning("gradient buckets end after an error: {}", error.what());
  }
}

void GradientBuckets::place_gradients() {
  std::size_t bytes = 0;
  for (const Bucket& bucket : buckets_) {
    if (gradients_.empty() || gradients_.back().type != bucket.type) {
      gradients_.push_back({.type = bucket.type, .begin = bucket.begin});
    }
    gradients_.back().end = bucket.end;
    bytes += bucket.bytes();
  }
  arena_ = communicator_.allocate(bytes);
  std::byte* next = arena_.data();
  for (FlatRange& range : gradients_) {
    range.data = next;
    next += range.bytes();
  }
  for (Parameter& parameter : parameters_) {
    parameter.gradient = range_of(parameter.offset).at(parameter.offset);
  }
}

const FlatRange& GradientBuckets::range_of(std::int64_t element) const {
  return element < gradients_.front().end ? gradients_.front() : gradients_.back();
}

void GradientBuckets::begin(Stream& compute, std::span<BucketMoments> moments) {
  CHECK(moments.empty() || moments.size() == buckets_.size(), "the moments of {} buckets for {}",
        moments.size(), buckets_.size());
  compute_ = &compute;
  moments_ = moments;
  next_ = 0;
  ready_.assign(parameters_.size(), false);
  for (std::size_t bucket = 0; bucket < buckets_.size(); ++bucket) {
    progress_[bucket].pending = buckets_[bucket].last_parameter - buckets_[bucket].first_parameter;
  }
}

void GradientBuckets::gradient_ready(std::size_t index) {
  CHECK(compute_ != nullptr, "begin() was not called");
  CHECK(index < parameters_.size(), "parameter {} of {}", index, parameters_.size());
  CHECK(!ready_[index], "the gradient of {} was announced twice", parameters_[index].name);
  ready_[index] = true;
  --progress_[bucket_of_[index]].pending;
  if (!options_.overlap) return;
  while (next_ < buckets_.size() && progress_[next_].pending == 0) launch(next_++);
}

void GradientBuckets::wait(Stream& compute) {
  CHECK(compute_ == &compute, "wait() on another stream than begin()");
  for (std::size_t i = 0; i < ready_.size(); ++i) {
    CHECK(ready_[i], "the gradient of {} was never announced", parameters_[i].name);
  }
  while (next_ < buckets_.size()) launch(next_++);
  communicator_.stream().record(reduced_);
  compute.wait(reduced_);
  compute_ = nullptr;
}

// On the communication stream: wait for the gradients, sum. The span runs from the moment the sum may start.
void GradientBuckets::launch(std::size_t index) {
  const Bucket& bucket = buckets_[index];
  Stream& stream = communicator_.stream();
  compute_->record(produced_);
  stream.wait(produced_);
  Progress* progress = &progress_[index];
  if (timeline_ != nullptr) stream.enqueue([progress] { progress->started_ns = now_ns(); });
  if (!moments_.empty()) stream.record(moments_[index].begun);
  communicator_.all_reduce(range_of(bucket.begin).at(bucket.begin),
                           static_cast<std::size_t>(bucket.end - bucket.begin), bucket.type, ReduceOp::sum);
  if (!moments_.empty()) stream.record(moments_[index].ended);
  if (timeline_ == nullptr) return;
  stream.enqueue([timeline = timeline_, progress, index] {
    timeline->record(bucket_span(index, progress->started_ns, now_ns()));
  });
}

void GradientBuckets::compare_plans() {
  std::string plan;
  for (const Parameter& parameter : parameters_) {
    plan += fmt::format("{} {} in {} at {}\n", parameter.name, parameter.layout.describe(),
                        name_of(parameter.gradient_type), parameter.offset);
  }
  for (const Bucket& bucket : buckets_) plan += fmt::format("bucket {} {}\n", bucket.begin, bucket.end);
  const std::uint64_t mine = hash_of(plan);
  std::vector<std::uint64_t> hashes(static_cast<std::size_t>(communicator_.size()));
  Communicator& host = communicator_.host();
  host.all_gather(&mine, hashes.data(), sizeof(mine), DType::u8);
  host.stream().synchronize();
  std::vector<std::size_t> differing;
  for (std::size_t rank = 1; rank < hashes.size(); ++rank) {
    if (hashes[rank] != hashes[0]) differing.push_back(rank);
  }
  if (differing.empty()) return;
  ConfigError error(
      fmt::format("{} {} planned other parameters, layouts or buckets than rank 0; all ranks need the same "
                  "configuration, "
                  "the same libraries and the same kind of processor",
                  differing.size() == 1 ? "rank" : "ranks", fmt::join(differing, ", ")));
  error.set_agreed();
  throw error;
}

}  // namespace lockstep
