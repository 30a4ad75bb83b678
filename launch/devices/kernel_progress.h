// SPDX-License-Identifier: Apache-2.0
//
// KernelProgress: what a start says while it times kernels, which takes seconds the first time. A
// ProgressMeter; where nobody watches, a line that tells what takes so long comes first.
#pragma once

#include <filesystem>
#include <optional>

#include "kernels/kernel_choices.h"
#include "launch/terminal/progress_meter.h"
#include "launch/terminal/terminal.h"

namespace lockstep {

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
  std::optional<ProgressMeter> meter_;  // since the first contest
};

}  // namespace lockstep
