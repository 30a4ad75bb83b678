// SPDX-License-Identifier: Apache-2.0
//
// Residence: the place of one operation among the blocks that a device can hold at a time
// (LOCKSTEP_EMULATED_RESIDENT blocks on each multiprocessor). A kernel's blocks come in waves: it begins when
// one block has room, and takes no more than there are. A collective's blocks wait for those of its peers: it
// begins when all of them have room, and holds them until it ends.
//
// So collectives of several communicators can starve: on one rank the first holds the room that the second
// needs, on another rank the second holds what the first needs. On a GPU this is a hang. Here an operation
// that finds nothing but other collectives in its way for kPatience reports them and ends its device's work.
#pragma once

#include <chrono>
#include <cstddef>
#include <functional>

namespace lockstep::emulator {

class Residence {
 public:
  static constexpr std::chrono::seconds kPatience{3};
  enum class Kind { kernel, collective };

  // The name outlives this. given_up: looked at while this waits; true: the operation does not run at all.
  // Throws DeviceFault.
  Residence(
      int device, Kind kind, std::size_t blocks, const char* name,
      const std::function<bool()>& given_up = [] { return false; });
  ~Residence();
  Residence(const Residence&) = delete;
  Residence& operator=(const Residence&) = delete;

  // False when it was given up.
  bool granted() const { return taken_ > 0; }

 private:
  int device_;
  Kind kind_;
  const char* name_;
  std::size_t taken_ = 0;
};

}  // namespace lockstep::emulator
