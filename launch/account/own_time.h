// SPDX-License-Identifier: Apache-2.0
//
// OwnTime: how long the thread that trains was at work itself, whatever it did: without its waits for other
// ranks or for a device, and without the time for which it was ready to run and had no core. So a rank that
// is slow differs from those that wait for it, and a machine with too few cores for its ranks has no slow
// rank.
#pragma once

#include <cstdint>

namespace lockstep {

class OwnTime {
 public:
  OwnTime() = default;
  ~OwnTime();
  OwnTime(const OwnTime&) = delete;
  OwnTime& operator=(const OwnTime&) = delete;

  // Called by one thread. Nothing is measured before the first seconds().
  void set_waits(bool waits);
  // Since the first call.
  double seconds();
  // Of the time that does not count here: how long it had no core when a wait was over, since the first call
  // of seconds().
  double waits_without_core() {
    seconds();
    return static_cast<double>(waits_without_core_ns_) * 1e-9;
  }

 private:
  std::int64_t without_core_ns() const;  // of the thread, so far; 0 where the system does not tell

  bool started_ = false;
  bool waits_ = false;
  int file_ = -1;  // of the thread, in /proc
  // At the last call:
  std::int64_t now_ns_ = 0;
  std::int64_t without_core_ns_ = 0;
  std::int64_t own_ns_ = 0;
  std::int64_t waits_without_core_ns_ = 0;
};

}  // namespace lockstep
