// SPDX-License-Identifier: Apache-2.0
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include <CLI/CLI.hpp>
#include <fmt/ranges.h>

#include "comm/agreement.h"
#include "core/error.h"
#include "core/log.h"
#include "core/text/enum_words.h"
#include "core/text/text.h"
#include "launch/observe/jobs/progress_publisher.h"
#include "launch/observe/profile/trace.h"
#include "launch/observe/prometheus/metrics_output.h"
#include "launch/observe/run_files/run_record.h"
#include "launch/observe/run_files/training_reporters.h"
#include "launch/program/commands/agreed_config.h"
#include "launch/program/commands/commands.h"
#include "launch/program/config/config_conflicts.h"
#include "launch/program/devices/device_use.h"
#include "launch/program/inject/injection.h"
#include "launch/program/train_command/automatic_settings.h"
#include "launch/program/train_command/run_facts.h"
#include "launch/program/train_command/shown_training.h"
#include "launch/program/train_command/train_job.h"
#include "launch/program/train_command/train_results.h"
#include "launch/program/version.h"
#include "launch/train/hold.h"
#include "launch/train/watch/desync_check.h"
#include "launch/train/watch/replicas.h"
#include "launch/train/watch/step_watch.h"
#include "launch/train/watch/stragglers.h"

namespace lockstep {
namespace {

// Collective. Says where the metrics of each node are.
void tell_of_metrics(Communicator& communicator, const MetricsOutput* metrics, Report& report) {
  for (const std::string& places : gather_texts(communicator.host(), metrics ? metrics->places() : ""))
    if (!places.empty()) report.line("metrics for Prometheus: " + places);
}

struct InjectFlags {
  std::vector<std::string> faults;
};

std::string header_line(const Config& config, const World& world, TrainingSetup& training) {
  const Precision precision = config.network.precision;
  return fmt::format("Lockstep {}: {}{} on {} ({} per rank), {} x batch {} x accumulation {}", kVersion,
                     config.model.name,
                     precision == Precision::fp32 ? "" : fmt::format(" in {}", word_of(precision)),
                     to_string(training.network().device()), counted(training.threads(), "thread"),
                     counted(world.size(), "rank"), config.loader.batch, config.loader.accumulation);
}

// Describes a scaled learning rate; empty where it is not scaled.
std::string rate_line(const Config& config, TrainingSetup& training) {
  const ScheduleSettings& settings = config.schedule;
  if (settings.scaling == RateScaling::none) return {};
  const std::string ratio =
      fmt::format("{} / {}", training.train_loader().global_batch(), settings.scale_batch);
  return fmt::format("learning rate {:.6g} = {:.6g} x {} samples per step (optimizer.scale_rate)",
                     training.schedule().base, settings.learning_rate,
                     settings.scaling == RateScaling::linear ? ratio : fmt::format("sqrt({})", ratio));
}

void warn_of_long_warmup(const Schedule& schedule) {
  if (schedule.reaches_base()) return;
  log::shared_warning(
      "the warm-up has {} steps and the whole schedule {}: the learning rate only reaches {:.3g} of {:.3g}; "
      "lower schedule.warmup_epochs or train longer",
      schedule.warmup_steps, schedule.total_steps, schedule.at(schedule.total_steps - 1), schedule.base);
}

// Warns where model.reset_head or model.freeze is set without --init. Called before the first step.
void warn_of_random_start(const Config& config) {
  if (config.model.reset_head != ResetHead::never)
    log::shared_warning("model.reset_head = {} without --init: the whole network is initialised randomly",
                        word_of(config.model.reset_head));
  if (!config.model.freeze.empty())
    log::shared_warning("model.freeze is set without --init: frozen layers keep their random initial values");
}

// Collective.
void tell_of_shared_gpus(TrainJob& job) {
  const std::optional<CudaDevice> gpu = cuda_device(job.training->network().device());
  const std::vector<std::string> told =
      gather_texts(job.communicator->host(), gpu ? told_of_sharing(*gpu) : "");
  for (const std::string& each : std::set<std::string>(told.begin(), told.end()))
    if (!each.empty()) job.report->line(each);
}

// Loads the configuration, locks the run's folder and publishes the ranks. False: there is nothing to train.
bool begin(TrainJob& job, const Command& command, World& world) {
  job.communicator = world.communicator();
  const std::optional<Config> config =
      agreed_config(*job.communicator, command, {.finds_batch = true, .finds_precision = true});
  if (!config) return false;
  const auto& resume = command.own<ResumeFlags>();
  require_same_flags(*job.communicator,
                     fmt::format("--inject {} {}", command.own<InjectFlags>().faults, to_text(resume)));
  make_failed_writes_errors();
  job.config = *config;
  // A job that a signal stopped may still be saving when it is started again.
  const bool waits = resume.from == ResumeFlags::kAuto;
  run_agreed(*job.communicator, [&] {
    if (world.rank() == 0)
      job.lock.emplace(config->run_dir, waits ? std::chrono::minutes(2) : std::chrono::minutes(0));
  });
  // After the lock, for which ranks may wait longer than the timeout.
  watch_job(world, *job.communicator, config->timeout_seconds);
  job.shown.emplace(starting_rank(job.config, world, *job.communicator));
  return true;
}

void refuse_impossible_flags(const TrainJob& job, const std::vector<std::string>& faults, bool traced) {
  if (!faults.empty() && job.config.trainer.topology == Topology::ring)
    throw_agreed(UsageError(fmt::format(
        "--inject {}: a fault needs a step that all ranks take together, but with comm.topology = \"ring\" "
        "each rank takes its own; set it to \"all\"",
        faults.front())));
  for (const std::string& fault : faults)
    if (const int rank = parse_injection(fault).rank; rank >= job.communicator->size())
      throw_agreed(
          UsageError(fmt::format("--inject {}: rank {} does not exist; the job has {}, counted from 0", fault,
                                 rank, counted(job.communicator->size(), "rank"))));
  if (traced && job.config.profile.any())
    throw_agreed(UsageError(fmt::format(
        "--trace records all steps, and profile.active = {} some of them in other files; use only one "
        "of the two",
        job.config.profile.active)));
}

// Sets what depends on the machine (train.precision, train.batch) or on the resumed training
// (train.accumulation).
void complete_config(TrainJob& job, const Command& command, World& world) {
  Communicator& communicator = *job.communicator;
  const auto& flags = command.own<ResumeFlags>();
  if (job.config.is_incomplete()) {
    const Command found = with_settings_found(world, communicator, command, job.config, flags);
    job.config = *agreed_config(communicator, found);
  }
  job.saved = find_saved(communicator, job.config, flags, command.registry);
  if (job.saved) keep_global_batch(*job.saved, flags, world.size(), job.config);
}

// Returns the metrics for Prometheus: see begin_metrics_output().
std::shared_ptr<MetricsOutput> go_on_or_start(TrainJob& job, const Command& command, const World& world) {
  if (job.saved) {
    go_on_from(*job.saved, command.own<ResumeFlags>(), to_toml(job.config, command.registry),
               job.communicator->host(), *job.training, *job.trainer);
    if (job.saved->manifest.ranks != world.size())  // for comparison with the saved one
      log::info("the digest of the resumed state is {}", digest_of(job));  // may communicate
    tell_changed_rate(*job.saved, *job.training, *job.trainer, command.registry);
  }
  // After go_on_from(): a refused checkpoint changes no file of the run.
  std::shared_ptr<MetricsOutput> metrics =
      begin_metrics_output(job.config.prometheus, job.shown->identity(), world, job.communicator->host());
  begin_report(job, world);
  if (!job.saved) choose_threads_by_trial(job, command);
  set_aside_others(*job.communicator, job.config.run_dir, job.saved ? &*job.saved : nullptr);
  return metrics;
}

void tell_what_trains(TrainJob& job, const Command& command, const World& world) {
  TrainingSetup& training = *job.training;
  Report& report = *job.report;
  job.shown->introduce([&](RankIdentity& rank) { add_training(training, rank); });
  report.header(header_line(job.config, world, training));
  if (const std::string rate = rate_line(job.config, training); !rate.empty()) report.line(rate);
  warn_of_long_warmup(training.schedule());
  for (const std::string& each : settings_without_effect(job.config)) log::shared_warning("{}", each);
  if (world.rank() == 0)  // only rank 0 prints it
    report.line("data: " + summary_of(training.train_set(), training.test_set()));
  if (!training.told_of_data().empty()) report.line("data: " + training.told_of_data());
  if (!training.told_of_recompute().empty()) report.line("memory: " + training.told_of_recompute());
  if (const std::string& unused = training.unused_devices(); !unused.empty())
    report.line(fmt::format(
        "GPUs that this job sees but no rank uses: {}; start one rank per GPU, or hide them from this "
        "job (CUDA_VISIBLE_DEVICES)",
        unused));
  tell_of_shared_gpus(job);
  if (world.rank() != 0) return;
  const std::string toml = to_toml(job.config, command.registry),
                    facts = run_facts(world, training, *job.communicator);
  write_run_record(job.config.run_dir, toml, facts);
  report.started(toml, facts);
}

// Reports where the training starts, and frees job.saved.
void tell_from_where(TrainJob& job, const Command& command) {
  if (job.saved) {
    job.report->line(fmt::format(
        "training resumes after step {} from {}{}", job.saved->manifest.steps, job.saved->folder.string(),
        command.init.empty() ? "" : fmt::format("; --init {} has no effect", command.init)));
    job.saved.reset();
  } else if (!command.init.empty()) {
    const std::string& told = job.training->told_of_weights();
    job.report->line("training starts from " + command.init + (told.empty() ? "" : ", with " + told));
  } else {
    warn_of_random_start(job.config);
  }
}

RanksNow ranks_now(TrainingSetup& training, const World& world) {
  RanksNow now{.ranks = world.size(),
               .local_ranks = world.local_size(),
               .threads = training.threads(),
               .cores = training.node_cores(),
               .on_gpu = training.network().device().kind == DeviceKind::cuda};
  for (const Bucket& bucket : training.buckets().buckets())
    now.gradient_bytes += static_cast<double>(bucket.sent_bytes(training.buckets().sent_type()));
  return now;
}

// The observers of a training, in the order of their calls. TrainJob owns those that write_results() reads.
class Observers {
 public:
  struct Watched {
    DeviceMonitor* monitor;  // may be null
    MetricsOutput* metrics;  // may be null
    std::optional<Attainable> attainable;
    bool resumes;
  };

