// SPDX-License-Identifier: Apache-2.0
#include "comm/buckets.h"

#include <exception>

#include <fmt/ranges.h>

#include "core/error.h"
#include "core/log.h"

namespace lockstep {
namespace {

std::int64_t aligned_end(const Parameter& parameter) {
  return parameter.offset + static_cast<std::int64_t>(align_up(parameter.layout.bytes()) / sizeof(float));
}

// Where a parameter begins; the end of the arena for the one past the last.
std::int64_t boundary(std::span<const Parameter> parameters, std::size_t index) {
  return index < parameters.size() ? parameters[index].offset : aligned_end(parameters.back());
}

std::size_t bytes_between(std::span<const Parameter> parameters, std::size_t first, std::size_t last) {
  return static_cast<std::size_t>(boundary(parameters, last) - boundary(parameters, first)) * sizeof(float);
}

void check_offsets(std::span<const Parameter> parameters) {
  std::int64_t end = 0;
  for (const Parameter& parameter : parameters) {
    CHECK(parameter.layout.dtype() == DType::f32, "{} is {}", parameter.name,
          name_of(parameter.layout.dtype()));
    CHECK(parameter.offset >= end && parameter.offset % (kAlignment / sizeof(float)) == 0,
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
                       .last_parameter = last});
    first = last;
  };
  for (std::size_t i = 0; i < tail; ++i) {
    const std::size_t capacity = buckets.empty() ? options.first_bytes : options.middle_bytes;
    if (bytes_between(parameters, first, i + 1) >= capacity) close(i + 1);
  }
  close(tail);
  close(parameters.size());
  return buckets;
}

GradientBuckets::GradientBuckets(std::span<Parameter> parameters, Communicator& communicator,
                                 const BucketOptions& options, Timeline* timeline)
    : parameters_(parameters),
      communicator_(communicator),
      options_(options),
      timeline_(timeline),
      buckets_(plan_buckets(parameters, options)),
      bucket_of_(parameters.size()),
      ready_(parameters.size()),
      progress_(buckets_.size()),
      produced_(communicator.stream().device()),
      reduced_(communicator.stream().device()) {
  compare_plans();
  arena_ = communicator.allocate(
      buckets_.empty() ? 0 : static_cast<std::size_t>(buckets_.back().end) * sizeof(float));
  for (Parameter& parameter : parameters_) parameter.gradient = gradients().data() + parameter.offset;
  for (std::size_t bucket = 0; bucket < buckets_.size(); ++bucket) {
    for (std::size_t i = buckets_[bucket].first_parameter; i < buckets_[bucket].last_parameter; ++i) {
      bucket_of_[i] = bucket;
    }
  }
}

GradientBuckets::~GradientBuckets() {
  for (Parameter& parameter : parameters_) parameter.gradient = nullptr;
  if (std::uncaught_exceptions() > 0) return;
  try {
    communicator_.stream().synchronize();  // a sum may still be using the arena
  } catch (const std::exception& error) {
    log::warning("gradient buckets end after an error: {}", error.what());
  }
}

std::span<float> GradientBuckets::gradients() const {
  return {reinterpret_cast<float*>(arena_.data()), arena_.bytes() / sizeof(float)};
}

void GradientBuckets::begin(Stream& compute) {
  compute_ = &compute;
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
  communicator_.all_reduce(gradients().data() + bucket.begin,
                           static_cast<std::size_t>(bucket.end - bucket.begin), DType::f32, ReduceOp::sum);
  if (timeline_ == nullptr) return;
  stream.enqueue([timeline = timeline_, progress, index] {
    timeline->record({.name = "bucket",
                      .track = Track::communication,
                      .index = static_cast<std::int32_t>(index),
                      .begin_ns = progress->started_ns,
                      .end_ns = now_ns()});
  });
}

void GradientBuckets::compare_plans() {
  std::string plan;
  for (const Parameter& parameter : parameters_) {
    plan += fmt::format("{} {} at {}\n", parameter.name, parameter.layout.describe(), parameter.offset);
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
