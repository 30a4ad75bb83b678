// SPDX-License-Identifier: Apache-2.0
//
// In place of the emulated runtime, for tests of kernels alone: all streams are the calling thread, and work
// is done when it is given. What work throws reaches whoever gave it: a launch throws DeviceFault. There is
// any device, of as many multiprocessors as its index says, and device 0 has 4.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "tests/cuda_emulator/runtime/runtime.h"

namespace lockstep::emulator {

// While it lives, work is kept instead of done.
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

// Machine's seed from now on.
void set_seed(std::uint64_t seed);

}  // namespace lockstep::emulator