  Observers(TrainJob& job, const Command& command, World& world, const Watched& watched) : job_(job) {
    add<ProgressPublisher>(*job.trainer, *job.shown, attainable_rate(watched));
    add_reports(world, watched);
    Communicator& host = *job.communicator;
    add<Injector>(command.own<InjectFlags>().faults, *job.trainer, host, job.config.run_dir);
    add<StepWatch>(world, *job.trainer, job.config.timeout_seconds);
    add<StragglerWatch>(*job.trainer, host, [&job, metrics = watched.metrics](const Straggler& straggler) {
      job.report->straggler(straggler);
      if (metrics != nullptr) metrics->count_warning("straggler", "slow_rank");
    });
    add<DesyncCheck>(*job.trainer, host, job.config.compared_every());
    if (job.config.profile.any()) add_profiler(world, watched.resumes);
    add_keepers(command);
  }

  std::span<TrainingObserver* const> all() const { return all_; }

 private:
  template <typename Observer, typename... Arguments>
  Observer& add(Arguments&&... arguments) {
    auto observer = std::make_unique<Observer>(std::forward<Arguments>(arguments)...);
    Observer& added = *observer;
    all_.push_back(&added);
    owned_.push_back(std::move(observer));
    return added;
  }
  static std::optional<double> attainable_rate(const Watched& watched) {
    return watched.attainable ? std::optional(watched.attainable->samples_per_second) : std::nullopt;
  }
  std::function<void(const std::string&)> say() {
    return [this](const std::string& line) { job_.report->line(line); };
  }

