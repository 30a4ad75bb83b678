// SPDX-License-Identifier: Apache-2.0
//
// TrainingData: the datasets of a run, opened and checked, and this rank's loaders of them.
#pragma once

#include <memory>

#include "comm/world.h"
#include "data/batch_loader.h"
#include "data/dataset.h"
#include "launch/config/config.h"
#include "launch/preloading.h"

namespace lockstep {

struct TrainingData {
  // opened: by another training with the same [data] keys, and checked; null: they are opened here. Throws
  // what opening and verifying a dataset throws, DataError for a test set of other images or classes, and
  // ConfigError for a normalisation of other channels. threads: for verifying. Formats are asked for here
  // only.
  TrainingData(const Config& config, const std::vector<DatasetFormat>& formats, const World& world,
               Device device, int threads, const Datasets& opened = {});

  // Throws what a BatchLoader's constructor throws.
  void make_loaders(const World& world);

  // Held by a Trainer for micro-batches of so many samples: of the device's memory, to train and to evaluate.
  std::size_t device_bytes(std::int64_t batch) const;

  LoaderOptions options;  // of training's loader
  Datasets sets;
  std::unique_ptr<BatchLoader> train_loader;
  std::unique_ptr<BatchLoader> test_loader;

 private:
  void open(const Config& config, const std::vector<DatasetFormat>& formats, const World& world, int threads);
};

}  // namespace lockstep
