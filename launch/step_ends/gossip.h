// SPDX-License-Identifier: Apache-2.0
//
// Gossip: ranks on a ring that average parameters with their neighbours and wait for nobody. Each rank takes
// steps with its own gradients (LocalSgd); behind each it shows its parameters, and goes on with the mean of
// them and of those that its neighbours have shown since it looked last:
//
//   shown = optimizer(parameters, own gradients);  parameters = mean(shown, left's, right's where they are
//   new)
//
// which is decentralised SGD on a ring (Lian, Zhang, Zhang, Hsieh, Zhang and Liu, "Can Decentralized
// Algorithms Outperform Centralized Algorithms?", 2017), with what neighbours have at that moment in place of
// what they have at the same step, as in its asynchronous form (Lian, Zhang, Zhang and Liu, "Asynchronous
// Decentralized Parallel Stochastic Gradient Descent", 2018; there two ranks set their parameters to their
// mean at once, here each only looks, and nobody's are locked). What a neighbour has shown is averaged with
// once: a rank that is late would else hold its neighbours where it was.
//
// The steps of an epoch are common to all ranks and taken one by one, so that a fast rank takes more of them;
// it then goes on in the next order of samples, in its own share. Ranks meet where an epoch is evaluated.
// What is trained depends on who was faster when: no two runs have the same bits.
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
  // Collective. All outlive this. On a CPU alone.
  Gossip(Network& network, Communicator& communicator);
  // Of fp32 parameters of so many bytes.
  static std::size_t planned_bytes(std::size_t parameter_bytes);

  // Collective, when all ranks stand at the same place: step `first` of an epoch. The ranks' next steps are
  // `each` times their number.
  void begin_epoch(std::int64_t first, std::int64_t each);
  // Before a step. False: those of the epoch are all taken, or given up.
  bool take_step() { return slots_.take_step(end_); }
  // No rank begins another step of this epoch.
  void give_up_epoch() { slots_.give_up_steps(end_); }
  // Behind take_step(): where in the epoch it lies, by the steps all ranks had taken before, divided by their
  // number.
  std::int64_t place() const;
  // Steps of each rank in this epoch, which ends here. All ranks are where none takes any.
  std::vector<std::int64_t> end_epoch();

  // Behind a step's optimizer: shows the parameters and averages them with the neighbours'.
  void average(Stream& compute);

 private:
  Network& network_;
  int ranks_;
  NeighbourSlots slots_;
  Buffer theirs_;
  std::vector<std::int64_t> seen_;  // number of what each neighbour showed, that was averaged with last
  std::int64_t first_ = 0;          // see begin_epoch()
  std::int64_t begin_ = 0;          // of the epoch's steps, by all ranks and from the start
  std::int64_t end_ = 0;
  std::vector<std::int64_t> before_;  // steps of each rank that were told
};

}  // namespace lockstep
