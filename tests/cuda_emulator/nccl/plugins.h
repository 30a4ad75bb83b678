// SPDX-License-Identifier: Apache-2.0
//
// The tuner and the profiler that a program brings for NCCL (NCCL_TUNER_PLUGIN, NCCL_PROFILER_PLUGIN =
// "STATIC_PLUGIN"), as NCCL 2.28 calls them. Only version 5 of both interfaces is looked up. Calls of their
// functions are visible to ThreadSanitizer: no Unseen may live.
#pragma once

#include <cstdint>
#include <vector>

#include "comm/nccl/plugins.h"
#include "tests/cuda_emulator/nccl/call.h"

namespace lockstep::emulator {

// The plugins of one communicator.
class Plugins {
 public:
  Plugins() = default;
  Plugins(const Plugins&) = delete;
  Plugins& operator=(const Plugins&) = delete;

  // Loads the plugins of the process, if this is its first communicator.
  void begin(std::uint64_t communicator, const char* name, int nodes, int ranks, int rank);
  void end();

  // The blocks of an operation, at most `most`. NCCL does not ask the tuner for kernels on symmetric windows.
  int blocks(const Operation& operation, int ranks, int most) const;

  // The events of one operation, whose blocks begin in the constructor and end in the destructor.
  class Events {
   public:
    Events(const Plugins& plugins, const Operation& operation, int blocks, int rank);
    ~Events();
    Events(const Events&) = delete;
    Events& operator=(const Events&) = delete;

   private:
    std::vector<void*> blocks_;  // handles
  };

 private:
  bool begun_ = false;
  void* tuner_ = nullptr;
  void* profiler_ = nullptr;
};

}  // namespace lockstep::emulator
