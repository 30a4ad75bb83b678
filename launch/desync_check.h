// SPDX-License-Identifier: Apache-2.0
//
// DesyncCheck: whether all ranks still have the same bits, every so many steps. They do by construction; a
// bit that memory or a device has flipped, or a defect, ends that, and nobody would notice: each rank trains
// a network of its own from then on. Compared are hashes of each tensor that ranks share, parameters and the
// optimizer's state, before a checkpoint of the same step is saved.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "launch/fit_observer.h"
#include "launch/trainer.h"

namespace lockstep {

// Of a tensor that ranks share.
struct TensorHash {
  std::string name;
  std::uint64_t hash = 0;
};

std::uint64_t hash_of_values(std::span<const float> values);

// Collective. Of all of them, in one order on all ranks.
std::vector<TensorHash> replicated_hashes(Trainer& trainer);

// Collective over host memory. Throws an agreed Error that names the ranks that differ from most others, or,
// where there is no majority, from rank 0, and the first tensor in which they do. when: "after step 20".
void require_same_tensors(Communicator& host, const std::vector<TensorHash>& mine, const std::string& when);

// Compares the ranks' tensors between steps.
class DesyncCheck final : public PassingObserver {
 public:
  // every: steps; 0: never.
  DesyncCheck(Trainer& trainer, Communicator& host, std::int64_t every, FitObserver& then)
      : PassingObserver(then), trainer_(trainer), host_(host), every_(every) {}

  bool goes_on() override;

 private:
  Trainer& trainer_;
  Communicator& host_;
  std::int64_t every_;
};

}  // namespace lockstep
