// SPDX-License-Identifier: Apache-2.0
//
// Predictor: runs a trained network on images, of which each rank takes a share. It decodes batches during
// the forward pass, and reports scores while the device computes the next batch.
#pragma once

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
#include "launch/program/config/config.h"
#include "launch/program/setup/network_planning.h"
#include "models/state_copy.h"

namespace lockstep {

// The share of each class among the pixels of a mask; the sum is 1.
std::vector<float> class_shares(std::span<const std::uint8_t> mask, std::size_t classes);

class Predictor {
 public:
  struct Options {
    Device device;
    int threads = 1;                   // compute threads, on a CPU
    int loader_threads = 1;            // at most
    std::filesystem::path weights;     // exported network; read if `state` is null
    const StateCopy* state = nullptr;  // a checkpoint's state; other entries are ignored
  };
  // Collective over `host`, a communicator of host memory. Uses the configuration's network and batch size;
  // `images` must have the network's input shape and number of classes. All references outlive this. Throws
  // an agreed MemoryError if the network needs more than world.memory_limit, and what network planning,
  // loading weights and BatchLoader throw; a refusal of the weights is agreed.
  Predictor(const Config& config, const Registry& registry, const Dataset& images, Communicator& host,
            const Options& options);

  // [classes] each. With mean_squared_error `probabilities` are the outputs, limited to [0, 1]; a single
  // output is shared between the two nearest classes. With a single output of binary_cross_entropy class 0
  // has its negative as its logit. They are empty if the image could not be decoded.
  struct Scores {
    std::span<const float> probabilities;
    std::span<const float> logits;  // of each class; see model.loss for the meaning
    // If the network has an output for each pixel: the class with the largest logit of each, [H, W].
    // probabilities are then the shares of the classes among the pixels, and logits those of all pixels,
    // [H, W, classes].
    std::span<const std::uint8_t> mask = {};
    // With a single output: the class that evaluations count; else -1. An output half-way between two classes
    // gives both the same probability.
    std::int64_t counted = -1;
  };
  // image: index in the dataset.
  using Answer = std::function<void(std::int64_t image, const Scores& scores)>;
  // Calls `answer` for each image of this rank's share, in order. Shares of ranks are contiguous, and batches
  // hold the same images with any number of ranks, so scores do not depend on it. Rethrows the dataset's
  // errors.
  void run(const Answer& answer);
  // Fraction of run()'s time spent neither waiting for images nor in `answer`.
  double busy() const { return seconds_ > 0 ? 1 - waited_ / seconds_ : 0; }
  double seconds() const { return seconds_; }

 private:
  struct Answers {
    explicit Answers(Device device) : done(device) {}
    std::vector<float> logits;   // [batch, outputs], or [batch, pixels, outputs]
    std::vector<float> weights;  // [batch]
    Event done;
  };

  void enqueue(std::int64_t step);
  void tell(std::int64_t step, const Answer& answer);
  void score(std::span<const float> outputs);
  void score_pixels(std::span<const float> outputs);
  Answers& answers(std::int64_t step) { return answers_[StepSlot::of(step).index]; }

  const Dataset& images_;
  Shard shard_;
  NetworkPlanning planning_;
  std::unique_ptr<Network> network_;
  Stream stream_;
  std::optional<BatchLoader> loader_;
  std::optional<DeviceBatches> batches_;
  Buffer logits_;  // fp32; used if the network computes in half precision
  std::vector<Answers> answers_;
  std::vector<float> probabilities_, class_logits_;
  std::vector<std::uint8_t> mask_;  // of an image
  std::int64_t counted_ = -1;       // Scores::counted
  double seconds_ = 0, waited_ = 0;
};

}  // namespace lockstep
