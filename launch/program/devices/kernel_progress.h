// SPDX-License-Identifier: Apache-2.0
//
// KernelProgress: progress of timing kernels, which takes seconds at the first start. A ProgressMeter;
// without a terminal, a log line announces the timing first.
#pragma once

#include <filesystem>
#include <optional>

#include "core/system/terminal.h"
#include "kernels/kernel_choices.h"
#include "launch/observe/terminal/progress_meter.h"

namespace lockstep {

class KernelProgress {
 public:
  // Observes the choices, which outlive this. file: where they are kept; empty: nowhere.
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
