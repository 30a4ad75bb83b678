// SPDX-License-Identifier: Apache-2.0
//
// OwnTime: how long the training thread worked itself, without its waits for other ranks or a device, and
// without the time for which it was ready to run and had no core. It separates a slow rank from ranks that
// wait for it, and shows no slow rank on a machine with too few cores.
#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include "core/timeline.h"

namespace lockstep {

class OwnTime {
 public:
  // schedstat: a file of Linux with the times of the thread that opens it.
  explicit OwnTime(std::string schedstat = "/proc/thread-self/schedstat")
      : schedstat_(std::move(schedstat)) {}
  ~OwnTime();
  OwnTime(const OwnTime&) = delete;
  OwnTime& operator=(const OwnTime&) = delete;

  // Called by one thread, whose phase begins. Nothing is measured before the first seconds().
  void enter(Phase phase);
  // Own time since the first call, which returns 0.
  double seconds();
  // Time without a core in all phases except forward, backward and optimizer, since the first call of
  // seconds().
  double without_core_outside_compute() {
    seconds();
    return static_cast<double>(outside_compute_ns_) * 1e-9;
  }

 private:
  std::int64_t without_core_ns() const;  // of the thread, so far; 0 where the system has no count

  std::string schedstat_;
  bool started_ = false;
  bool waits_ = false;     // for other ranks or a device
  bool computes_ = false;  // forward, backward or optimizer
  int file_ = -1;
  // At the last call:
  std::int64_t now_ns_ = 0;
  std::int64_t without_core_ns_ = 0;
  std::int64_t own_ns_ = 0;
  std::int64_t outside_compute_ns_ = 0;
};

}  // namespace lockstep
