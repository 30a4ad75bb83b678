// SPDX-License-Identifier: Apache-2.0
//
// SamplePlaces: the sample at each place of each batch, for every Tail (data/batch_loader.h), and the steps
// of an epoch that follow from it.
#pragma once

#include <cstdint>

#include "data/batch_loader.h"

namespace lockstep {

// The content of a place of a batch.
struct SamplePlace {
  std::int64_t epoch = 0;
  std::int64_t sample = -1;  // -1: padding
  float weight = 1;
  bool alone = false;  // the only sample of its training micro-batch, or a copy of it
};

class SamplePlaces {
 public:
  // samples: the size of the dataset. ranks: the number of those that share each step.
  SamplePlaces(std::int64_t samples, int ranks, const LoaderOptions& options);

  // Samples per step, over all ranks and micro-batches.
  std::int64_t global_batch() const { return micro_batches_ * batch_; }
  // Samples of an epoch that do not fill a global batch.
  std::int64_t tail_samples() const { return samples_ % global_batch(); }
  // Steps in the epochs before this one, also for another global batch.
  std::int64_t steps_before(std::int64_t epoch) const { return steps_before(epoch, global_batch()); }
  std::int64_t steps_before(std::int64_t epoch, std::int64_t global_batch) const;

  // The sample at an index of a micro-batch. Steps are counted over the whole run, micro-batches over all
  // ranks.
  SamplePlace at(std::int64_t step, std::int64_t micro_batch, std::int64_t index) const;
  // For a micro-batch without samples: it is filled with the epoch's first samples, of weight 0.
  SamplePlace without_samples(std::int64_t epoch, std::int64_t index) const;

 private:
  SamplePlace in_tail(std::int64_t epoch, std::int64_t micro_batch, std::int64_t index) const;
  std::int64_t sample_at(std::int64_t epoch, std::int64_t position) const;

  std::int64_t samples_;
  std::int64_t batch_;          // of a micro-batch
  std::int64_t micro_batches_;  // of a step, on all ranks
  Tail tail_;
  std::uint64_t seed_;
};

}  // namespace lockstep
