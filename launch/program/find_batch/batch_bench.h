// SPDX-License-Identifier: Apache-2.0
//
// BatchBench: compares batches with the configured one in this process, by training steps on the user's data
// whose results are discarded. The reference stays built; another batch is built beside it for one visit, and
// the two are measured in turns. If memory holds only one, the other is measured alone. Each rank first runs
// a batch forward and backward by itself: a rank that runs out of memory reports it, and no rank waits for a
// peer in a collective.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "comm/communicator.h"
#include "comm/world.h"
#include "launch/program/find_batch/batch_search.h"
#include "launch/program/find_batch/noise_scale.h"
#include "launch/program/setup/bench.h"

namespace lockstep {

class BatchBench {
 public:
  // Collective, like all members; the same results on every rank. Ranks agree over `control`. World, control
  // and registry outlive this. Batches are measured with the exchanges and recorded steps of the
  // configuration.
  BatchBench(World& world, Communicator& control, const Config& as_configured, const Registry& registry);

  // Limits of a search that starts at the configured batch: the multiple that suits the kernels of every
  // rank, and the largest batch by memory plan and dataset size on every rank; most = 0: not even one sample
  // fits. Builds a training with the smallest batch.
  BatchLimits limits();
  // Samples in the training set. Requires limits(), which opens the data.
  std::int64_t samples() const { return bench_.datasets().train->size(); }
  // Measures a batch. The first one becomes the reference. pairs: turns of batch and reference.
  BatchFigure visit(std::int64_t batch, int pairs);
  // Returns the ratio of samples per second, with this batch and accumulation, to the reference: the median
  // of `pairs` pairs, or of fewer if `seconds` run out.
  double compare(std::int64_t batch, std::int64_t accumulation, int pairs, double seconds);
  // Runs one micro-batch on each rank, with kernels chosen without timing. Returns an empty string if it
  // fits, else the error of the shortage.
  std::string prove(std::int64_t batch);
  // Trains the reference batch for about `seconds` and compares gradients of micro-batches.
  NoiseScale measure_noise(double seconds);

 private:
  struct Turn {
    BenchBlock block;
    double samples_per_second = 0;
    double ratio = 1;  // samples per second relative to the reference
  };

  std::unique_ptr<MeasuredTraining> build_smallest(std::int64_t& least);
  std::unique_ptr<MeasuredTraining> build_proven(const Config& config);
  std::unique_ptr<MeasuredTraining> build_beside(const Config& config);
  Config with_batch(std::int64_t batch) const;
  void require_reference();
  // Warms up. Returns the steps of a turn that takes about kTurnSeconds.
  std::int64_t settle(MeasuredTraining& built);
  Turn turn(MeasuredTraining& built, std::int64_t steps);
  // Alternates with the reference if it is built; returns the turn with the median ratio.
  Turn take_turns(MeasuredTraining& built, std::int64_t steps, int pairs, double seconds);
  std::optional<NoiseSample> compare_gradients(MeasuredTraining& built);

  World& world_;
  Communicator& control_;
  Config config_;
  Bench bench_;  // its reference is the configured batch
  std::int64_t reference_batch_ = 0;
  std::int64_t reference_steps_ = 1;  // of a turn
  double reference_rate_ = 0;         // samples per second at its first measurement
};

}  // namespace lockstep
