// SPDX-License-Identifier: Apache-2.0
//
// The Trainer on several ranks that are threads of one process. Sanitizers see all of a distributed step
// except the launcher and the transport.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "launch/train/trainer.h"
#include "models/networks/networks.h"
#include "tests/thinning.h"

namespace lockstep {

// Under a sanitizer evaluations of 512 samples would take longer than most of the trainings.
inline constexpr std::int64_t kMostEvaluated = kOneOf == 1 ? 512 : 64;

struct ThreadTraining {
  // resnet20 has 8 layers under a sanitizer.
  NetworkChoice network = {.name = "cnn", .batch_norm = false};
  void (*build)(Graph&) = nullptr;  // used instead of `network` if set
  ImageShape image = {8, 8, 1};
  std::int64_t samples = 512;  // an evaluation uses the first kMostEvaluated of them
  int ranks = 1;
  std::vector<int> node_of = {};  // of each rank; empty: all on one node
  std::int64_t batch = 8;         // per rank and micro-batch
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
  // Called by every rank after each step.
  std::function<void(int rank, int step, Trainer&, Network&, Optimizer&)> after_step;
};

struct TrainedRank {
  std::string digest;
  Evaluation evaluation;
};

// Returns each rank's result. If a rank throws, the whole training fails with its message.
std::vector<TrainedRank> train_on_threads(const ThreadTraining& training);

// The complete state of a network by tensor name, with the rank's own running statistics.
using TrainedState = std::map<std::string, std::vector<float>>;
TrainedState trained_state(Network& network);
// The state of rank 0's network after each of the given step numbers.
std::map<int, TrainedState> states_after(ThreadTraining training, const std::vector<int>& steps);

}  // namespace lockstep
