// SPDX-License-Identifier: Apache-2.0
//
// One rank of a training on a ring, optionally slow. Tests on threads and tests between processes share it.
#pragma once

#include <chrono>
#include <memory>
#include <thread>

#include "launch/train/trainer.h"
#include "models/networks/networks.h"
#include "tests/launch/train/grays.h"

namespace lockstep {

inline constexpr std::int64_t kRingBatch = 8, kRingSteps = 24;
// Delay of each sample of a slow rank. It exceeds the compute time of its peers, which is 100 ms a step under
// ThreadSanitizer.
#if defined(__SANITIZE_THREAD__)
inline constexpr std::chrono::milliseconds kSlowSample(60);
#else
inline constexpr std::chrono::milliseconds kSlowSample(10);
#endif

// Each read sleeps for `delay`. Ranks then wait for data rather than for a core, and ranks with equal delays
// take about equally many steps on any number of cores.
class SlowGrays final : public Dataset {
 public:
  SlowGrays(std::int64_t size, std::chrono::milliseconds delay) : grays_({8, 8, 1}, size), delay_(delay) {}
  std::int64_t size() const override { return grays_.size(); }
  ImageShape image_shape() const override { return grays_.image_shape(); }
  std::int64_t classes() const override { return grays_.classes(); }
  std::int32_t read(std::int64_t index, std::span<std::uint8_t> image) const override {
    std::this_thread::sleep_for(delay_);
    return grays_.read(index, image);
  }

 private:
  Grays grays_;
  std::chrono::milliseconds delay_;
};

struct RingTraining {
  int ranks = 3;
  int slow = -1;  // rank
  std::int64_t epochs = 1;
  OptimizerOptions optimizer = SgdOptions{.momentum = 0.9};
  double learning_rate = 0.02;
};

// The training objects of one rank.
class OnRing {
 public:
  OnRing(const RingTraining& training, Communicator& communicator)
      : train_data_(training.ranks * kRingBatch * kRingSteps,
                    communicator.rank() == training.slow ? kSlowSample : std::chrono::milliseconds(1)),
        test_data_({8, 8, 1}, 512),
        network_(graph(), {.choices = &first_}),
        buckets_(network_.parameters(), communicator, {}),
        optimizer_(make_optimizer(trained_memory(network_, buckets_.gradients()), training.optimizer)),
        train_(train_data_, {.rank = communicator.rank(), .size = communicator.size()},
               {.batch = kRingBatch, .threads = 1}),
        test_(test_data_, {.rank = communicator.rank(), .size = communicator.size()},
              {.batch = kRingBatch, .tail = Tail::pad}),
        trainer_({network_, buckets_, *optimizer_, train_, test_, communicator},
                 {.base = training.learning_rate}, {.epochs = training.epochs, .topology = Topology::ring}) {}

  Network& network() { return network_; }
  Trainer& trainer() { return trainer_; }
  void fit() { trainer_.fit(); }

 private:
  static Graph graph() {
    Graph made({.batch = kRingBatch, .height = 8, .width = 8, .channels = 1, .classes = 4});
    cnn(made, {.batch_norm = true});
    return made;
  }

  SlowGrays train_data_;
  Grays test_data_;
  KernelChoices first_;
  Network network_;
  GradientBuckets buckets_;
  std::unique_ptr<Optimizer> optimizer_;
  BatchLoader train_, test_;
  Trainer trainer_;
};

}  // namespace lockstep
