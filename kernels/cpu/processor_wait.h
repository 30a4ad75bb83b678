// SPDX-License-Identifier: Apache-2.0
//
// How long this process wanted to compute and could not: because other processes had its processors, or, in a
// virtual machine, because other machines had them.
#pragma once

#include <map>
#include <string>

namespace lockstep {

class ProcessorWait {
 public:
  // From now on.
  ProcessorWait();
  // Of the time since then, the fraction that the thread or the processor that lost most had to wait: a team
  // of threads is as late as its last. 0 where the system does not say (Linux does, in /proc).
  double fraction() const;

 private:
  double begin_;                          // seconds
  std::map<std::string, double> waited_;  // seconds until then, by thread and by processor
};

}  // namespace lockstep
