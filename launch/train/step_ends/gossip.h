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
// Ranks share the steps of an epoch (SharedSteps). If a rank's own share of samples ends, it continues in the
// next order of samples. Ranks wait for each other when an epoch is evaluated. The result depends on timing:
// no two runs have the same bits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "comm/in_process/neighbour_slots.h"
#include "core/stream.h"
#include "core/tensor/buffer.h"
#include "launch/train/step/shared_steps.h"
#include "models/network.h"

namespace lockstep {

class Gossip {
 public:
  // Collective. All outlive this. CPU only.
  Gossip(Network& network, Communicator& communicator);
  // Memory for this size of fp32 parameters.
  static std::size_t planned_bytes(std::size_t parameter_bytes);

  SharedSteps& steps() { return steps_; }
  // Call after a step's optimizer: publishes the parameters and averages them with the neighbours'.
  void average(Stream& compute);

 private:
  Network& network_;
  NeighbourSlots slots_;
  SharedSteps steps_;
  Buffer theirs_;
  std::vector<std::int64_t> seen_;  // version of each neighbour's parameters that was averaged last
};

}  // namespace lockstep
