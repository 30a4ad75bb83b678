// SPDX-License-Identifier: Apache-2.0
//
// KernelProgress: what a start says while it times kernels, which takes seconds the first time. On a terminal
// a bar with the time left, which goes when this does; elsewhere one line.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "kernels/kernel_choices.h"
#include "launch/terminal.h"

namespace lockstep {

// "timing kernels  [####....]  12/33  0:03 left"; NaN seconds: not known yet.
std::string kernel_progress_line(const KernelChoices::Progress& progress, double seconds_left, int columns);

class KernelProgress {
 public:
  // Observes the choices, which outlive this. file is where they are kept; empty: nowhere.
  KernelProgress(KernelChoices& choices, const std::filesystem::path& file, const Terminal& terminal);
  ~KernelProgress();
  KernelProgress(const KernelProgress&) = delete;
  KernelProgress& operator=(const KernelProgress&) = delete;

 private:
  void show(const KernelChoices::Progress& progress);

  KernelChoices& choices_;
  std::filesystem::path file_;
  Terminal terminal_;
  std::int64_t started_ns_ = 0;  // 0: nothing was shown
};

}  // namespace lockstep
