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
#include <fmt/format.h>

#include "comm/agreement.h"
#include "core/error.h"
#include "core/log.h"
#include "core/text/text.h"
#include "launch/observe/jobs/progress_publisher.h"
#include "launch/observe/profile/trace.h"
#include "launch/observe/run_files/run_record.h"
#include "launch/observe/run_files/training_reporters.h"
#include "launch/program/commands/agreed_config.h"
#include "launch/program/commands/commands.h"
#include "launch/program/devices/device_use.h"
#include "launch/program/find_batch/automatic_batch.h"
#include "launch/program/inject/injection.h"
#include "launch/program/train_command/run_facts.h"
#include "launch/program/train_command/shown_training.h"
#include "launch/program/train_command/train_job.h"
#include "launch/program/train_command/train_results.h"
#include "launch/program/version.h"
#include "launch/train/hold.h"
#include "launch/train/job_end.h"
#include "launch/train/watch/desync_check.h"
#include "launch/train/watch/replicas.h"
#include "launch/train/watch/step_watch.h"
#include "launch/train/watch/stragglers.h"

namespace lockstep {
namespace {

struct InjectFlags {
  std::vector<std::string> faults;
};

std::string header_line(const Config& config, const World& world, TrainingSetup& training) {
  return fmt::format("Lockstep {}: {} on {} ({} per rank), {} x batch {} x accumulation {}", kVersion,
                     config.model.name, to_string(training.network().device()),
                     counted(training.threads(), "thread"), counted(world.size(), "rank"),
                     config.loader.batch, config.loader.accumulation);
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

// Warns where model.reset_head or model.freeze is set without --init. Called before the first step.
void warn_of_random_start(const Config& config) {
  if (config.model.reset_head)
    log::shared_warning("model.reset_head = true without --init: the whole network is initialised randomly");
  if (!config.model.freeze.empty())
    log::shared_warning("model.freeze is set without --init: frozen layers keep their random initial values");
}

// Logs the digest of a training resumed on another number of ranks, for comparison with the saved one.
void tell_digest(TrainJob& run) {
  std::string state;
  run_agreed(*run.communicator, [&] { state = digest_of(run); });
  log::info("the digest of the resumed state is {}", state);
}

// Collective.
void tell_of_shared_gpus(TrainJob& run) {
  const std::optional<CudaDevice> gpu = cuda_device(run.training->network().device());
  const std::vector<std::string> told =
      gather_texts(run.communicator->host(), gpu ? told_of_sharing(*gpu) : "");
  for (const std::string& each : std::set<std::string>(told.begin(), told.end()))
    if (!each.empty()) run.report->line(each);
}

// Loads the configuration, locks the run's folder and publishes the ranks. False: there is nothing to train.
bool begin(TrainJob& run, const Command& command, World& world) {
  run.communicator = world.communicator();
  const std::optional<Config> config = agreed_config(*run.communicator, command, {.finds_batch = true});
  if (!config) return false;
  make_failed_writes_errors();
  run.config = *config;
  // A job that a signal stopped may still be saving when it is started again.
  const bool waits = command.own<ResumeFlags>().from == ResumeFlags::kAuto;
  run_agreed(*run.communicator, [&] {
    if (world.rank() == 0)
      run.lock.emplace(config->run_dir, waits ? std::chrono::minutes(2) : std::chrono::minutes(0));
  });
  run.shown.emplace(starting_rank(run.config, world, *run.communicator));
  return true;
}

void refuse_what_excludes_each_other(const TrainJob& run, const std::vector<std::string>& faults,
                                     bool traced) {
  if (!faults.empty() && run.config.trainer.topology == Topology::ring)
    throw_agreed(UsageError(fmt::format(
        "--inject {}: a fault needs a step that all ranks take together, but with comm.topology = \"ring\" "
        "each rank takes its own; set it to \"all\"",
        faults.front())));
  if (traced && run.config.profile.any())
    throw_agreed(UsageError(fmt::format(
        "--trace records all steps, and profile.active = {} some of them in other files; use only one "
        "of the two",
        run.config.profile.active)));
}

// Sets what depends on the machine (train.batch) or on the resumed training (train.accumulation).
void complete_config(TrainJob& run, const Command& command, World& world) {
  Communicator& communicator = *run.communicator;
  const auto& flags = command.own<ResumeFlags>();
  if (run.config.loader.batch == 0) {
    const Command found = with_batch_found(world, communicator, command, run.config, flags);
    run.config = *agreed_config(communicator, found);
  }
  run.saved = find_saved(communicator, run.config, flags, command.registry);
  if (run.saved) keep_global_batch(*run.saved, flags, world.size(), run.config);
}

void go_on_or_start(TrainJob& run, const Command& command, const World& world) {
  if (run.saved) {
    go_on_from(*run.saved, command.own<ResumeFlags>(), run.communicator->host(), *run.training, *run.trainer);
    if (run.saved->manifest.ranks != world.size()) tell_digest(run);
    tell_changed_rate(*run.saved, *run.training, command.registry);
  } else {
    choose_threads_by_trial(run, command);
  }
  set_aside_others(*run.communicator, run.config.run_dir, run.saved ? &*run.saved : nullptr);
}

void tell_what_trains(TrainJob& run, const Command& command, const World& world) {
  TrainingSetup& training = *run.training;
  Report& report = *run.report;
  run.shown->introduce([&](RankIdentity& rank) { add_training(training, rank); });
  report.header(header_line(run.config, world, training));
  if (const std::string rate = rate_line(run.config, training); !rate.empty()) report.line(rate);
  if (world.rank() == 0)  // only rank 0 prints it
    report.line("data: " + summary_of(training.train_set(), training.test_set()));
  if (!training.told_of_data().empty()) report.line("data: " + training.told_of_data());
  if (const std::string& unused = training.unused_devices(); !unused.empty())
    report.line(fmt::format(
        "GPUs that this job sees but no rank uses: {}; start one rank per GPU, or hide them from this "
        "job (CUDA_VISIBLE_DEVICES)",
        unused));
  tell_of_shared_gpus(run);
  if (world.rank() != 0) return;
  const std::string toml = to_toml(run.config, command.registry),
                    facts = run_facts(world, training, *run.communicator);
  write_run_record(run.config.run_dir, toml, facts);
  report.started(toml, facts);
}

// Reports where the training starts, and frees run.saved.
void tell_from_where(TrainJob& run, const Command& command) {
  if (run.saved) {
    run.report->line(fmt::format("training resumes after step {} from {}", run.saved->manifest.steps,
                                 run.saved->folder.string()));
    run.saved.reset();
  } else if (!command.init.empty()) {
    run.report->line("training starts from " + command.init +
                     (run.config.model.reset_head
                          ? fmt::format(", with \"{}\" initialised randomly", run.training->network().head())
                          : ""));
  } else {
    warn_of_random_start(run.config);
  }
}

RanksNow ranks_now(TrainingSetup& training, const World& world) {
  RanksNow now{.ranks = world.size(),
               .local_ranks = world.local_size(),
               .threads = training.threads(),
               .cores = training.node_cores(),
               .on_gpu = training.network().device().kind == DeviceKind::cuda};
  for (const Bucket& bucket : training.buckets().buckets())
    now.gradient_bytes += static_cast<double>(bucket.bytes());
  return now;
}

// The observers of a training, in the order of their calls. TrainJob owns those that write_results() reads.
class Observers {
 public:
  struct Watched {
    DeviceMonitor* monitor;  // may be null
    std::optional<Attainable> attainable;
    bool resumes;
  };

  Observers(TrainJob& run, const Command& command, World& world, const Watched& watched)
      : run_(run), publisher_(*run.trainer, *run.shown, global_batch(), samples_per_second(watched)) {
    all_.push_back(&publisher_);
    add_reports(world, watched);
    Communicator& host = *run.communicator;
    add<Injector>(command.own<InjectFlags>().faults, *run.trainer, host, run.config.run_dir);
    add<StepWatch>(world, *run.trainer, run.config.timeout_seconds);
    add<StragglerWatch>(*run.trainer, host,
                        [&run](const Straggler& straggler) { run.report->straggler(straggler); });
    add<DesyncCheck>(*run.trainer, host, run.config.compared_every());
    if (run.config.profile.any()) add_profiler(world, watched.resumes);
    add_keepers(command);
  }

  std::span<TrainingObserver* const> all() const { return all_; }

 private:
  template <typename Observer, typename... Arguments>
  void add(Arguments&&... arguments) {
    owned_.push_back(std::make_unique<Observer>(std::forward<Arguments>(arguments)...));
    all_.push_back(owned_.back().get());
  }
  std::int64_t global_batch() const { return run_.training->train_loader().global_batch(); }
  static std::optional<double> samples_per_second(const Watched& watched) {
    return watched.attainable ? std::optional(watched.attainable->samples_per_second) : std::nullopt;
  }
  std::function<void(const std::string&)> say() {
    return [this](const std::string& line) { run_.report->line(line); };
  }

  void add_reports(World& world, const Watched& watched) {
    Communicator& host = *run_.communicator;
    const Config& config = run_.config;
    const std::optional<double> attainable = samples_per_second(watched);
    if (config.log_every > 0 && world.rank() == 0)
      add<SeriesReporter>(*run_.trainer, *run_.report, config.log_every, global_batch(), attainable);
    add<EpochReporter>(
        *run_.trainer, run_.training->buckets(), host, *run_.report,
        EpochReporter::Options{.advice = run_.training->advice_context(world),
                               .ranks = ranks_now(*run_.training, world),
                               .accumulation = config.loader.accumulation,
                               .global_batch = global_batch(),
                               .attainable = attainable,
                               .device = [&host, &config, monitor = watched.monitor](std::int64_t samples) {
                                 const MonitoredEpoch epoch{.sums = take_of_all_nodes(monitor, host),
                                                            .terms = {.samples = static_cast<double>(samples),
                                                                      .price_per_kwh = config.price_per_kwh}};
                                 return epoch.sums.nodes > 0 ? std::optional(epoch) : std::nullopt;
                               }});
    if (config.histograms_every > 0 && world.rank() == 0)
      add<HistogramReporter>(*run_.trainer, run_.training->network(), *run_.report, config.histograms_every);
    run_.report->watch_busy(config.busy, idle_context(run_, world, watched.monitor, watched.attainable));
  }

  void add_profiler(World& world, bool resumes) {
    TrainingSetup& training = *run_.training;
    all_.push_back(
        &run_.profiler.emplace(StepProfiler::Parts{.world = world,
                                                   .host = *run_.communicator,
                                                   .graph = training.graph(),
                                                   .network = training.network(),
                                                   .buckets = training.buckets(),
                                                   .timeline = *training.timeline(),
                                                   .trainer = *run_.trainer,
                                                   .say = say()},
                               StepProfiler::Options{.settings = run_.config.profile,
                                                     .run_dir = run_.config.run_dir,
                                                     .optimizer = run_.config.optimizer.name,
                                                     .accumulation = run_.config.loader.accumulation,
                                                     .resumes = resumes}));
  }

  // The best evaluation comes first, so that a checkpoint includes it.
  void add_keepers(const Command& command) {
    TrainJob& run = run_;
    TrainingKeeper& checkpoints = run.checkpoints.emplace(
        run.config, to_toml(run.config, command.registry), *run.communicator, *run.training, *run.trainer,
        TrainingKeeper::Calls{.also = [&run](StateVisitor& visitor) { run.best->visit_state(visitor); },
                              .waiting =
                                  [&run](bool waits) {
                                    if (waits)
                                      run.saving.emplace(&*run.shown, Activity::saving);
                                    else
                                      run.saving.reset();
                                  }});
    std::function<void()> save_best;
    if (run.config.best.keep) {
      save_best = [&run, &command] {
        const std::filesystem::path best = std::filesystem::path(run.config.run_dir) / kBestFile;
        std::error_code unknown;
        if (std::filesystem::is_symlink(best, unknown)) std::filesystem::remove(best, unknown);
        save_evaluated(run, command.registry, best);
      };
    }
    all_.push_back(&run.best_keeper.emplace(
        BestKeeper::Parts{*run.best, *run.trainer, run.communicator->host(), say()}, save_best));
    all_.push_back(&checkpoints.keeper());
  }

  TrainJob& run_;
  ProgressPublisher publisher_;
  std::vector<std::unique_ptr<TrainingObserver>> owned_;
  std::vector<TrainingObserver*> all_;
};

int end_whole(TrainJob& run, const Command& command, const World& world) {
  std::string digest;
  Unwritten unwritten;
  run_agreed(*run.communicator, [&] {
    digest = digest_of(run);
    hold_in("export");
    if (world.rank() == 0) unwritten = write_results(command, run, digest);
  });
  if (first_rank_where(*run.communicator, unwritten.results) >= 0)
    unwritten.problems += run.checkpoints->keeper().save_for_results();
  if (first_rank_where(*run.communicator, !unwritten.problems.empty()) >= 0)
    throw_agreed(IoError(unwritten.problems));
  require_same_state(*run.communicator, digest);
  return exit_code::done;
}

int train(TrainJob& run, const Command& command, World& world) {
  if (!begin(run, command, world)) return exit_code::done;
  Communicator& communicator = *run.communicator;
  const bool traced = first_rank_where(communicator, !command.trace.empty()) >= 0;
  refuse_what_excludes_each_other(run, command.own<InjectFlags>().faults, traced);
  complete_config(run, command, world);
  build(run, command, world);
  go_on_or_start(run, command, world);
  const bool goes_on = saved_epochs(run).has_value();
  const std::unique_ptr<DeviceMonitor> monitor = begin_monitor(
      {.folder = run.config.run_dir, .every_seconds = run.config.monitor_seconds, .goes_on = goes_on}, world,
      communicator, run.training->network().device());
  tell_what_trains(run, command, world);
  run.best.emplace(run.config.best);
  if (run.saved) run.best->take(run.saved->state);
  tell_from_where(run, command);

  const ClockOffset before = traced ? measure_clock(communicator, world.node()) : ClockOffset{};
  const std::optional<Attainable> attainable =
      run.config.measure_peak
          ? measure_attainable(communicator, run.training->graph(), run.training->network())
          : std::nullopt;
  const Observers observers(run, command, world,
                            {.monitor = monitor.get(), .attainable = attainable, .resumes = goes_on});
  CheckpointKeeper& keeper = run.checkpoints->keeper();
  run.trainer->fit(observers.all());

  run.shown->enter(Activity::finishing);
  if (run.profiler) run.profiler->finish();
  keeper.finish();
  if (keeper.stopped_by() != 0) {
    run.report->line(stopped_line(keeper, run.trainer->steps(), world.size()));
    return exit_code::resumable;
  }
  if (traced)
    run.trace = trace_of_all(communicator, run.training->timeline(), before,
                             measure_clock(communicator, world.node()));
  return end_whole(run, command, world);
}

int run_train(const Command& command, World& world) {
  TrainJob run;
  return run_or_abort(world, [&] { return train(run, command, world); });
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
      ->check(CLI::IsMember({"any", "same"}));
  app.add_option("--resume-with", resume.with,
                 "Resume although this key differs from the saved configuration; repeatable")
      ->type_name("KEY")
      ->allow_extra_args(false);
  app.add_option("--inject", command.own<InjectFlags>().faults,
                 "Inject a fault on purpose, for a drill; repeatable. Kinds:\n" + describe_fault_kinds())
      ->type_name("KIND:rank=R,step=S")
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
    .in_world = run_train,
    .lists_keys = true};

}  // namespace lockstep
