// SPDX-License-Identifier: Apache-2.0
//
// The signals that ask a job to stop, sent by a user, a closed terminal, a scheduler or a launcher.
#pragma once

#include <array>
#include <csignal>

namespace lockstep {

struct JobSignal {
  int number;
  const char* name;
};

inline constexpr std::array<JobSignal, 6> kStopSignals = {{{SIGINT, "SIGINT"},
                                                           {SIGTERM, "SIGTERM"},
                                                           {SIGHUP, "SIGHUP"},
                                                           {SIGUSR1, "SIGUSR1"},
                                                           {SIGXCPU, "SIGXCPU"},
                                                           {SIGQUIT, "SIGQUIT"}}};

// kStopSignals and SIGUSR2, which requests a checkpoint.
inline sigset_t job_signals() {
  sigset_t set;
  sigemptyset(&set);
  for (const JobSignal& each : kStopSignals) sigaddset(&set, each.number);
  sigaddset(&set, SIGUSR2);
  return set;
}

// The name of a stop signal, such as "SIGTERM"; "a signal" for any other.
constexpr const char* signal_name(int number) {
  for (const JobSignal& each : kStopSignals)
    if (each.number == number) return each.name;
  return "a signal";
}

}  // namespace lockstep
