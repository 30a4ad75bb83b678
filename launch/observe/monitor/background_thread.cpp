// SPDX-License-Identifier: Apache-2.0
#include "launch/observe/monitor/background_thread.h"

#include <utility>

#include <pthread.h>
#include <sched.h>

#include "core/system/backtrace.h"

namespace lockstep {

std::thread start_background_thread(const char* name, std::function<void()> work) {
  return start_without_signals(name, [work = std::move(work)] {
    // A refusal is ignored: such a thread mostly sleeps anyway.
    const sched_param parameter = {};
    pthread_setschedparam(pthread_self(), SCHED_IDLE, &parameter);
    work();
  });
}

void raise_priority(std::thread& thread) {
  const sched_param parameter = {};
  pthread_setschedparam(thread.native_handle(), SCHED_OTHER, &parameter);
}

}  // namespace lockstep
