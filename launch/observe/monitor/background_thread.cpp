// SPDX-License-Identifier: Apache-2.0
#include "launch/observe/monitor/background_thread.h"

#include <csignal>
#include <utility>

#include <pthread.h>
#include <sched.h>

#include "core/system/backtrace.h"

namespace lockstep {

std::thread start_background_thread(const char* name, std::function<void()> work) {
  const auto all = [name, work = std::move(work)] {
    name_thread(name);
    // A refusal is ignored: such a thread mostly sleeps anyway.
    const sched_param parameter = {};
    pthread_setschedparam(pthread_self(), SCHED_IDLE, &parameter);
    work();
  };
  // The new thread inherits the mask.
  struct BlockedSignals {
    BlockedSignals() {
      sigset_t signals;
      sigfillset(&signals);
      pthread_sigmask(SIG_SETMASK, &signals, &before);
    }
    ~BlockedSignals() { pthread_sigmask(SIG_SETMASK, &before, nullptr); }
    sigset_t before;
  };
  const BlockedSignals blocked;
  return std::thread(all);
}

void raise_priority(std::thread& thread) {
  const sched_param parameter = {};
  pthread_setschedparam(thread.native_handle(), SCHED_OTHER, &parameter);
}

}  // namespace lockstep
