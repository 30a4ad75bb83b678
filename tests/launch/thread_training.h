// SPDX-License-Identifier: Apache-2.0
//
// The Trainer on several ranks that are threads of one process: everything of a distributed step but the
// launcher and the wire, so that sanitizers see it.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "launch/trainer.h"
#include "models/networks/networks.h"

namespace lockstep {

struct ThreadTraining {
  NetworkChoice network = {.name = "cnn", .batch_norm = false};
  void (*build)(Graph&) = nullptr;  // in place of that network
  ImageShape image = {8, 8, 1};
  std::int64_t samples = 512;  // all of which a training is evaluated on, too
  int ranks = 1;
  std::int64_t batch = 8;  // per rank and micro-batch
  std::int64_t accumulation = 1;
  Tail tail = Tail::drop;
  int steps = 1;
  Precision precision = Precision::fp32;
  std::uint64_t seed = 1;
  Augmentation augmentation;
  float label_smoothing = 0;
  bool sync_batch_norm = false;
  bool reproducible = false;
  Recompute recompute = Recompute::nothing;
  BucketOptions buckets;
  OptimizerOptions optimizer = SgdOptions{};
  LossScaleOptions loss_scale;
  double learning_rate = 0.02;
  double clip_norm = 0;
  std::int64_t average_every = 0;
  std::int64_t average_after = 0;
  std::int64_t max_skipped_steps = 0;
  std::filesystem::path last_good;
  // Called by every rank after each step, with what it trains.
  std::function<void(int rank, int step, Trainer&, Network&, Optimizer&)> after_step;
};

struct TrainedRank {
  std::string digest;
  Evaluation evaluation;
};

// What every rank has at the end. A rank that throws fails the whole training with its message.
std::vector<TrainedRank> train_on_threads(const ThreadTraining& training);

// The whole state of rank 0's network, with its own running statistics, after each of the given numbers of
// steps, by name.
using TrainedState = std::map<std::string, std::vector<float>>;
std::map<int, TrainedState> states_after(ThreadTraining training, const std::vector<int>& steps);

}  // namespace lockstep
