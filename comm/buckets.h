// SPDX-License-Identifier: Apache-2.0
//
// GradientBuckets: owns all gradient memory and averages it while backward is still running. Gradients are
// views into one flat arena, laid out in the order of the parameters; a bucket is a contiguous piece of it,
// of one element type. When the last gradient of a bucket is final the bucket is summed over ranks on the
// communication stream, never out of order. Nothing is packed or copied; nothing here divides: the loss
// gradient is already scaled by the global batch.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "core/timeline.h"
#include "kernels/parameter.h"

namespace lockstep {

struct BucketOptions {
  // A bucket is closed when its size reaches the capacity. The first leaves early so that communication
  // starts early; the last is small because nothing is left to hide it.
  std::size_t first_bytes = std::size_t{1} << 20;
  std::size_t middle_bytes = std::size_t{25} << 20;
  std::size_t last_bytes = std::size_t{1} << 20;
  bool overlap = true;  // false: launch every bucket in wait(), after backward
};

struct Bucket {
  std::int64_t begin = 0;  // elements of the flat arena
  std::int64_t end = 0;
  std::size_t first_parameter = 0;  // parameters [first_parameter, last_parameter) in the order given
  std::size_t last_parameter = 0;
  DType type = DType::f32;
  std::size_t bytes() const { return static_cast<std::size_t>(end - begin) * size_of(type); }
};

// When a GPU began and ended the sum of a bucket.
struct BucketMoments {
  explicit BucketMoments(Device device) : begun(device), ended(device) {}
  TimedEvent begun;  // the sum may start: its gradients are final, and the bucket before it is summed
  TimedEvent ended;
};

// Of a sum, for a timeline. By the host's clock.
Span bucket_span(std::size_t bucket, std::int64_t begin_ns, std::int64_t end_ns);

// How parameters, with ascending offsets and half gradients first, fall into buckets that cover the arena
// without gaps. Large ones are never split.
std::vector<Bucket> plan_buckets(std::span<const Parameter> parameters, const BucketOptions& options);

class GradientBuckets final : public GradientListener {
 public:
  // Collective: allocates gradient memory, points every parameter's gradient into it, and compares the plan
  // (names, layouts, buckets) over ranks; throws ConfigError on all ranks, naming those that differ from rank
  // 0. parameters must outlive this. A timeline gets the sums of a CPU; those of a GPU are told by begin().
  GradientBuckets(std::span<Parameter> parameters, Communicator& communicator, const BucketOptions& options,
                  Timeline* timeline = nullptr);
  // Waits for the sums of a pass that was not waited for: they use the arena. While an exception unwinds the
  // stack it abandons the communicator first, as peers may never come.
  ~GradientBuckets() override;

  std::span<const Bucket> buckets() const { return buckets_; }
  // The whole arena, padding included: one range for each element type there is.
  std::span<const FlatRange> gradients() const { return gradients_; }
  std::size_t memory_bytes() const { return arena_.bytes(); }

  // Starts the backward pass that finishes gradients; compute is the stream they are computed on. A GPU takes
  // the moments of each bucket, where they are given: one for each of buckets(), which outlive the pass and
  // whatever is recorded of it.
  void begin(Stream& compute, std::span<BucketMoments> moments = {});
  // From the network, once for each parameter and pass, in any order.
  void gradient_ready(std::size_t index) override;
  // Makes later work on the stream wait for every bucket. Throws if a gradient is missing, naming it.
  void wait(Stream& compute);

 private:
  void place_gradients();
  const FlatRange& range_of(std::int64_t element) const;
  void launch(std::size_t bucket);
  void compare_plans();

  struct Progress {
    std::size_t pending = 0;  // gradients not yet final
    std::int64_t started_ns =
        0;  // the communication stream's alone: a pass may begin before the last one's ended
  };

  std::span<Parameter> parameters_;
  Communicator& communicator_;
  BucketOptions options_;
  Timeline* timeline_;  // a CPU's
  std::vector<Bucket> buckets_;
  std::vector<std::size_t> bucket_of_;  // parameter -> bucket
  std::vector<bool> ready_;             // this pass, by parameter
  std::vector<Progress> progress_;
  std::size_t next_ = 0;  // first bucket not launched
  Buffer arena_;
  std::vector<FlatRange> gradients_;
  Stream* compute_ = nullptr;         // of the pass under way
  std::span<BucketMoments> moments_;  // of that, by bucket
  int exceptions_;                    // being handled when this was made
  Event produced_;
  Event reduced_;
};

}  // namespace lockstep
