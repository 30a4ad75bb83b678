// SPDX-License-Identifier: Apache-2.0
//
// Watch: a thread that looks after something the host cannot wait for: what goes wrong in a library's own
// threads, or on a device, long after the call that started it has returned.
#pragma once

#include <chrono>
#include <functional>
#include <thread>

namespace lockstep {

class Watch {
 public:
  // Calls healthy() every `interval` on a thread of its own, until it returns false or this ends. It must not
  // throw, and names this rank in its log lines.
  Watch(std::chrono::milliseconds interval, std::function<bool()> healthy);

 private:
  std::jthread thread_;  // its destructor waits for a call in progress, not for the interval
};

}  // namespace lockstep
