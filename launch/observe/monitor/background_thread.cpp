// SPDX-License-Identifier: Apache-2.0
#include "launch/observe/monitor/background_thread.h"

#include <utility>

#include <pthread.h>
#include <sched.h>

#include "core/system/backtrace.h"

namespace lockstep {

std::thread start_background_thread(const char* name, std::function<void()> work) {
  return start_without_signals(name, [work = std::move(work)] {
    // Neither SCHED_IDLE nor a nice value: a killed process keeps its locks and memory until its last thread
    // has run again, and on a busy machine such a thread waits for a core for seconds. Most users may not
    // raise its priority either. A refusal is ignored: the thread mostly sleeps anyway.
    const sched_param parameter = {};
    pthread_setschedparam(pthread_self(), SCHED_BATCH, &parameter);
    work();
  });
}

}  // namespace lockstep
