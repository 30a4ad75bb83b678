// SPDX-License-Identifier: Apache-2.0
//
// Threads that observe a training and must not slow it down.
#pragma once

#include <functional>
#include <thread>

namespace lockstep {

// Starts a thread with this name (at most 15 characters) that does not preempt compute threads when it wakes
// (SCHED_BATCH), with all signals blocked: the training thread handles them. Throws std::system_error.
std::thread start_background_thread(const char* name, std::function<void()> work);

}  // namespace lockstep
