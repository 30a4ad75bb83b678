// SPDX-License-Identifier: Apache-2.0
//
// Residence: the blocks that one operation occupies of the blocks that a device can hold at a time
// (LOCKSTEP_EMULATED_RESIDENT blocks on each multiprocessor). The blocks of a kernel run in waves: the kernel
// begins when there is space for one block, and takes at most the free space. The blocks of a collective wait
// for those of its peers: it begins when there is space for all of them, and holds it until it ends.
//
// Collectives of several communicators can therefore deadlock: on one rank the first one holds the space that
// the second one needs, on another rank it is the opposite. On a GPU the job hangs. Here, an operation that
// only waits for other collectives for kPatience reports them and breaks its device.
#pragma once

#include <chrono>
#include <cstddef>
#include <functional>

namespace lockstep::emulator {

class Residence {
 public:
  static constexpr std::chrono::seconds kPatience{3};
  enum class Kind { kernel, collective };

  // The name must outlive the object. given_up is polled during the wait; if it returns true, the operation
  // must not run. Throws DeviceFault.
  Residence(
      int device, Kind kind, std::size_t blocks, const char* name,
      const std::function<bool()>& given_up = [] { return false; });
  ~Residence();
  Residence(const Residence&) = delete;
  Residence& operator=(const Residence&) = delete;

  // False if the operation was given up.
  bool granted() const { return taken_ > 0; }

 private:
  int device_;
  Kind kind_;
  const char* name_;
  std::size_t taken_ = 0;
};

}  // namespace lockstep::emulator