  void add_reports(World& world, const Watched& watched) {
    Communicator& host = *job_.communicator;
    const Config& config = job_.config;
    const std::optional<double> attainable = attainable_rate(watched);
    if (config.log_every > 0 && world.rank() == 0)
      series_ = &add<SeriesReporter>(*job_.trainer, *job_.report, config.log_every, attainable);
    add<EpochReporter>(
        *job_.trainer, job_.training->buckets(), host, *job_.report,
        EpochReporter::Options{.advice = job_.training->advice_context(world),
                               .ranks = ranks_now(*job_.training, world),
                               .accumulation = config.loader.accumulation,
                               .attainable = attainable,
                               .device = [&host, &config, monitor = watched.monitor](std::int64_t samples) {
                                 const MonitoredEpoch epoch{.sums = take_of_all_nodes(monitor, host),
                                                            .terms = {.samples = static_cast<double>(samples),
                                                                      .price_per_kwh = config.price_per_kwh}};
                                 return epoch.sums.nodes > 0 ? std::optional(epoch) : std::nullopt;
                               }});
    if (config.histograms_every > 0 && world.rank() == 0)
      add<HistogramReporter>(*job_.trainer, job_.training->network(), *job_.report, config.histograms_every);
    job_.report->watch_busy(config.busy, idle_context(job_, world, watched.monitor, watched.attainable),
                            [metrics = watched.metrics](const IdleEvent& event) {
                              if (metrics != nullptr) metrics->count_warning("idle", event.cause.cause);
                            });
  }

