// SPDX-License-Identifier: Apache-2.0
//
// Replaces the emulated runtime in tests of single kernels: all streams are the calling thread, and work runs
// at once. Exceptions of the work reach the caller: a launch throws DeviceFault. Every device index exists; a
// device's number of multiprocessors is its index, except for device 0, which has 4.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "tests/cuda_emulator/runtime/runtime.h"

namespace lockstep::emulator {

// While an object lives, work is kept instead of run.
class HeldWork {
 public:
  HeldWork();
  ~HeldWork();
  HeldWork(const HeldWork&) = delete;
  HeldWork& operator=(const HeldWork&) = delete;

  void add(Work work) { works_.push_back(std::move(work)); }
  std::vector<Work> take() { return std::exchange(works_, {}); }

 private:
  std::vector<Work> works_;
};

// Sets the seed of the Machine from now on.
void set_seed(std::uint64_t seed);

}  // namespace lockstep::emulator
