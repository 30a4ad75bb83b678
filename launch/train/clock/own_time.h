// SPDX-License-Identifier: Apache-2.0
//
// OwnTime: how long the training thread worked itself, without its waits for other ranks or a device, and
// without the time for which it was ready to run and had no core. It separates a slow rank from ranks that
// wait for it, and shows no slow rank on a machine with too few cores.
#pragma once

#include <cstdint>

namespace lockstep {

class OwnTime {
 public:
  OwnTime() = default;
  ~OwnTime();
  OwnTime(const OwnTime&) = delete;
  OwnTime& operator=(const OwnTime&) = delete;

  // Called by one thread. waits: whether the thread waits from now on. Nothing is measured before the first
  // seconds().
  void set_waits(bool waits);
  // Own time since the first call, which returns 0.
  double seconds();
  // Time without a core at the end of waits, which seconds() does not count, since the first call of
  // seconds().
  double waits_without_core() {
    seconds();
    return static_cast<double>(waits_without_core_ns_) * 1e-9;
  }

 private:
  std::int64_t without_core_ns() const;  // of the thread, so far; 0 where the system has no count

  bool started_ = false;
  bool waits_ = false;
  int file_ = -1;  // the thread's schedstat in /proc
  // At the last call:
  std::int64_t now_ns_ = 0;
  std::int64_t without_core_ns_ = 0;
  std::int64_t own_ns_ = 0;
  std::int64_t waits_without_core_ns_ = 0;
};

}  // namespace lockstep
