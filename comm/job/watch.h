// SPDX-License-Identifier: Apache-2.0
//
// Watch: a thread that polls for errors the host cannot wait for: in a library's own threads, or on a device,
// after the call that started the work has returned.
#pragma once

#include <chrono>
#include <functional>
#include <thread>

namespace lockstep {

class Watch {
 public:
  // Calls healthy() every `interval` on a thread, until it returns false or this is destroyed. healthy() must
  // not throw; its log lines name this rank.
  Watch(std::chrono::milliseconds interval, std::function<bool()> healthy);

 private:
  std::jthread thread_;  // its destructor waits for a call in progress, not for the interval
};

}  // namespace lockstep
