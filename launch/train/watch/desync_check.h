// SPDX-License-Identifier: Apache-2.0
//
// DesyncCheck: checks at a fixed interval of steps that all ranks hold the same bits. They do by
// construction; a bit flip in memory or on a device, or a defect, breaks that silently: each rank then trains
// a different network. It compares hashes of each replicated tensor (parameters, optimizer state) before a
// checkpoint of the same step is saved.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "launch/train/trainer.h"
#include "launch/train/training_observer.h"

namespace lockstep {

// The hash of one replicated tensor.
struct TensorHash {
  std::string name;
  std::uint64_t hash = 0;
};

std::uint64_t hash_of_values(std::span<const float> values);

// Collective. Hashes of all replicated tensors, in the same order on all ranks.
std::vector<TensorHash> replicated_hashes(Trainer& trainer);

// Collective over host memory. On a difference, throws an agreed Error with the Disagreement of the ranks
// (replicas.h) and the first tensor that differs. when: "after step 20".
void require_same_tensors(Communicator& host, const std::vector<TensorHash>& mine, const std::string& when);

// Compares the ranks' tensors between steps.
class DesyncCheck final : public TrainingObserver {
 public:
  // every: interval in steps; 0: never.
  DesyncCheck(Trainer& trainer, Communicator& host, std::int64_t every)
      : trainer_(trainer), host_(host), every_(every) {}

  bool goes_on() override;

 private:
  Trainer& trainer_;
  Communicator& host_;
  std::int64_t every_;
};

}  // namespace lockstep
