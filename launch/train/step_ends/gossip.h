// SPDX-License-Identifier: Apache-2.0
//
// Gossip: ranks on a ring average parameters with their neighbours without waiting. Each rank takes steps
// with its own gradients (LocalSgd). After each step it publishes its parameters, and continues with the mean
// of them and of those that its neighbours have published since it last looked:
//
//   shown = optimizer(parameters, own gradients);  parameters = mean(shown, left's, right's where they are
//   new)
//
// This is decentralised SGD on a ring (Lian, Zhang, Zhang, Hsieh, Zhang and Liu, "Can Decentralized
// Algorithms Outperform Centralized Algorithms?", 2017), with the neighbours' latest parameters instead of
// those of the same step, as in its asynchronous form (Lian, Zhang, Zhang and Liu, "Asynchronous
// Decentralized Parallel Stochastic Gradient Descent", 2018; there two ranks atomically set their parameters
// to their mean, here each rank only reads, without locks). Each published version is averaged only once: a
// late rank would otherwise hold its neighbours back.
//
// Ranks share the steps of an epoch and take them one by one, so a fast rank takes more of them; if its own
// share of samples ends, it continues in the next order of samples. Ranks meet when an epoch is evaluated.
// The result depends on timing: no two runs have the same bits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "comm/neighbour_slots.h"
#include "core/buffer.h"
#include "core/stream.h"
#include "models/network.h"

namespace lockstep {

class Gossip {
 public:
  // Collective. All outlive this. CPU only.
  Gossip(Network& network, Communicator& communicator);
  // Memory for this size of fp32 parameters.
  static std::size_t planned_bytes(std::size_t parameter_bytes);

  // Collective, when all ranks are at step `first` of an epoch. They share `each` times their number of
  // steps.
  void begin_epoch(std::int64_t first, std::int64_t each);
  // Call before a step. False: the steps of the epoch are all taken, or given up.
  bool take_step() { return slots_.take_step(end_); }
  // No rank begins another step of this epoch.
  void give_up_epoch() { slots_.give_up_steps(end_); }
  // Call after take_step(). The step's number in the epoch: `first` plus the steps that all ranks had taken
  // before, divided by the number of ranks.
  std::int64_t place() const;
  // Collective, when no rank takes steps. Ends the epoch and returns each rank's steps in it.
  std::vector<std::int64_t> end_epoch();

  // Call after a step's optimizer: publishes the parameters and averages them with the neighbours'.
  void average(Stream& compute);

 private:
  Network& network_;
  int ranks_;
  NeighbourSlots slots_;
  Buffer theirs_;
  std::vector<std::int64_t> seen_;  // version of each neighbour's parameters that was averaged last
  std::int64_t first_ = 0;          // see begin_epoch()
  std::int64_t begin_ = 0;          // the epoch's range, in steps of all ranks since the start
  std::int64_t end_ = 0;
  std::vector<std::int64_t> before_;  // steps of each rank before this epoch
};

}  // namespace lockstep
