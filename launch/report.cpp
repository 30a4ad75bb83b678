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
#include "launch/progress_line.h"

namespace lockstep {
namespace {

constexpr std::int64_t kRedrawNs = 100'000'000;

// As printed, in the order of Phase.
constexpr const char* kPhaseNames[] = {"data",      "forward", "backward", "exposed comm",
                                       "optimizer", "device",  "rest"};
static_assert(std::size(kPhaseNames) == kPhases);

std::string thousands(double value) {
  if (!std::isfinite(value)) return fmt::format("{}", value);
  std::string text = fmt::format("{:.0f}", value);
  const std::size_t sign = text.starts_with('-');
  for (std::size_t at = text.size(); at > sign + 3;) text.insert(at -= 3, 1, ',');
  return text;
}

std::string loss_text(double loss) { return fmt::format("{:#.3g}", loss); }

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
  std::error_code error;
  std::filesystem::create_directories(options_.directory, error);
  if (error) throw_io("create the run's directory", options_.directory, error.value());
  const std::filesystem::path path = options_.directory / "metrics.jsonl";
  metrics_.open(path, std::ios::trunc);
  if (!metrics_) throw_io("create", path, errno);
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
  ProgressLine progress{.start = fmt::format("epoch {}/{}", epoch, options_.epochs),
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
