// SPDX-License-Identifier: Apache-2.0
#include "launch/program/sweep/sweep.h"

#include <algorithm>
#include <iterator>
#include <optional>
#include <sstream>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/files/atomic_file.h"
#include "core/files/file_text.h"
#include "core/system/terminal.h"
#include "core/timeline.h"
#include "launch/observe/terminal/progress_line.h"
#include "launch/program/mpirun.h"
#include "launch/program/sweep/report.h"
#include "launch/train/checkpoint/stop_signals.h"
#include "launch/train/hold.h"

namespace lockstep {
namespace {

// For a trial without regular checkpoints: saves it only at the end of a job, as this interval is never
// reached. An interval in steps is not allowed on a ring.
constexpr const char* kSavedAtTheEnd = "run.checkpoint_minutes=1000000";
constexpr int kMostStops = 2;  // see Account::stopped
constexpr double kLookEverySeconds = 0.25;

double seconds_now() { return static_cast<double>(now_ns()) * 1e-9; }

std::uintmax_t bytes_of(const std::filesystem::path& path) {
  std::error_code error;
  const std::uintmax_t bytes = std::filesystem::file_size(path, error);
  return error ? 0 : bytes;
}

std::int64_t lines_of(const std::filesystem::path& path) { return std::ranges::count(file_text(path), '\n'); }

// The last line that starts with "lockstep: ", without this start; empty where there is none.
std::string last_error_in(const std::string& output) {
  constexpr std::string_view kStart = "lockstep: ";
  std::size_t at = output.rfind(kStart);
  while (at != std::string::npos && at > 0 && output[at - 1] != '\n') at = output.rfind(kStart, at - 1);
  if (at == std::string::npos) return {};
  const std::size_t begin = at + kStart.size();
  return output.substr(begin, output.find('\n', begin) - begin);
}

std::string how_it_ended(int code) {
  if (code == 128 + SIGKILL) return "it was killed (signal 9), possibly because memory ran out";
  if (code > 128) return fmt::format("it was ended by signal {}", code - 128);
  return fmt::format("it ended with exit code {}", code);
}

// Samples per second of an epoch, by the lines of its steps. A line of metrics.jsonl has the speed since the
// last start only, which is 0 if a trial was stopped in the evaluation. nullopt: there are no such lines
// (run.log_every = 0).
std::optional<double> speed_of_epoch(const std::filesystem::path& path, std::int64_t epoch) {
  double steps = 0, seconds_per_sample = 0;
  std::error_code error;
  if (!std::filesystem::exists(path, error)) return std::nullopt;
  std::istringstream lines(file_text(path));
  for (std::string text; std::getline(lines, text);) {
    const auto line = nlohmann::json::parse(text);
    const double speed = line.at("samples_per_second");
    if (line.at("epoch") != epoch || !(speed > 0)) continue;
    steps += line.at("steps").get<double>();
    seconds_per_sample += line.at("steps").get<double>() / speed;
  }
  return steps > 0 ? std::optional(steps / seconds_per_sample) : std::nullopt;
}

}  // namespace

Sweep::Sweep(const SweepPlan& plan, const SweepSlots& slots, const Registry& registry, bool speaks)
    : plan_(plan),
      slots_(slots),
      registry_(registry),
      speaks_(speaks),
      folder_(plan.dir),
      program_(std::filesystem::read_symlink("/proc/self/exe").string()),
      lock_(folder_),
      journal_(folder_ / "sweep.jsonl", to_toml(plan.base, registry), plan.identity()),
      search_(plan.rules(slots.count)),
      accounts_(plan.trials.size()) {
  load_configs();
  replay();
  for (std::size_t slot = static_cast<std::size_t>(slots_.count); slot-- > 0;) free_slots_.push_back(slot);
}

std::filesystem::path Sweep::folder_of(std::int64_t trial) const {
  return folder_ / "trials" / fmt::format("{:04}", trial);
}

std::vector<std::string> Sweep::overrides_of(std::int64_t trial) const {
  std::vector<std::string> overrides = plan_.set;
  for (const auto& [key, value] : plan_.trials[static_cast<std::size_t>(trial)])
    overrides.push_back(key + "=" + value);
  return overrides;
}

// Loads all configurations at the start: their base file may change while trials run.
void Sweep::load_configs() {
  for (std::size_t trial = 0; trial < accounts_.size(); ++trial) {
    try {
      Config config = load_config(plan_.config, overrides_of(static_cast<std::int64_t>(trial)), registry_);
      if (config.loader.batch == 0)
        throw ConfigError("train.batch = \"auto\" is allowed only in lockstep train and find-batch");
      accounts_[trial].config = std::move(config);
    } catch (const ConfigError& error) {
      accounts_[trial].problem = error.what();
    }
  }
}

Config Sweep::config_of(std::int64_t trial) const {
  Config config = *accounts_[static_cast<std::size_t>(trial)].config;
  config.run_dir = (folder_ / "best").string();
  return config;
}

void Sweep::replay() {
  std::map<std::int64_t, SweepJob> open;
  for (const SweepJournal::Event& event : journal_.found()) {
    if (event.job.trial < 0 || event.job.trial >= std::ssize(accounts_) ||
        event.job.rung >= search_.rules().rungs.size())
      throw DataError(
          fmt::format("{} records trial {}, rung {}, which this sweep does not have; set another dir in "
                      "[sweep], or remove the file to start over",
                      (folder_ / "sweep.jsonl").string(), event.job.trial, event.job.rung));
    Account& account = accounts_[static_cast<std::size_t>(event.job.trial)];
    account.seconds += event.interrupted_seconds;
    if (!event.end) {
      account.begun = true;
      search_.started(event.job, 0);
      open[event.job.trial] = event.job;
      continue;
    }
    const SweepResult& end = *event.end;
    open.erase(event.job.trial);
    account.seconds += end.seconds;
    if (!end.problem.empty()) {
      search_.failed(event.job, end.problem);
      continue;
    }
    account.epochs = end.epochs;
    account.steps = end.steps;
    account.cost = end.cost;
    search_.finished(event.job, end.measure, end.seconds);
  }
  for (const auto& [trial, job] : open) search_.interrupted(job);
}

std::int64_t Sweep::epochs_done() const {
  std::int64_t epochs = 0;
  for (const Account& account : accounts_) epochs += account.epochs;
  return epochs;
}

std::int64_t Sweep::epochs_trained(std::int64_t trial) const {
  return std::max(accounts_[static_cast<std::size_t>(trial)].epochs,
                  lines_of(folder_of(trial) / "metrics.jsonl"));
}

// The jobs of a killed sweep get SIGTERM and may still save: waits until they release their folders.
void Sweep::wait_for_orphans() {
  const StopSignals& signals = StopSignals::of_process();
  for (std::int64_t trial = 0; trial < std::ssize(accounts_); ++trial) {
    std::error_code unknown;
    if (!std::filesystem::exists(folder_of(trial) / "run.lock", unknown)) continue;
    for (const double begin = seconds_now();;) {
      try {
        const RunLock free(folder_of(trial));
        break;
      } catch (const ConfigError&) {
        if (seconds_now() - begin > plan_.base.checkpoints.grace_seconds + 10) throw;
        children_.wait(0.05);
        stopped_by_ = signals.stop();
        if (stopped_by_ != 0) return;
      }
    }
  }
}

int Sweep::run() {
  StopSignals& signals = StopSignals::of_process();
  // Longer than the grace time of the trainings, because this process waits for them.
  signals.allow_grace(plan_.base.checkpoints.grace_seconds + 30);
  wait_for_orphans();
  for (std::int64_t trial = 0; trial < std::ssize(accounts_); ++trial) {
    Account& account = accounts_[static_cast<std::size_t>(trial)];
    const bool failed = search_.trials()[static_cast<std::size_t>(trial)].failed();
    account.epochs_before = account.begun && !failed ? epochs_trained(trial) : account.epochs;
  }
  if (speaks_) {
    say_line(sweep_header(plan_, slots_, search_.expected_epochs(), epochs_done()));
    meter_.emplace("sweep", "epochs", find_terminal());
  }
  for (;;) {
    if (stopped_by_ == 0 && !journal_.found_finish()) fill_slots();
    hold_in("sweep");
    if (running_.empty()) break;
    for (const ChildProcesses::Ended& ended : children_.wait(kLookEverySeconds)) heed_end(ended);
    if (const int signal = signals.stop(); signal != 0 && stopped_by_ == 0) stop_running(signal);
    show_progress();
  }
  meter_.reset();
  return stopped_by_;
}

void Sweep::fill_slots() {
  while (!free_slots_.empty()) {
    const std::optional<SweepJob> job = search_.next(seconds_now());
    if (!job) return;
    const Account& account = accounts_[static_cast<std::size_t>(job->trial)];
    if (account.config) make_folder(job->trial);  // before the record, after which the folder is kept
    journal_.started(*job, plan_.trials[static_cast<std::size_t>(job->trial)]);
    search_.started(*job, seconds_now());
    if (account.config) {
      start(*job, free_slots_.back());
      free_slots_.pop_back();
    } else {
      record({.job = *job, .problem = account.problem});
    }
  }
}

// Creates the trial's folder. The first call for a trial removes a folder that another sweep left, because
// the trial must not resume from it.
void Sweep::make_folder(std::int64_t trial) {
  const std::filesystem::path folder = folder_of(trial);
  const bool begun = std::exchange(accounts_[static_cast<std::size_t>(trial)].begun, true);
  std::error_code error;
  if (!begun && std::filesystem::exists(folder / "trial.toml", error))
    std::filesystem::remove_all(folder, error);
  if (error) throw IoError(fmt::format("cannot remove the folder {}: {}", folder.string(), error.message()));
  create_folder(folder);
}

void Sweep::start(const SweepJob& job, std::size_t slot) {
  Config config = *accounts_[static_cast<std::size_t>(job.trial)].config;
  config.run_dir = folder_of(job.trial).string();
  // A reproducible training has one thread unless it is given, in a trial as in best.toml.
  if (config.threads == 0 && !config.reproducible) config.threads = slots_.threads;
  config.measure_peak = false;
  config.prometheus.address = PrometheusOptions::kNone;  // trials that run at once cannot share a port
  write_atomically(folder_of(job.trial) / "trial.toml", to_toml(config, registry_), Links::replace);
  const double now = seconds_now();
  const ChildCommand command = command_of(job, slot);
  const std::uintmax_t before = bytes_of(command.output);
  running_[children_.start(command)] = {.job = job, .slot = slot, .since = now, .output_before = before};
  if (jobs_++ == 0) first_begin_ = now;
}

ChildCommand Sweep::command_of(const SweepJob& job, std::size_t slot) const {
  ChildCommand command{.environment = sessions_.variables_of(slot),
                       .output = folder_of(job.trial) / "output.txt"};
  if (plan_.ranks > 1) command.words = mpirun_words(plan_.ranks);
  const auto add = [&](std::initializer_list<std::string> words) {
    command.words.insert(command.words.end(), words);
  };
  add({program_, "train", (folder_of(job.trial) / "trial.toml").string(), "--resume", "auto"});
  if (job.rung + 1 < search_.rules().rungs.size())
    add({"--set", fmt::format("train.until_epoch={}", search_.rules().rungs[job.rung])});
  const Config& trial = *accounts_[static_cast<std::size_t>(job.trial)].config;
  if (!trial.checkpoints.regular()) add({"--set", kSavedAtTheEnd});
  if (!slots_.devices.empty()) command.environment.emplace_back("CUDA_VISIBLE_DEVICES", slots_.devices[slot]);
  return command;
}

void Sweep::heed_end(const ChildProcesses::Ended& ended) {
  const Running running = running_.extract(ended.process).mapped();
  free_slots_.push_back(running.slot);
  last_end_ = seconds_now();
  const double seconds = last_end_ - running.since;
  busy_seconds_ += seconds;
  Account& account = accounts_[static_cast<std::size_t>(running.job.trial)];
  const bool could_go_on = ended.code == exit_code::resumable || stopped_by_ != 0;
  if (ended.code != exit_code::done && could_go_on && (stopped_by_ != 0 || ++account.stopped <= kMostStops)) {
    account.seconds += seconds;
    journal_.interrupted(running.job, seconds);
    return search_.interrupted(running.job);
  }
  SweepResult result{.job = running.job};
  if (ended.code == exit_code::done) result = result_of(running);
  if (ended.code != exit_code::done) result.problem = problem_of(running, ended.code);
  result.seconds = seconds;
  record(std::move(result));
}

// Reads the last line of the trial's metrics.jsonl.
SweepResult Sweep::result_of(const Running& running) const {
  SweepResult result{.job = running.job};
  const std::filesystem::path path = folder_of(running.job.trial) / "metrics.jsonl";
  const std::string text = file_text(path);
  const std::size_t end = text.find_last_not_of('\n');
  const std::size_t begin = end == std::string::npos ? 0 : text.rfind('\n', end) + 1;
  try {
    const auto line = nlohmann::json::parse(text.substr(begin));
    result.epochs = line.at("epoch");
    result.steps = line.at("steps");
    if (line.at("test_loss").is_null()) {
      result.problem = fmt::format("the test loss after epoch {} is not finite", result.epochs);
      return result;
    }
    result.measure = {.accuracy = line.at("test_accuracy"),
                      .loss = line.at("test_loss"),
                      .samples_per_second = line.at("samples_per_second")};
    if (const auto whole = speed_of_epoch(folder_of(running.job.trial) / "steps.jsonl", result.epochs))
      result.measure.samples_per_second = *whole;
    const auto facts = nlohmann::json::parse(file_text(folder_of(running.job.trial) / "run.json"));
    result.cost = {.parameters = facts.at("parameters"), .flops_per_sample = facts.at("flops_per_sample")};
  } catch (const nlohmann::json::exception&) {
    result.problem =
        fmt::format("the last line of {} has no results of an epoch, or run.json no costs", path.string());
  }
  return result;
}

std::string Sweep::problem_of(const Running& running, int code) const {
  const std::filesystem::path output = folder_of(running.job.trial) / "output.txt";
  const std::string error = last_error_in(file_text(output, running.output_before));
  return error.empty() || code > 128 ? fmt::format("{}; see {}", how_it_ended(code), output.string()) : error;
}

void Sweep::record(SweepResult result) {
  Account& account = accounts_[static_cast<std::size_t>(result.job.trial)];
  account.seconds += result.seconds;
  journal_.ended(result);
  if (result.problem.empty()) {
    account.epochs = result.epochs;
    account.steps = result.steps;
    account.cost = result.cost;
    search_.finished(result.job, result.measure, result.seconds);
  } else {
    search_.failed(result.job, result.problem);
  }
  // With one rung a trial is complete, whatever its own train.epochs or train.steps are.
  const bool in_parts = search_.rules().rungs.size() > 1;
  say_line(sweep_result_line(result, plan_.trials[static_cast<std::size_t>(result.job.trial)],
                             in_parts ? plan_.base.trainer.epochs : result.epochs));
}

// mpirun forwards SIGUSR1 to its ranks; on SIGTERM it would end them itself.
void Sweep::stop_running(int signal) {
  for (const auto& [process, running] : running_)
    children_.send(process, plan_.ranks > 1 ? SIGUSR1 : SIGTERM);
  stopped_by_ = signal;
}

void Sweep::show_progress() {
  if (!meter_) return;
  std::int64_t before = 0, done = 0;  // epochs of earlier starts, and of this one
  for (const Account& account : accounts_) {
    before += account.epochs_before;
    done += std::max<std::int64_t>(0, account.epochs - account.epochs_before);
  }
  for (const auto& [process, running] : running_) {
    const Account& account = accounts_[static_cast<std::size_t>(running.job.trial)];
    const std::int64_t known = std::max(account.epochs, account.epochs_before);
    done += std::max<std::int64_t>(0, epochs_trained(running.job.trial) - known);
  }
  meter_->show(done, std::max(search_.expected_epochs() - before, done));
}

void Sweep::say_line(const std::string& text) {
  if (!speaks_) return;
  if (meter_) meter_->clear();
  say(fitted(text, find_terminal()) + '\n');
}

SweepOutcome Sweep::outcome() const {
  SweepOutcome outcome{.objective = plan_.objective,
                       .epochs = plan_.base.trainer.epochs,
                       .slots = slots_.count,
                       .jobs = jobs_,
                       .seconds = jobs_ > 0 ? last_end_ - first_begin_ : 0};
  if (jobs_ > 0 && outcome.seconds > 0)
    outcome.busy_share = busy_seconds_ / (outcome.seconds * static_cast<double>(slots_.count));
  std::vector<std::int64_t> order = search_.ranking();
  for (std::int64_t trial = 0; trial < std::ssize(accounts_); ++trial)
    if (std::ranges::count(order, trial) == 0) order.push_back(trial);
  std::vector<std::size_t> complete;
  std::vector<SweepMeasure> measures;
  for (const std::int64_t trial : order) {
    const SweepSearch::Trial& tried = search_.trials()[static_cast<std::size_t>(trial)];
    const Account& account = accounts_[static_cast<std::size_t>(trial)];
    outcome.rows.push_back({.trial = trial,
                            .settings = plan_.trials[static_cast<std::size_t>(trial)],
                            .epochs = account.epochs,
                            .steps = account.steps,
                            .measure = tried.measures.empty() ? SweepMeasure{} : tried.measures.back(),
                            .cost = account.cost,
                            .seconds = account.seconds,
                            .complete = tried.measures.size() == search_.rules().rungs.size(),
                            .problem = tried.problem});
    if (!outcome.rows.back().complete || tried.failed()) continue;
    complete.push_back(outcome.rows.size() - 1);
    measures.push_back(outcome.rows.back().measure);
  }
  for (const std::size_t place : pareto_front(measures)) outcome.rows[complete[place]].pareto = true;
  return outcome;
}

void Sweep::finish(std::int64_t best) const {
  if (!journal_.found_finish()) journal_.finished();
  std::error_code error;
  for (std::int64_t trial = 0; trial < std::ssize(accounts_); ++trial)
    if (trial != best && !search_.trials()[static_cast<std::size_t>(trial)].failed())
      std::filesystem::remove_all(folder_of(trial) / "checkpoints", error);
}

}  // namespace lockstep