  void add_profiler(World& world, bool resumes) {
    TrainingSetup& training = *job_.training;
    all_.push_back(
        &job_.profiler.emplace(StepProfiler::Parts{.world = world,
                                                   .host = *job_.communicator,
                                                   .graph = training.graph(),
                                                   .network = training.network(),
                                                   .buckets = training.buckets(),
                                                   .timeline = *training.timeline(),
                                                   .trainer = *job_.trainer,
                                                   .say = say()},
                               StepProfiler::Options{.settings = job_.config.profile,
                                                     .run_dir = job_.config.run_dir,
                                                     .optimizer = job_.config.optimizer.name,
                                                     .accumulation = job_.config.loader.accumulation,
                                                     .resumes = resumes}));
  }

  // The best evaluation comes first, so that a checkpoint includes it.
  void add_keepers(const Command& command) {
    TrainJob& job = job_;
    TrainingKeeper& checkpoints = job.checkpoints.emplace(
        job.config, to_toml(job.config, command.registry), *job.communicator, *job.training, *job.trainer,
        TrainingKeeper::Calls{.also = [&job](StateVisitor& visitor) { job.best->visit_state(visitor); },
                              .waiting =
                                  [&job, series = series_](bool waits) {
                                    if (series != nullptr) series->waiting(waits);
                                    if (waits)
                                      job.saving.emplace(&*job.shown, Activity::saving);
                                    else
                                      job.saving.reset();
                                  },
                              .lines = job.report->files()});
    std::function<void(std::int64_t)> save_best;
    if (job.config.best.keep) {
      save_best = [&job, &command](std::int64_t epoch) {
        const std::filesystem::path best = std::filesystem::path(job.config.run_dir) / kBestFile;
        if (job.best_is_of_other_figure) set_aside(best);  // if it throws, the next best epoch retries
        job.best_is_of_other_figure = false;
        save_evaluated(
            job, command.registry, best,
            {.metadata = {{BestKeeper::kEpochKey, std::to_string(epoch)}}, .links = Links::replace});
      };
    }
    all_.push_back(
        &job.best_keeper.emplace(BestKeeper::Parts{*job.best, *job.trainer, job.communicator->host(), say(),
                                                   std::filesystem::path(job.config.run_dir) / kBestFile},
                                 save_best));
    all_.push_back(&checkpoints.keeper());
  }

