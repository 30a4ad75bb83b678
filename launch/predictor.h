// SPDX-License-Identifier: Apache-2.0
//
// Predictor: a trained network that is asked about images, of which each rank answers some. Batches are
// decoded beside the forward pass, and answers are told while the device computes the next ones.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "comm/communicator.h"
#include "core/step_slot.h"
#include "core/stream.h"
#include "data/batch_loader.h"
#include "data/dataset.h"
#include "data/device_batches.h"
#include "launch/config/config.h"
#include "launch/network_planning.h"
#include "models/state_copy.h"

namespace lockstep {

class Predictor {
 public:
  struct Options {
    Device device;
    int threads = 1;                   // that compute, on a CPU
    int loader_threads = 1;            // at most
    std::filesystem::path weights;     // an export; or
    const StateCopy* state = nullptr;  // what a checkpoint has of the network, and maybe more
  };
  // Collective over host, which is of host memory. Of a configuration's network and batch, for images of its
  // input's shape and as many classes as they say; all of them and host outlive this. Throws what planning a
  // network, opening weights and a BatchLoader throw; what weights are refused for is agreed.
  Predictor(const Config& config, const Registry& registry, const Dataset& images, Communicator& host,
            const Options& options);

  // For each class; empty where the image could not be decoded.
  struct Scores {
    std::span<const float> probabilities;
    std::span<const float> logits;  // what the network computed, of which the softmax is these
  };
  // With an image's place among them.
  using Answer = std::function<void(std::int64_t image, const Scores& scores)>;
  // The images of this rank's share of the batches, in order: the shares of ranks follow one another, and
  // batches are those of one rank alone, so that answers are, too. Rethrows what the dataset threw.
  void run(const Answer& answer);
  // Of run(): the share of its time in which it waited neither for images nor for whom it told.
  double busy() const { return seconds_ > 0 ? 1 - waited_ / seconds_ : 0; }
  double seconds() const { return seconds_; }

 private:
  struct Answers {
    explicit Answers(Device device) : done(device) {}
    std::vector<float> logits;   // [batch, classes]
    std::vector<float> weights;  // [batch]
    Event done;
  };

  void enqueue(std::int64_t step);
  void tell(std::int64_t step, const Answer& answer);
  Answers& answers(std::int64_t step) { return answers_[StepSlot::of(step).index]; }

  const Dataset& images_;
  Shard shard_;
  NetworkPlanning planning_;
  std::unique_ptr<Network> network_;
  Stream stream_;
  std::optional<BatchLoader> loader_;
  std::optional<DeviceBatches> batches_;
  Buffer logits_;  // in fp32, where the network computes in half precision
  std::vector<Answers> answers_;
  std::vector<float> probabilities_;
  double seconds_ = 0, waited_ = 0;
};

}  // namespace lockstep
