// SPDX-License-Identifier: Apache-2.0
#include "launch/report.h"

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "launch/run_folder.h"

namespace lockstep {
namespace {

constexpr std::int64_t kRedrawNs = 100'000'000;
constexpr int kShortestBar = 8;
constexpr int kLongestBar = 40;
constexpr const char* kClearLine = "\r\x1b[K";

// As printed, in the order of Phase.
constexpr const char* kPhaseNames[] = {"data",      "forward", "backward", "exposed comm",
                                       "optimizer", "device",  "rest"};
static_assert(std::size(kPhaseNames) == kPhases);

// A closed pipe or a full disk behind stdout must not end a training run.
void say(const std::string& text) {
  std::fwrite(text.data(), 1, text.size(), stdout);
  std::fflush(stdout);
}

std::string thousands(double value) {
  if (!std::isfinite(value)) return fmt::format("{}", value);
  std::string text = fmt::format("{:.0f}", value);
  const std::size_t sign = text.starts_with('-');
  for (std::size_t at = text.size(); at > sign + 3;) text.insert(at -= 3, 1, ',');
  return text;
}

std::string loss_text(double loss) { return fmt::format("{:#.3g}", loss); }

std::string duration(double seconds) {
  const auto total = static_cast<std::int64_t>(std::llround(std::max(0.0, seconds)));
  const std::int64_t hours = total / 3600, minutes = total / 60 % 60;
  return hours > 0 ? fmt::format("{}:{:02}:{:02}", hours, minutes, total % 60)
                   : fmt::format("{}:{:02}", minutes, total % 60);
}

std::string bar(double fraction, int columns) {
  const int full = std::clamp(static_cast<int>(fraction * columns), 0, columns);
  return fmt::format("[{:#<{}}{:.<{}}]", "", full, "", columns - full);
}

struct Progress {
  std::string start;               // "epoch 2/5"
  double fraction = 0;             // of the epoch
  std::vector<std::string> parts;  // what matters most first
};

// As much of it as fits in one terminal line, the bar in what is left.
std::string bar_line(const Progress& progress, int terminal_columns) {
  const int columns = terminal_columns - 1;  // a full last column wraps on some terminals
  std::string tail;
  for (const std::string& part : progress.parts) {
    if (progress.start.size() + tail.size() + 2 + part.size() > static_cast<std::size_t>(columns)) break;
    tail += "  " + part;
  }
  const int room = columns - static_cast<int>(progress.start.size() + tail.size()) - 4;  // "  [" and "]"
  if (room >= kShortestBar)
    return progress.start + "  " + bar(progress.fraction, std::min(room, kLongestBar)) + tail;
  return (progress.start + tail).substr(0, static_cast<std::size_t>(std::max(columns, 0)));
}

std::string plain_line(const Progress& progress) {
  std::string line = progress.start;
  for (const std::string& part : progress.parts) line += "  " + part;
  return line;
}

std::string account_text(const StepAccount& account) {
  const double total = account.total();
  std::string text;
  for (std::size_t phase = 0; phase < kPhases; ++phase)
    if (account.seconds[phase] > 0 || static_cast<Phase>(phase) != Phase::device_wait)  // a CPU has none
      text += fmt::format("{}{} {:.1f} %", phase == 0 ? "" : "  ", kPhaseNames[phase],
                          total > 0 ? 100 * account.seconds[phase] / total : 0.0);
  return text;
}

[[noreturn]] void throw_io(const std::string& what, const std::filesystem::path& path, int error) {
  throw IoError(fmt::format("cannot {} {}: {}", what, path.string(), std::strerror(error)));
}

}  // namespace

Report::Report(const ReportOptions& options) : options_(options) {
  if (!options_.speaks) return;
  metrics_ = open_metrics(options_.directory);
}

void Report::header(const std::string& line) {
  if (!options_.speaks) return;
  say(fmt::format("{}\n{} epoch{} of {} steps, global batch {}\n", line, options_.epochs,
                  options_.epochs == 1 ? "" : "s", options_.steps_per_epoch, options_.global_batch));
}

// Evaluation counts as the steps' time. NaN until a second step was seen.
double Report::seconds_left(std::int64_t steps_done) {
  const std::int64_t now = now_ns();
  if (started_at_ == 0) {
    started_ns_ = now;
    started_at_ = steps_done;
  }
  const auto seen = static_cast<double>(steps_done - started_at_);
  const auto left = static_cast<double>(options_.epochs * options_.steps_per_epoch - steps_done);
  return seen > 0 ? 1e-9 * static_cast<double>(now - started_ns_) / seen * left : std::nan("");
}

void Report::step(std::int64_t epoch, std::int64_t step, double loss, double samples_per_second) {
  if (!options_.speaks) return;
  const std::int64_t steps = options_.steps_per_epoch;
  const double left = seconds_left((epoch - 1) * steps + step);
  const std::int64_t now = now_ns();
  const bool due = options_.terminal ? now - last_drawn_ns_ >= kRedrawNs || step == steps
                                     : step * 10 / steps != (step - 1) * 10 / steps;
  if (!due) return;
  last_drawn_ns_ = now;
  Progress progress{.start = fmt::format("epoch {}/{}", epoch, options_.epochs),
                    .fraction = static_cast<double>(step) / static_cast<double>(steps),
                    .parts = {fmt::format("{}/{}", step, steps)}};
  if (!std::isnan(loss)) progress.parts.push_back("loss " + loss_text(loss));
  progress.parts.push_back(thousands(samples_per_second) + " samples/s");
  if (std::isfinite(left)) progress.parts.push_back(duration(left) + " left");
  say(options_.terminal ? kClearLine + bar_line(progress, options_.columns) : plain_line(progress) + '\n');
}

void Report::epoch(const EpochReport& report) {
  if (!options_.speaks) return;
  const std::string summary =
      fmt::format("epoch {}/{}  train loss {}  test loss {}  test accuracy {:.2f} %  {} samples/s",
                  report.epoch, options_.epochs, loss_text(report.train_loss), loss_text(report.test_loss),
                  100 * report.test_accuracy, thousands(report.samples_per_second));
  const std::string account = account_text(report.account);
  const bool fits = summary.size() + 4 + account.size() < static_cast<std::size_t>(options_.columns);
  if (options_.terminal)
    say(kClearLine + summary + (fits ? "  | " : "\n    ") + account + '\n');
  else
    say(summary + "  | " + account + '\n');
  errno = 0;
  metrics_ << to_json(report) << '\n' << std::flush;
  if (!metrics_) throw_io("write", options_.directory / "metrics.jsonl", errno);
}

std::string to_json(const EpochReport& report) {
  nlohmann::ordered_json account;
  for (std::size_t phase = 0; phase < kPhases; ++phase)
    account[std::string(name_of(static_cast<Phase>(phase)))] = report.account.seconds[phase];
  // nlohmann::json writes numbers that are not finite as null.
  return nlohmann::ordered_json{{"epoch", report.epoch},
                                {"steps", report.steps},
                                {"train_loss", report.train_loss},
                                {"test_loss", report.test_loss},
                                {"test_accuracy", report.test_accuracy},
                                {"samples_per_second", report.samples_per_second},
                                {"learning_rate", report.learning_rate},
                                {"train_seconds", report.train_seconds},
                                {"evaluation_seconds", report.evaluation_seconds},
                                {"skipped_steps", report.skipped_steps},
                                {"loss_scale", report.loss_scale},
                                {"account", account}}
      .dump();
}

}  // namespace lockstep
