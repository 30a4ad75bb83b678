// SPDX-License-Identifier: Apache-2.0
#include <filesystem>
#include <functional>
#include <optional>
#include <set>
#include <vector>

#include <CLI/CLI.hpp>
#include <fmt/ranges.h>

#include "comm/agreement.h"
#include "core/atomic_file.h"
#include "core/error.h"
#include "core/log.h"
#include "launch/account/busy.h"
#include "launch/account/trace.h"
#include "launch/best_keeper.h"
#include "launch/checkpoint/resume.h"
#include "launch/checkpoint/training_keeper.h"
#include "launch/commands/agreed_config.h"
#include "launch/commands/commands.h"
#include "launch/desync_check.h"
#include "launch/devices/cores.h"
#include "launch/devices/device_use.h"
#include "launch/digest.h"
#include "launch/engine_options.h"
#include "launch/export_facts.h"
#include "launch/find_batch/automatic_batch.h"
#include "launch/inject/injection.h"
#include "launch/job_end.h"
#include "launch/monitor/monitor.h"
#include "launch/monitor/shown_training.h"
#include "launch/profile/step_profiler.h"
#include "launch/replicas.h"
#include "launch/run_files/run_folder.h"
#include "launch/run_files/run_record.h"
#include "launch/step_watch.h"
#include "launch/stragglers.h"
#include "launch/terminal/terminal.h"
#include "launch/thread_trial.h"
#include "launch/trainer.h"
#include "launch/training.h"
#include "launch/version.h"
#include "models/network_state.h"

