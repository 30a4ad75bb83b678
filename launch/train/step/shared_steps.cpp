// SPDX-License-Identifier: Apache-2.0
#include "launch/train/step/shared_steps.h"

#include <utility>

namespace lockstep {

SharedSteps::SharedSteps(NeighbourSlots& slots, Communicator& communicator)
    : slots_(slots), communicator_(communicator), before_(static_cast<std::size_t>(communicator.size())) {}

void SharedSteps::begin_epoch(std::int64_t first, std::int64_t each) {
  first_ = first;
  begin_ = end_;
  end_ += each * communicator_.size();
}

std::optional<std::int64_t> SharedSteps::take() {
  if (!slots_.take_step(end_)) return std::nullopt;
  return first_ + (slots_.steps_taken() - 1 - begin_) / communicator_.size();
}

std::vector<std::int64_t> SharedSteps::end_epoch() {
  const auto wait_for_peers = [this] {
    communicator_.barrier();
    communicator_.stream().synchronize();
  };
  wait_for_peers();
  std::vector<std::int64_t> steps;
  for (int rank = 0; rank < communicator_.size(); ++rank) {
    const std::int64_t taken = slots_.steps_taken(rank);
    steps.push_back(taken - std::exchange(before_[static_cast<std::size_t>(rank)], taken));
  }
  end_ = slots_.steps_taken();
  wait_for_peers();  // a peer that has ended frees the memory read above
  return steps;
}

}  // namespace lockstep
