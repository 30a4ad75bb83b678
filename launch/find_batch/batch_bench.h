// SPDX-License-Identifier: Apache-2.0
//
// BatchBench: measures batches against the configuration as it is, in this process, by training steps on the
// user's data that are thrown away. The configuration stays built, another batch is built beside it for one
// visit, and the two take turns; where memory holds one of them only, the other is measured alone. A batch is
// first run forward and backward by each rank for itself: whose memory ends there tells the others, who wait
// for nobody.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "comm/communicator.h"
#include "comm/world.h"
#include "launch/bench_training.h"
#include "launch/find_batch/batch_search.h"
#include "launch/find_batch/noise_scale.h"

namespace lockstep {

class BatchBench {
 public:
  // Collective, as everything here, and the same on every rank. Ranks agree over `control`. All must outlive
  // this. What exchanges or recorded steps a configuration has, its batches are measured with.
  BatchBench(World& world, Communicator& control, const Config& as_configured, const Registry& registry);
  ~BatchBench();

  // Of a search that begins with the configured batch: what suits every rank's kernels, and what every rank
  // has room for by the plan of memory and the samples that there are; most = 0: not even one sample. Builds
  // one of the smallest batch.
  BatchLimits limits();
  // The first that is measured is what the others are compared with. pairs: turns of both.
  BatchFigure visit(std::int64_t batch, int pairs);
  // The samples per second of a batch and so many micro-batches a step over the reference's: the median of so
  // many pairs, or of as many as that time is enough for.
  double compare(std::int64_t batch, std::int64_t accumulation, int pairs, double seconds);
  // Runs one micro-batch of it on each rank, with kernels that nobody times. Empty: it has room; else what
  // was short.
  std::string prove(std::int64_t batch);
  // About that many seconds of training with the reference, in which gradients are compared.
  NoiseScale measure_noise(double seconds);

 private:
  struct Built;
  struct Turn {
    double samples_per_second = 0, step_seconds = 0, exposed_seconds = 0, busy = 0;
    double ratio = 1;  // of samples per second to the reference's
  };

  std::unique_ptr<Built> build(const Config& config);
  std::unique_ptr<Built> build_smallest(std::int64_t& least);
  std::unique_ptr<Built> build_proven(const Config& config);
  std::unique_ptr<Built> build_beside(const Config& config);
  Config with_batch(std::int64_t batch) const;
  void require_reference();
  // How many steps take about as long as a turn shall.
  void settle(Built& built);
  Turn turn(Built& built);
  // With the reference, where it is there; the turn whose ratio is the median.
  Turn take_turns(Built& built, int pairs, double seconds);
  double agreed_seconds_since(std::int64_t begin_ns);
  std::optional<NoiseSample> compare_gradients(Built& built);

  World& world_;
  Communicator& control_;
  Config config_;
  Registry registry_;
  Datasets datasets_;  // which all read
  std::int64_t reference_batch_ = 0;
  double reference_rate_ = 0;  // samples per second, where it was first measured
  std::unique_ptr<Built> reference_;
};

}  // namespace lockstep