namespace lockstep {
namespace {

std::string header_line(const Config& config, const World& world, Training& training) {
  return fmt::format("Lockstep {}: {} on {} ({} thread{} per rank), {} rank{} x batch {} x accumulation {}",
                     kVersion, config.model.name, to_string(training.network().device()), training.threads(),
                     training.threads() == 1 ? "" : "s", world.size(), world.size() == 1 ? "" : "s",
                     config.loader.batch, config.loader.accumulation);
}

// Empty: the rate is as it was given, or chosen.
std::string rate_line(const Config& config, Training& training) {
  const ScheduleSettings& settings = config.schedule;
  if (settings.scaling == RateScaling::none) return {};
  const std::string ratio =
      fmt::format("{} / {}", training.train_loader().global_batch(), settings.scale_batch);
  return fmt::format("learning rate {:.6g} = {:.6g} x {} samples a step (optimizer.scale_rate)",
                     training.schedule().base, settings.learning_rate,
                     settings.scaling == RateScaling::linear ? ratio : fmt::format("sqrt({})", ratio));
}

struct InjectFlags {
  std::vector<std::string> faults;
};

// What outlives an error of this rank: see run_or_abort.
struct TrainRun {
  std::unique_ptr<Communicator> communicator;
  Config config;
  std::optional<RunLock> lock;     // rank 0's
  std::optional<ShownRank> shown;  // by the trainer
  std::optional<Training> training;
  std::optional<Report> report;
  std::optional<Trainer> trainer;
  std::optional<SavedTraining> saved;  // that this one goes on from
  std::optional<StopSignals> signals;
  std::optional<BestEvaluation> best;
  std::optional<TrainingKeeper> checkpoints;
  std::optional<BestKeeper> best_keeper;
  std::string trace;  // rank 0's: what --trace writes
  std::optional<StepProfiler> profiler;
};

// Throws IoError. In the precision of exports.
void save_evaluated(TrainRun& run, const Registry& registry, const std::filesystem::path& path) {
  Training& training = *run.training;
  const ExportPrecision precision = run.config.export_precision;
  std::vector<std::string> kept;
  run.trainer->with_evaluated_weights([&] {
    kept = StateSnapshot(training.network())
               .save(path, to_metadata(export_facts(run.config, training.train_set(), registry)),
                     stored_type(precision));
  });
  if (kept.empty()) return;
  log::warning("{}: {} has values beyond what {} holds, and {} fp32", path.string(), fmt::join(kept, ", "),
               words_of(precision)[static_cast<std::size_t>(precision)], kept.size() == 1 ? "stays" : "stay");
}

// Told before the first step.
void warn_of_random_start(const Config& config) {
  if (config.model.reset_head)
    log::shared_warning("model.reset_head = true, and there is no --init: the whole network starts anew");
  if (!config.model.freeze.empty())
    log::shared_warning(
        "model.freeze is set, and there is no --init: frozen layers keep the random values that they start "
        "with");
}

// Whatever can be written is, before an IoError tells of the rest.
void write_results(const Command& command, TrainRun& run, const std::string& state) {
  std::vector<std::string> problems = run.report->problems();
  if (run.profiler && !run.profiler->problem().empty()) problems.push_back(run.profiler->problem());
  if (!run.best_keeper->problem().empty()) problems.push_back(run.best_keeper->problem());
  const auto write = [&](const std::string& path, const char* what, const std::function<void()>& work) {
    if (path.empty()) return;
    try {
      work();
      run.report->line(fmt::format("{} {}", what, path));
    } catch (const IoError& error) {
      problems.emplace_back(error.what());
    }
  };
  write(command.export_, "weights are in", [&] { save_evaluated(run, command.registry, command.export_); });
  write(command.digest, "the digest is in", [&] { write_atomically(command.digest, state + "\n"); });
  write(command.trace, "the trace is in", [&] { write_atomically(command.trace, run.trace); });
  if (!problems.empty()) throw IoError(fmt::format("{}", fmt::join(problems, "; ")));
}

// Of the saved training, where this one is to compute as it did.
std::string saved_kernels(const TrainRun& run) {
  if (!run.saved) return {};
  const auto on_gpu = [](const std::string& value) { return value == "\"cuda\"" || value == "\"idle\""; };
  for (const KeyDifference& each : differences(run.saved->manifest.config, to_toml(run.config))) {
    if (each.key == "kernels.choose") return {};
    if (each.key == "world.device" && !(on_gpu(each.value) && on_gpu(each.other))) return {};
  }
  return run.saved->manifest.kernels;
}

// Whose lines metrics.jsonl has already; nothing where it begins anew.
std::optional<std::int64_t> saved_epochs(const TrainRun& run) {
  if (!run.saved || !run.saved->in_run_dir) return std::nullopt;
  return run.saved->manifest.epochs;
}

// The line of an epoch that train.steps cut short stays the last one, or the epoch is trained on and gets
// another.
bool keeps_partial_line(const TrainRun& run, const TrainingLength& length) {
  return run.saved->manifest.partial_line && run.saved->manifest.steps >= length.steps;
}

RanksNow ranks_now(Training& training, const World& world) {
  RanksNow now{.ranks = world.size(),
               .local_ranks = world.local_size(),
               .threads = training.threads(),
               .cores = training.node_cores(),
               .on_gpu = training.network().device().kind == DeviceKind::cuda};
  for (const Bucket& bucket : training.buckets().buckets())
    now.gradient_bytes += static_cast<double>(bucket.bytes());
  return now;
}

void build(TrainRun& run, const Command& command, World& world) {
  const Config& config = run.config;
  Communicator& communicator = *run.communicator;
  Training& training =
      run.training.emplace(config, world, communicator,
                           Training::Options{.init = run.saved ? "" : command.init,
                                             .trace = !command.trace.empty() || config.profile.any(),
                                             .kernels = saved_kernels(run),
                                             .registry = command.registry});
  const std::filesystem::path directory = config.run_dir;
  const Terminal terminal = find_terminal();
  const TrainingLength length = training.length();
  run_agreed(communicator, [&] {
    run.report.emplace(ReportOptions{.speaks = world.rank() == 0,
                                     .terminal = terminal.present,
                                     .columns = terminal.columns,
                                     .directory = directory,
                                     .epochs = length.epochs,
                                     .steps_per_epoch = training.train_loader().steps_in_epoch(0),
                                     .total_steps = length.steps,
                                     .global_batch = training.train_loader().global_batch(),
                                     .dropped_samples = training.train_loader().dropped_samples(),
                                     .repeated_samples = training.train_loader().repeated_samples(),
                                     .last_batch_samples = training.train_loader().last_batch_samples(),
                                     .goes_on_after = saved_epochs(run),
                                     .partial_line = run.saved && keeps_partial_line(run, length),
                                     .goes_on_after_step = run.saved ? run.saved->manifest.steps : 0});
  });
  TrainerOptions options = trainer_options(config);
  options.last_good = directory / "last_good.safetensors";
  options.advice = training.advice_context(world);
  options.ranks = ranks_now(training, world);
  run.trainer.emplace(training.parts(), training.schedule(), options);
  run.trainer->show_on(&*run.shown);
}

IdleContext idle_context(TrainRun& run, const World& world, const DeviceMonitor* monitor,
                         const std::optional<Attainable>& attainable) {
  const Config& config = run.config;
  Training& training = *run.training;
  return {.on_gpu = training.network().device().kind == DeviceKind::cuda,
          .records_steps = config.trainer.record_steps,
          .halves_are_fast = training.halves_are_fast(),
          .ranks = world.size(),
          .local_ranks = world.local_size(),
          .threads = training.threads(),
          .cores = training.node_cores(),
          .machine_cores = machine_cores(),
          .batch = config.loader.batch,
          .accumulation = config.loader.accumulation,
          .decodes = training.train_set().decodes(),
          .preloads = !training.told_of_data().empty(),
          .loader_threads = config.loader.threads,
          .metrics_every = config.trainer.evaluate_every,
          .log_every = config.trainer.log_every,
          .roof = attainable ? roof_of(training, attainable->gigaflops) : nullptr,
          .room = [&training, &world](std::int64_t batch) { return training.room_for(batch, world); },
          .slowed = [monitor] { return monitor != nullptr ? monitor->slowed() : std::nullopt; }};
}

// Not where somebody chose the threads, or wants the same bits from any number of ranks, or a trace of the
// training alone; nor where the trial's steps are remembered, by an exchange or by neighbours on a ring.
void choose_threads_by_trial(TrainRun& run, const Command& command) {
  Training& training = *run.training;
  const bool on_cpu = training.network().device().kind == DeviceKind::cpu;
  if (!on_cpu || run.config.threads != 0 || run.config.reproducible || !command.trace.empty()) return;
  const bool remembers =
      !training.buckets().exchange().state().empty() || run.config.trainer.topology == Topology::ring;
  if (first_rank_where(run.communicator->host(), remembers) >= 0) return;
  if (!sparing_is_open(*run.communicator, training.threads(), training.length().steps)) return;
  const int threads = training.threads();
  const ThreadTrial trial = try_sparing_a_core(*run.trainer, backend_for({}), *run.communicator, threads);
  training.set_threads(trial.threads);
  log::info("{}", describe(trial, threads));
}

std::string digest_of(TrainRun& run) {
  return digest(run.training->network(), run.training->optimizer(), run.trainer->weight_average());
}

// Where ranks are others: that their state is what was saved can be seen.
void tell_digest(TrainRun& run) {
  std::string state;
  run_agreed(*run.communicator, [&] { state = digest_of(run); });
  log::info("its digest is {}", state);
}

// Collective.
void tell_of_shared_gpus(TrainRun& run) {
  const std::optional<CudaDevice> gpu = known_gpu(run.training->network().device());
  const std::vector<std::string> told =
      gather_texts(run.communicator->host(), gpu ? told_of_sharing(*gpu) : "");
  for (const std::string& each : std::set<std::string>(told.begin(), told.end()))
    if (!each.empty()) run.report->line(each);
}

int train(TrainRun& run, const Command& command, World& world) {
  const bool first = world.rank() == 0;
  run.communicator = world.communicator();
  std::optional<Config> config = agreed_config(*run.communicator, command, {.finds_batch = true});
  if (!config) return exit_code::done;
  make_failed_writes_errors();
  run.config = *config;
  run.signals.emplace(config->checkpoints.grace_seconds);
  run_agreed(*run.communicator, [&] {
    if (first) run.lock.emplace(config->run_dir);
  });

  run.shown.emplace(starting_rank(run.config, world, *run.communicator));

  const std::vector<std::string>& faults = command.own<InjectFlags>().faults;
  if (!faults.empty() && config->trainer.topology == Topology::ring)
    throw_agreed(UsageError(fmt::format(
        "--inject {}: a fault is made before a step that all ranks take together, and with comm.topology = "
        "\"ring\" each takes its own; set it to \"all\"",
        faults.front())));
  const bool traced = first_rank_where(*run.communicator, !command.trace.empty()) >= 0;
  if (traced && config->profile.any())
    throw_agreed(
        UsageError(fmt::format("--trace has all steps, profile.active = {} some of them, each in files of "
                               "its own: leave one of them out",
                               config->profile.active)));
  const auto& flags = command.own<ResumeFlags>();
  if (config->loader.batch == 0) {
    config =
        agreed_config(*run.communicator, with_batch_found(world, *run.communicator, command, *config, flags));
    run.config = *config;
  }
  run.saved = find_saved(*run.communicator, run.config, flags, command.registry);
  if (run.saved) keep_global_batch(*run.saved, flags, world.size(), run.config);
  build(run, command, world);
  if (run.saved) {
    go_on_from(*run.saved, flags, run.communicator->host(), *run.training, *run.trainer);
    if (run.saved->manifest.ranks != world.size()) tell_digest(run);
  } else {
    choose_threads_by_trial(run, command);
  }
  set_aside_others(*run.communicator, run.config.run_dir, run.saved ? &*run.saved : nullptr);
  const bool goes_on = saved_epochs(run).has_value();
  const std::unique_ptr<DeviceMonitor> monitor =
      begin_monitor(run.config, world, *run.communicator, run.training->network().device(), goes_on);
  run.shown->introduce([&](RankIdentity& rank) { add_training(*run.training, rank); });
  run.report->header(header_line(run.config, world, *run.training));
  if (const std::string rate = rate_line(run.config, *run.training); !rate.empty()) run.report->line(rate);
  if (world.rank() == 0)  // who alone prints it
    run.report->line("data: " + summary_of(run.training->train_set(), run.training->test_set()));
  if (!run.training->told_of_data().empty()) run.report->line("data: " + run.training->told_of_data());
  if (const std::string& unused = run.training->unused_devices(); !unused.empty())
    run.report->line(
        fmt::format("GPUs that this job sees and no rank uses: {}; start a rank for each, or leave them to "
                    "others (CUDA_VISIBLE_DEVICES)",
                    unused));
  tell_of_shared_gpus(run);
  if (first) {
    const std::string toml = to_toml(run.config, command.registry),
                      facts = run_facts(world, *run.training, *run.communicator);
    write_run_record(run.config, toml, facts);
    run.report->started(toml, facts);
  }
  run.best.emplace(run.config.best);
  if (run.saved) {
    run.best->take(run.saved->state);
    run.report->line(fmt::format("training goes on after step {} from {}", run.saved->manifest.steps,
                                 run.saved->folder.string()));
    run.saved.reset();  // its memory
  } else if (!command.init.empty()) {
    run.report->line(
        "training starts from " + command.init +
        (run.config.model.reset_head ? fmt::format(", \"{}\" anew", run.training->network().head()) : ""));
  } else {
    warn_of_random_start(run.config);
  }
  Communicator& host = *run.communicator;
  CheckpointKeeper& keeper =
      run.checkpoints
          .emplace(run.config, to_toml(run.config, command.registry), *run.signals, host, *run.training,
                   *run.trainer, [&](StateVisitor& visitor) { run.best->visit_state(visitor); })
          .keeper();
  const ClockOffset before = traced ? measure_clock(host, world.node()) : ClockOffset{};
  std::function<void()> save_best;
  if (config->best.keep) {
    save_best = [&] {
      save_evaluated(run, command.registry, std::filesystem::path(run.config.run_dir) / kBestFile);
    };
  }
  BestKeeper& best = run.best_keeper.emplace(
      BestKeeper::Parts{*run.best, *run.trainer, host.host(), *run.report}, save_best, keeper);
  FitObserver* between = &best;
  if (config->profile.any()) {
    const StepProfiler::Parts parts{world, host, *run.training, *run.trainer, *run.report};
    between = &run.profiler.emplace(*config, parts, goes_on, best);
  }
  DesyncCheck check(*run.trainer, host, config->compared_every(), *between);
  StragglerWatch stragglers(*run.trainer, host, *run.report, check);
  StepWatch watch(world, *run.trainer, config->timeout_seconds, stragglers);
  Injector injector(faults, *run.trainer, host, config->run_dir, watch);
  const std::optional<Attainable> attainable =
      config->measure_peak ? measure_attainable(host, *run.training) : std::nullopt;
  if (attainable) run.trainer->set_attainable(attainable->samples_per_second);
  run.trainer->tell_devices([&](std::int64_t samples) {
    const MonitorSums sums = take_of_all_nodes(monitor.get(), host);
    const EnergyTerms terms{.samples = static_cast<double>(samples), .price_per_kwh = config->price_per_kwh};
    return sums.nodes > 0 ? to_json(sums, terms) : std::string();
  });
  run.report->watch_busy(config->busy, idle_context(run, world, monitor.get(), attainable));
  run.trainer->fit(*run.report, &injector);
  run.shown->enter(Activity::finishing);
  if (run.profiler) run.profiler->finish();
  if (keeper.stopped_by() != 0) {
    run.report->line(stopped_line(keeper, run.trainer->steps(), world.size()));
    return exit_code::resumable;
  }
  keeper.finish();
  if (traced)
    run.trace = trace_of_all(host, run.training->timeline(), before, measure_clock(host, world.node()));
  std::string state;
  run_agreed(*run.communicator, [&] {
    state = digest_of(run);
    if (first) write_results(command, run, state);
  });
  require_same_state(*run.communicator, state);
  return exit_code::done;
}

int run_train(const Command& command, World& world) {
  TrainRun run;
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
         "Go on from the newest checkpoint of run.dir (auto), from a checkpoint or a run's folder, or "
         "start anew (never, the default)")
      ->type_name("auto|never|FOLDER");
  app.add_option(
         "--resume-size", resume.size,
         "On another number of ranks than was saved: any changes train.accumulation so that a step keeps "
         "its samples, where they divide; same (the default) refuses")
      ->type_name("any|same")
      ->check(CLI::IsMember({"any", "same"}));
  app.add_option("--resume-with", resume.with,
                 "Go on although this key differs from the saved configuration; repeatable")
      ->type_name("KEY")
      ->allow_extra_args(false);
  app.add_option("--inject", command.own<InjectFlags>().faults,
                 "Make a fault on purpose, for a drill; repeatable. There are:\n" + describe_fault_kinds())
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
        "mpirun -np 2 --bind-to none lockstep train fashion_mnist_cnn\n"
        "lockstep train own.toml --set train.epochs=3 --export own.safetensors",
    .flags = train_flags,
    .in_world = run_train,
    .lists_keys = true};

}  // namespace lockstep
