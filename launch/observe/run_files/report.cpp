// SPDX-License-Identifier: Apache-2.0
#include "launch/observe/run_files/report.h"

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <utility>

#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/log.h"
#include "core/system/printable.h"
#include "core/system/terminal.h"
#include "core/text/json_text.h"
#include "core/text/text.h"
#include "core/timeline.h"
#include "launch/observe/run_files/event_command.h"
#include "launch/observe/run_files/metric_lines.h"
#include "launch/observe/run_files/report_json.h"
#include "launch/observe/run_files/run_folder.h"
#include "launch/observe/terminal/progress_line.h"

namespace lockstep {
namespace {

constexpr std::int64_t kRedrawNs = 100'000'000;
constexpr const char* kIndent = "    ";

// Three digits. "#" keeps their zeros; fmt 9 would also append ".0" to a number without decimals.
std::string loss_text(double loss) {
  const bool has_decimals = std::abs(loss) < 99.95 || std::abs(loss) >= 999.5;
  return has_decimals ? fmt::format("{:#.3g}", loss) : fmt::format("{:.0f}", loss);
}

std::vector<std::string> words_of(const std::string& text) {
  const auto words = split_text(text, ' ');
  return {words.begin(), words.end()};
}

// A Markdown code block of the text.
std::string code_block(const std::string& text) {
  std::string block;
  for (const char each : "\n" + text) {
    block += each;
    if (each == '\n') block += kIndent;
  }
  return block;
}

}  // namespace

template <typename Told>
void Report::write_events(std::int64_t step, const Told& told) {
  const int error = events_.add(step, told);
  if (error == 0) return;
  if (lost_events_++ == 0)
    log::warning("cannot write {}: {}; training continues without it", events_.path().string(),
                 std::strerror(error));
  events_problem_ = fmt::format("{} lacks {}: {}", events_.path().string(), counted(lost_events_, "event"),
                                std::strerror(error));
}

Report::Report(const ReportOptions& options)
    : options_(options),
      steps_(options.directory / "steps.jsonl"),
      evaluations_(options.directory / "evaluations.jsonl"),
      idle_events_(options.directory / "events.jsonl") {
  if (!options_.speaks) return;
  const std::filesystem::path charts = options_.directory / "tensorboard";
  if (options_.goes_on_after) {
    continue_metrics(options_.directory, *options_.goes_on_after, options_.partial_line);
    continue_steps(options_.directory, options_.goes_on_after_step);
  } else {
    begin_metrics(options_.directory);
  }
  try {
    events_ = options_.goes_on_after ? EventFile::continue_after(charts, options_.goes_on_after_step)
                                     : EventFile::begin(charts);
  } catch (const IoError& error) {
    log::warning("{}; training continues without files for TensorBoard", error.what());
    events_problem_ = error.what();
  }
}

// Joins the parts into lines that fit the terminal, with continuation lines indented; one line without a
// terminal. Never breaks a part.
std::string Report::in_lines(const std::vector<std::string>& parts, const std::string& separator) const {
  const std::size_t columns = options_.terminal ? static_cast<std::size_t>(options_.columns)
                                                : std::numeric_limits<std::size_t>::max();
  std::string text;
  std::size_t width = 0;
  for (const std::string& part : parts) {
    if (text.empty()) {
      text = part;
      width = part.size();
    } else if (width + separator.size() + part.size() < columns) {
      text += separator + part;
      width += separator.size() + part.size();
    } else {
      text += fmt::format("\n{}{}", kIndent, part);
      width = std::strlen(kIndent) + part.size();
    }
  }
  return text;
}

void Report::header(const std::string& line) {
  if (!options_.speaks) return;
  const std::string epochs = counted(options_.epochs, "epoch");
  const std::string amount = options_.total_steps == options_.epochs * options_.steps_per_epoch
                                 ? fmt::format("{} of {}", epochs, counted(options_.steps_per_epoch, "step"))
                                 : fmt::format("{} in {} of {}", counted(options_.total_steps, "step"),
                                               epochs, options_.steps_per_epoch);
  std::string tail;
  if (options_.dropped_samples > 0) {
    tail = fmt::format("; each epoch skips {} (data.tail)", counted(options_.dropped_samples, "sample"));
  } else if (options_.repeated_samples > 0) {
    tail = fmt::format("; each epoch repeats {} (data.tail)", counted(options_.repeated_samples, "sample"));
  } else if (options_.last_batch_samples > 0) {
    tail = fmt::format("; the last batch of an epoch has {} (data.tail)",
                       counted(options_.last_batch_samples, "sample"));
  }
  say(in_lines(words_of(printable(line)), " ") + '\n');
  say(in_lines(words_of(fmt::format("{}, global batch {}{}", amount, options_.global_batch, tail)), " ") +
      '\n');
  this->line(fmt::format("metrics are written to {}", metrics_path().string()));
}

void Report::line(const std::string& text) {
  evaluation_.reset();
  if (!options_.speaks) return;
  say((options_.terminal ? kClearLine : "") + in_lines(words_of(printable(text)), " ") + '\n');
}

void Report::command(const std::string& words) {
  if (options_.speaks) say(printable(words) + '\n');
}

// Includes evaluation in the time of a step. NaN until the second reported step.
double Report::seconds_left(std::int64_t steps_done) {
  const std::int64_t now = now_ns();
  if (started_at_ == 0) {
    started_ns_ = now;
    started_at_ = steps_done;
  }
  const auto seen = static_cast<double>(steps_done - started_at_);
  const auto left = static_cast<double>(options_.total_steps - steps_done);
  return seen > 0 ? seconds_between(started_ns_, now) / seen * left : std::nan("");
}

void Report::step(const StepRecord& record) {
  if (!options_.speaks) return;
  const std::int64_t step = record.epoch_step, steps = record.epoch_steps;
  const double left = seconds_left(record.step);
  const std::int64_t now = now_ns();
  const bool due = options_.terminal ? now - last_drawn_ns_ >= kRedrawNs || step == steps
                                     : step * 10 / steps != (step - 1) * 10 / steps;
  if (!due) return;
  last_drawn_ns_ = now;
  ProgressLine progress{.start = fmt::format("epoch {}/{}", record.epoch, options_.epochs),
                        .fraction = static_cast<double>(step) / static_cast<double>(steps),
                        .parts = {fmt::format("{}/{}", step, steps)}};
  if (!std::isnan(record.loss)) progress.parts.push_back("loss " + loss_text(record.loss));
  if (record.samples_per_second > 0)
    progress.parts.push_back(per_second(record.samples_per_second, "samples"));
  if (std::isfinite(left)) progress.parts.push_back(duration(left) + " left");
  say(options_.terminal ? kClearLine + bar_line(progress, options_.columns) : plain_line(progress) + '\n');
}

void Report::evaluating(std::int64_t step, std::int64_t steps) {
  if (!options_.speaks) return;
  if (!evaluation_)
    evaluation_.emplace("evaluating", "batches",
                        Terminal{.present = options_.terminal, .columns = options_.columns});
  evaluation_->show(step, steps);
  if (step == steps) evaluation_.reset();
}

void Report::epoch(const EpochReport& report) {
  if (!options_.speaks) return;
  std::vector<std::string> parts = {fmt::format("epoch {}/{}", report.epoch, options_.epochs),
                                    fmt::format("busy {:.0f} %", 100 * report.busy)};
  if (report.peak) parts.push_back(fmt::format("peak {:.0f} %", 100 * *report.peak));
  parts.push_back("loss " + loss_text(report.train_loss));
  if (const auto& evaluation = report.evaluation) {
    parts.push_back("test loss " + loss_text(evaluation->loss));
    parts.push_back(fmt::format("accuracy {:.2f} %", 100 * evaluation->accuracy));
  }
  parts.push_back(per_second(report.samples_per_second, "samples"));
  say((options_.terminal ? kClearLine : "") + in_lines(parts, "  ") + '\n');
  if (report.evaluation && report.evaluation->metrics) {
    std::vector<std::string> metrics;
    add_metrics(*report.evaluation->metrics, metrics);
    print_indented(metrics, "  ");
  }
  if (report.communication) {
    print_indented(communication_parts(*report.communication), "  ");
    if (report.advice) advise(report.advice->text);
    if (busy_watch_) busy_watch_->set_advice(report.advice);
  }
  if (!report.steps_by_rank.empty())
    say(fmt::format("  steps by rank: {}\n", fmt::join(report.steps_by_rank, ", ")));
  for (const std::string& text : price_of_metrics(report)) advise(text);
  if (report.more_ranks && !std::exchange(more_ranks_told_, true)) advise(report.more_ranks->text);
  EpochReport line = report;
  line.stragglers = std::exchange(stragglers_, {});
  write_metrics(line);
}

void Report::print_indented(std::vector<std::string> parts, const std::string& separator) const {
  if (parts.empty()) return;
  parts.front().insert(0, "  ");
  say(in_lines(parts, separator) + '\n');
}

void Report::advise(const std::string& text) const { print_indented(words_of("advice: " + text), " "); }

void Report::write_metrics(const EpochReport& report) {
  const nlohmann::ordered_json line = json_of(report);
  write_events(report.step, scalars_of(line));
  const int error = append_whole(metrics_path(), dumped(line) + '\n');
  if (error == 0) return;
  if (lost_epochs_.empty()) {
    log::warning("cannot write {}: {}; training continues without it", metrics_path().string(),
                 std::strerror(error));
  }
  lost_epochs_.push_back(report.epoch);
  metrics_problem_ =
      fmt::format("{} lacks epoch{} {}: {}", metrics_path().string(), lost_epochs_.size() == 1 ? "" : "s",
                  fmt::join(lost_epochs_, ", "), std::strerror(error));
}

void Report::watch_busy(const BusyOptions& options, const IdleContext& context,
                        std::function<void(const IdleEvent&)> found) {
  if (!options_.speaks || options.below <= 0) return;
  busy_watch_.emplace(options, context);
  idle_found_ = std::move(found);
  const char* told = std::getenv(kEventCommandVariable);
  event_command_ = options.runs_command()             ? options.command
                   : told != nullptr && *told != '\0' ? told
                                                      : "none";
}

void Report::tell(const IdleEvent& event) {
  line(to_text(event));
  if (idle_found_) idle_found_(event);
  const std::string json = to_json(event, seconds_since_1970());
  idle_events_.add(json);
  if (event_command_ == "none") return;
  if (const int error = tell_command(event_command_, json, options_.directory / kEventCommandLog); error != 0)
    log::warning("cannot start the command of run.event_command or {}: {}", kEventCommandVariable,
                 std::strerror(error));
}

double Report::series(const StepLine& line) {
  if (!options_.speaks) return 0;
  if (busy_watch_)
    if (const auto event = busy_watch_->look(line, seconds_since(0))) tell(*event);
  const std::int64_t begin = now_ns();
  nlohmann::ordered_json json = json_of(line);
  write_events(line.step, scalars_of(json, "step/"));
  json["time"] = seconds_since_1970();
  steps_.add(json.dump());
  return seconds_between(begin, now_ns());
}

void Report::started(const std::string& config, const std::string& facts) {
  if (!options_.speaks) return;
  const std::int64_t step = options_.goes_on_after_step;
  write_events(step, EventText{.tag = "run/config", .markdown = code_block(config)});
  write_events(step, EventText{.tag = "run/machine", .markdown = code_block(facts)});
}

void Report::histograms(std::int64_t step, const std::vector<Histogram>& histograms) {
  if (options_.speaks) write_events(step, histograms);
}

void Report::evaluation(const EvaluationRecord& record) {
  if (options_.speaks) evaluations_.add(json_of(record).dump());
}

std::vector<std::string> Report::problems() const {
  std::vector<std::string> problems;
  for (const std::string* each : {&metrics_problem_, &events_problem_, &steps_.problem(),
                                  &evaluations_.problem(), &idle_events_.problem()})
    if (!each->empty()) problems.push_back(*each);
  return problems;
}

std::vector<std::filesystem::path> Report::files() const {
  return {metrics_path(), steps_.path(), evaluations_.path(), idle_events_.path(), events_.path()};
}

}  // namespace lockstep
