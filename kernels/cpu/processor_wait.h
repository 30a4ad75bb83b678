// SPDX-License-Identifier: Apache-2.0
//
// Measures how long this process was ready to compute but had no processor, because other processes or, in a
// virtual machine, other guests used it.
#pragma once

#include <map>
#include <string>

namespace lockstep {

class ProcessorWait {
 public:
  // Starts measuring.
  ProcessorWait();
  // The fraction of the time since construction that the most delayed thread or processor waited: a team of
  // threads is as late as its last. 0 if the system does not report it (Linux does, in /proc).
  double fraction() const;

 private:
  double begin_;                          // seconds
  std::map<std::string, double> waited_;  // seconds waited before construction, by thread and by processor
};

}  // namespace lockstep
