// SPDX-License-Identifier: Apache-2.0
//
// TrainingData: a run's datasets, opened and verified, and this rank's loaders.
#pragma once

#include <memory>

#include "comm/world.h"
#include "data/batch_loader.h"
#include "data/dataset.h"
#include "launch/program/config/config.h"
#include "launch/program/devices/cores.h"
#include "launch/program/setup/preloading.h"

namespace lockstep {

// Verifies sets, or the copies of them that training reads, as data.verify says. Each rank of a node verifies
// a share of them. Throws what verify() throws (data/sets/verify.h).
void verify_sets(const Config& config, const Datasets& sets, const World& world, int threads);

struct TrainingData {
  // data.verify = "all" is left to the caller, which may verify copies that keep the decoded images.
  // opened: sets that another training with the same [data] keys opened and verified; null: opens them.
  // Throws what opening and verifying a dataset throw, DataError if the test set's images or classes do not
  // match, and ConfigError if the normalisation has another number of channels. choice: its threads verify;
  // a loader has up to `cores` threads. formats is used only here.
  TrainingData(const Config& config, const std::vector<DatasetFormat>& formats, const World& world,
               Device device, const ThreadChoice& choice, const Datasets& opened = {});

  // Throws what a BatchLoader's constructor throws.
  void make_loaders(const World& world);

  // Memory of a Trainer's batches, for training and evaluation, with this micro-batch size: on the loaders'
  // device, or on another one.
  std::size_t device_bytes(std::int64_t batch) const { return device_bytes(batch, options.device); }
  std::size_t device_bytes(std::int64_t batch, Device device) const;

  LoaderOptions options;  // of train_loader
  Datasets sets;
  std::unique_ptr<BatchLoader> train_loader;
  std::unique_ptr<BatchLoader> test_loader;

 private:
  void open(const Config& config, const std::vector<DatasetFormat>& formats, const World& world, int threads);
};

}  // namespace lockstep
