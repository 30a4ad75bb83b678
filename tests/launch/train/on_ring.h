// SPDX-License-Identifier: Apache-2.0
//
// One rank of a training on a ring, and a rank that is as slow as possible. Tests on threads and tests
// between processes share them.
#pragma once

#include <chrono>
#include <limits>
#include <memory>
#include <thread>

#include "comm/in_process/neighbour_slots.h"
#include "launch/train/trainer.h"
#include "launch/train/training_observer.h"
#include "models/networks/networks.h"
#include "tests/launch/train/grays.h"

namespace lockstep {

inline constexpr std::int64_t kRingBatch = 8, kRingSteps = 24;

// Each read sleeps for 1 ms. Ranks then wait for data rather than for a core, and take about equally many
// steps on any number of cores.
class SlowGrays final : public Dataset {
 public:
  explicit SlowGrays(std::int64_t size) : grays_({8, 8, 1}, size) {}
  std::int64_t size() const override { return grays_.size(); }
  ImageShape image_shape() const override { return grays_.image_shape(); }
  std::int64_t classes() const override { return grays_.classes(); }
  std::int32_t read(std::int64_t index, std::span<std::uint8_t> image) const override {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    return grays_.read(index, image);
  }

 private:
  Grays grays_;
};

// After its first step of an epoch, the slow rank waits until its peers have taken the remaining steps.
class SlowRank final : public TrainingObserver {
 public:
  // Collective.
  SlowRank(Communicator& communicator, int slow)
      : taken_(communicator, 1),
        is_slow_(communicator.rank() == slow),
        steps_of_an_epoch_(communicator.size() * kRingSteps) {}
  void step_done(const StepRecord& record) override {
    taken_.take_step(std::numeric_limits<std::int64_t>::max());
    while (is_slow_ && taken_.steps_taken() < record.epoch * steps_of_an_epoch_)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }

 private:
  NeighbourSlots taken_;  // its counter has the steps of all ranks
  bool is_slow_;
  std::int64_t steps_of_an_epoch_;
};

struct RingTraining {
  int ranks = 3;
  std::int64_t epochs = 1;
  OptimizerOptions optimizer = SgdOptions{.momentum = 0.9};
  double learning_rate = 0.02;
};

// The training objects of one rank.
class OnRing {
 public:
  OnRing(const RingTraining& training, Communicator& communicator)
      : train_data_(training.ranks * kRingBatch * kRingSteps),
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
  void fit(std::initializer_list<TrainingObserver*> observers = {}) { trainer_.fit(observers); }

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
