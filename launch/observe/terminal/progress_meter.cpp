// SPDX-License-Identifier: Apache-2.0
#include "launch/observe/terminal/progress_meter.h"

#include <algorithm>
#include <utility>

#include "launch/observe/terminal/progress_line.h"

namespace lockstep {
namespace {

constexpr std::int64_t kRedrawnEveryNs = 100'000'000;
constexpr std::int64_t kLineEveryNs = 10'000'000'000;

}  // namespace

ProgressMeter::ProgressMeter(std::string what, std::string unit, const Terminal& terminal,
                             std::int64_t begin_ns)
    : what_(std::move(what)),
      unit_(std::move(unit)),
      terminal_(terminal),
      began_ns_(begin_ns),
      shown_ns_(terminal.present ? begin_ns - kRedrawnEveryNs : begin_ns) {}

ProgressMeter::~ProgressMeter() { clear(); }

void ProgressMeter::show(std::int64_t done, std::int64_t all) {
  const std::string text = this->text(now_ns(), done, all);
  if (text.empty()) return;
  drawn_ = terminal_.present;
  say(text);
}

std::string ProgressMeter::text(std::int64_t now_ns, std::int64_t done, std::int64_t all) {
  if (now_ns - shown_ns_ < (terminal_.present ? kRedrawnEveryNs : kLineEveryNs)) return {};
  shown_ns_ = now_ns;
  const double seconds = seconds_between(began_ns_, now_ns);
  const double share = static_cast<double>(done) / static_cast<double>(std::max<std::int64_t>(all, 1));
  ProgressLine line{
      .start = what_,
      .fraction = share,
      .parts = {thousands(static_cast<double>(done)) + '/' + thousands(static_cast<double>(all))}};
  if (done > 0 && seconds > 0) {
    line.parts.push_back(per_second(static_cast<double>(done) / seconds, unit_));
    line.parts.push_back(duration(seconds / share - seconds) + " left");
  }
  return terminal_.present ? kClearLine + bar_line(line, terminal_.columns) : plain_line(line) + '\n';
}

void ProgressMeter::clear() {
  if (std::exchange(drawn_, false)) say(kClearLine);
}

double ProgressMeter::seconds() const { return seconds_since(began_ns_); }

}  // namespace lockstep
