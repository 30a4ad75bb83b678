// SPDX-License-Identifier: Apache-2.0
#include "launch/program/devices/kernel_progress.h"

#include <algorithm>

#include "core/log.h"
#include "core/text/text.h"

namespace lockstep {

KernelProgress::KernelProgress(KernelChoices& choices, const std::filesystem::path& file,
                               const Terminal& terminal)
    : choices_(choices), file_(file), terminal_(terminal) {
  choices_.observe([this](const KernelChoices::Progress& progress) { show(progress); });
}

KernelProgress::~KernelProgress() { choices_.observe(nullptr); }

// One more contest is about to start, even if it was not expected.
void KernelProgress::show(const KernelChoices::Progress& progress) {
  const std::size_t expected = std::max(progress.expected, progress.held + 1);
  if (!meter_) {
    meter_.emplace("timing kernels", "kernels", terminal_);
    if (!terminal_.present)
      log::info("timing {} on this machine{}", counted(std::max<std::size_t>(progress.expected, 1), "kernel"),
                file_.empty() ? std::string() : ", once: the choices are saved in " + file_.string());
  }
  meter_->show(static_cast<std::int64_t>(progress.held), static_cast<std::int64_t>(expected));
}

}  // namespace lockstep
