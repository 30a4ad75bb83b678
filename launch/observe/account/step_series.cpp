// SPDX-License-Identifier: Apache-2.0
#include "launch/observe/account/step_series.h"

#include <algorithm>

#include "core/error.h"
#include "launch/observe/account/busy.h"

namespace lockstep {

StepSeries::StepSeries(std::int64_t every, const StepTotals& begin)
    : every_(every), last_(begin), last_ns_(now_ns()) {
  CHECK(every > 0, "the interval of lines is {} steps", every);
}

StepLine StepSeries::take(const StepTotals& totals) {
  const std::int64_t now = now_ns();
  const double seconds = seconds_between(last_ns_, now);
  StepLine line{.steps = totals.steps - last_.steps};
  line.loss = (totals.losses.loss - last_.losses.loss) / (totals.losses.weight - last_.losses.weight);
  line.samples_per_second = static_cast<double>(totals.samples - last_.samples) / seconds;
  line.account = totals.account - last_.account;
  // On a GPU, adds the time outside of its steps.
  line.account[Phase::rest] = std::max(line.account[Phase::rest], seconds - line.account.total());
  line.without_core_seconds = totals.without_core_seconds - last_.without_core_seconds;
  line.loader_seconds = totals.loader_seconds - last_.loader_seconds;
  line.busy = busy_share(line.account, line.without_core_seconds);
  last_ = totals;
  last_ns_ = now;
  return line;
}

double overall_rate(const StepLine& line) {
  const double seconds = line.account.total();
  return seconds > 0 ? line.samples_per_second * seconds / (seconds + line.evaluation_seconds) : 0;
}

double overall_busy(const StepLine& line) {
  const double seconds = line.account.total();
  return seconds > 0 ? line.busy * seconds / (seconds + line.evaluation_seconds) : 0;
}

}  // namespace lockstep