  TrainJob& job_;
  std::vector<std::unique_ptr<TrainingObserver>> owned_;
  std::vector<TrainingObserver*> all_;
  SeriesReporter* series_ = nullptr;  // null where it is not used
};

int end_whole(TrainJob& job, const Command& command, const World& world) {
  const std::string digest = digest_of(job);  // may communicate
  Unwritten unwritten;
  run_agreed(*job.communicator, [&] {
    hold_in("export");
    if (world.rank() == 0) unwritten = write_results(command, job, digest);
  });
  if (first_rank_where(*job.communicator, unwritten.results) >= 0)
    unwritten.problems += job.checkpoints->keeper().save_for_results();
  if (first_rank_where(*job.communicator, !unwritten.problems.empty()) >= 0)
    throw_agreed(IoError(unwritten.problems));
  require_same_state(*job.communicator, digest);
  return exit_code::done;
}

int train(TrainJob& job, const Command& command, World& world) {
  if (!begin(job, command, world)) return exit_code::done;
  Communicator& communicator = *job.communicator;
  const bool traced = first_rank_where(communicator, !command.trace.empty()) >= 0;
  refuse_impossible_flags(job, command.own<InjectFlags>().faults, traced);
  complete_config(job, command, world);
  build(job, command, world);
  const std::shared_ptr<MetricsOutput> metrics = go_on_or_start(job, command, world);
  const bool goes_on = saved_epochs(job).has_value();
  const std::unique_ptr<DeviceMonitor> monitor =
      begin_monitor({.folder = job.config.run_dir,
                     .every_seconds = job.config.monitor_seconds,
                     .goes_on = goes_on,
                     .metrics = metrics},
                    world, communicator, job.training->network().device());
  tell_what_trains(job, command, world);
  tell_of_metrics(communicator, metrics.get(), *job.report);
  job.best.emplace(job.config.best);
  job.best_is_of_other_figure = job.saved && !job.best->take(job.saved->state);
  if (job.best_is_of_other_figure && job.config.best.any())
    log::shared_warning(
        "the checkpoint's best evaluation was not chosen by run.stop_metric = \"{}\": it is chosen anew, "
        "among the epochs from here on",
        word_of(job.config.best.by));
  tell_from_where(job, command);

  const ClockOffset before = traced ? measure_clock(communicator, world.node()) : ClockOffset{};
  const std::optional<Attainable> attainable =
      job.config.measure_peak
          ? measure_attainable(communicator, job.training->graph(), job.training->network())
          : std::nullopt;
  const Observers observers(
      job, command, world,
      {.monitor = monitor.get(), .metrics = metrics.get(), .attainable = attainable, .resumes = goes_on});
  CheckpointKeeper& keeper = job.checkpoints->keeper();
  job.trainer->fit(observers.all());

  job.shown->enter(Activity::finishing);
  if (job.profiler) job.profiler->finish();
  keeper.finish();
  if (keeper.stopped_by() != 0) {
    const StoppedLines lines = stopped_lines(keeper, job.trainer->steps(), world.size());
    job.report->line(lines.what);
    job.report->command(lines.command);
    return exit_code::resumable;
  }
  if (traced)
    job.trace = trace_of_all(communicator, job.training->timeline(), before,
                             measure_clock(communicator, world.node()));
  return end_whole(job, command, world);
}

void train_flags(CLI::App& app, Command& command) {
  add_training_flags(app, command);
  app.add_option("--init", command.init, "Start from this safetensors file (PyTorch's names and layouts)")
      ->type_name("FILE");
  app.add_option("--export", command.export_, "Write the trained network to this safetensors file")
      ->type_name("FILE");
  app.add_option("--digest", command.digest, "Write a hash of all trained state to this file")
      ->type_name("FILE");
  auto& resume = command.own<ResumeFlags>();
  CLI::Option* from =
      app.add_option(
             "--resume", resume.from,
             "Resume from the newest checkpoint of run.dir (auto), or from a checkpoint or a run's folder "
             "(FOLDER); never (default) starts a new training")
          ->type_name("auto|never|FOLDER");
  app.add_option(
         "--resume-size", resume.size,
         "Resume on another number of ranks than was saved: any sets train.accumulation so that a step keeps "
         "its samples, if they divide evenly; same (default) refuses")
      ->type_name("any|same")
      ->check(CLI::IsMember({"any", "same"}))
      ->needs(from);
  app.add_option("--resume-with", resume.with,
                 "Resume although this key differs from the saved configuration; repeatable")
      ->type_name("KEY")
      ->allow_extra_args(false)
      ->needs(from);
  app.add_option(
         "--inject", command.own<InjectFlags>().faults,
         "Inject a fault on purpose, for a drill, as KIND:rank=R,step=S, such as kill:rank=1,step=20; "
         "repeatable. Kinds:\n" +
             describe_fault_kinds())
      ->type_name("KIND")  // the help cuts a name at its first ':'
      ->allow_extra_args(false)
      ->each([](const std::string& text) { parse_injection(text); });
  add_trace_flag(app, command);
}

}  // namespace

extern const CommandEntry train_command = {
    .name = "train",
    .description = "Train a network",
    .example =
        "lockstep train fashion_mnist_cnn --ranks 2\n"
        "lockstep train own.toml --set train.epochs=3 --export own.safetensors",
    .flags = train_flags,
    .in_world = in_job<TrainJob, train>,
    .lists_keys = true};

}  // namespace lockstep
