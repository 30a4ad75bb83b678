// SPDX-License-Identifier: Apache-2.0
#include "launch/kernel_progress.h"

#include <algorithm>
#include <cmath>

#include "core/log.h"
#include "core/timeline.h"
#include "launch/progress_line.h"

namespace lockstep {

std::string kernel_progress_line(const KernelChoices::Progress& progress, double seconds_left, int columns) {
  const std::size_t expected = std::max(progress.expected, progress.held + 1);
  ProgressLine line{.start = "timing kernels",
                    .fraction = static_cast<double>(progress.held) / static_cast<double>(expected),
                    .parts = {fmt::format("{}/{}", progress.held, expected)}};
  if (!std::isnan(seconds_left)) line.parts.push_back(duration(seconds_left) + " left");
  return bar_line(line, columns);
}

KernelProgress::KernelProgress(KernelChoices& choices, const std::filesystem::path& file,
                               const Terminal& terminal)
    : choices_(choices), file_(file), terminal_(terminal) {
  choices_.observe([this](const KernelChoices::Progress& progress) { show(progress); });
}

KernelProgress::~KernelProgress() {
  choices_.observe(nullptr);
  if (started_ns_ != 0 && terminal_.present) say(kClearLine);
}

void KernelProgress::show(const KernelChoices::Progress& progress) {
  const bool first = started_ns_ == 0;
  if (first) started_ns_ = now_ns();
  if (terminal_.present) {
    const double spent = static_cast<double>(now_ns() - started_ns_) * 1e-9;
    const double each = progress.held > 0 ? spent / static_cast<double>(progress.held) : std::nan("");
    const auto left = static_cast<double>(std::max(progress.expected, progress.held + 1) - progress.held);
    say(kClearLine + kernel_progress_line(progress, each * left, terminal_.columns));
  } else if (first) {
    log::info("timing {} kernels on this machine{}", std::max<std::size_t>(progress.expected, 1),
              file_.empty() ? std::string() : ", once: the choices are kept in " + file_.string());
  }
}

}  // namespace lockstep
