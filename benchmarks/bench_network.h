// SPDX-License-Identifier: Apache-2.0
//
// Shared by the benchmarks of steps: a network on one rank with everything a step needs, random images to
// train it on, and command line flags.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "comm/gradients/buckets.h"
#include "data/dataset.h"
#include "launch/train/trainer.h"
#include "models/graph.h"
#include "models/network.h"
#include "models/optimizer.h"

namespace lockstep {

class BenchProgram;

inline constexpr double kBenchRate = 0.001;  // learning rate: the loss falls and stays finite

struct BenchOptions {
  std::string model = "resnet18";
  std::int64_t batch = 64;
  std::int64_t image = 32;
  std::int64_t channels = 3;
  std::int64_t classes = 10;
  int threads = 2;
  std::string kernels = "time";
  std::string precision = "fp32";
  std::string device = "cpu";
  bool recompute = false;
  std::string json;  // file of the result; empty: none

  GraphInput input() const {
    return {.batch = batch, .height = image, .width = image, .channels = channels, .classes = classes};
  }
  Device where() const { return {.kind = device == "cuda" ? DeviceKind::cuda : DeviceKind::cpu}; }
  void add_flags(BenchProgram& program);
  // add_flags() without --kernels, --precision, --device and --recompute, for benchmarks that do not use
  // them.
  void add_shape_flags(BenchProgram& program);
  nlohmann::json to_json() const;
};

// Noise, the same in every run, with random labels. Reading an image is a copy, as from a dataset in memory,
// so that timings do not include making noise.
class RandomImages final : public Dataset {
 public:
  RandomImages(const BenchOptions& options, std::int64_t size);

  std::int64_t size() const override { return size_; }
  ImageShape image_shape() const override { return shape_; }
  std::int64_t classes() const override { return classes_; }
  std::int32_t read(std::int64_t index, std::span<std::uint8_t> image) const override;

 private:
  std::int64_t size_;
  ImageShape shape_;
  std::int64_t classes_;
  std::vector<std::uint8_t> noise_;  // images are overlapping parts of it
};

// The first images of a dataset, as one batch in a device's memory.
class FixedBatch {
 public:
  FixedBatch(const Dataset& dataset, std::int64_t batch, Device device);
  const Batch& input() const { return input_; }

 private:
  Buffer images_, labels_, weights_, samples_;
  Batch input_;
};

// A network planned with the machine's kernel choices, trained by SGD with momentum.
struct BenchNetwork {
  explicit BenchNetwork(const BenchOptions& options);

  // Bytes of activations, parameters, weight copies, statistics, gradients and optimizer state.
  std::size_t planned_bytes() const;

  Graph graph;
  KernelChoices choices;
  double planning_seconds = 0;
  std::unique_ptr<Network> network;
  std::unique_ptr<Communicator> self;
  std::unique_ptr<GradientBuckets> buckets;
  std::unique_ptr<Optimizer> optimizer;
};

// Trains a BenchNetwork with the engine: loaders on the images, and the Trainer.
struct BenchTraining {
  BenchTraining(BenchNetwork& bench, const Dataset& images, const TrainerOptions& options = {});

  BatchLoader train;
  BatchLoader test;
  Trainer trainer;
};

}  // namespace lockstep
