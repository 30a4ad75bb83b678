// SPDX-License-Identifier: Apache-2.0
#include "launch/observe/profile/step_profiler.h"

#include <algorithm>
#include <chrono>
#include <system_error>

#include <unistd.h>

#include "comm/agreement.h"
#include "core/error.h"
#include "core/files/atomic_file.h"
#include "core/log.h"
#include "core/text/text.h"
#include "launch/observe/profile/layer_profile.h"
#include "launch/observe/run_files/run_folder.h"

namespace lockstep {
namespace {

constexpr std::size_t kMostLayerRuns = std::size_t{1} << 20;  // 24 MiB

std::int64_t unix_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

TraceHead trace_head(const StepProfiler::Parts& parts, const std::string& optimizer) {
  const MemoryPlan& memory = parts.network.memory();
  const std::span<const Bucket> buckets = parts.buckets.buckets();
  return {.host = parts.world.host(),
          .process = getpid(),
          .rank = parts.world.rank(),
          .ranks = parts.world.size(),
          .device = parts.network.device(),
          .devices = cuda_status().devices,
          .optimizer = optimizer,
          .buckets = {buckets.begin(), buckets.end()},
          .parameter_bytes = memory.parameters + memory.weight_copies + memory.statistics + memory.frozen,
          .gradient_bytes = parts.buckets.memory_bytes()};
}

// Renames the profile folder of an earlier run, on rank 0.
void set_folder_aside(const std::filesystem::path& folder) {
  std::error_code error;
  if (!std::filesystem::is_directory(folder, error) || std::filesystem::is_empty(folder, error)) return;
  const std::filesystem::path earlier = name_of_earlier(folder);
  std::filesystem::rename(folder, earlier, error);
  if (error) {
    log::warning("cannot rename {} to {}: {}; profiles of this run are added to those of an earlier run",
                 folder.string(), earlier.string(), error.message());
  }
}

}  // namespace

void StepProfiler::LayerRecorder::layer_ran(std::size_t node, Direction direction, std::int64_t begin_ns,
                                            std::int64_t end_ns) {
  if (runs.size() == kMostLayerRuns) {
    ++dropped;
    return;
  }
  runs.push_back({static_cast<std::uint32_t>(node), direction, begin_ns, end_ns});
}

void StepProfiler::LayerRecorder::clear() {
  runs.clear();
  dropped = 0;
}

StepProfiler::StepProfiler(const Parts& parts, const Options& options)
    : settings_(options.settings),
      parts_(parts),
      folder_(options.settings.dir),
      head_(trace_head(parts, options.optimizer)),
      facts_(parts.graph, parts.network) {
  if (settings_.dir == ProfileSettings::kOwnFolder) {
    folder_ = options.run_dir / "profile";
    if (!options.resumes && parts.world.rank() == 0) set_folder_aside(folder_);
  }
  struct Clocks {
    std::int64_t unix_ns, own_ns;
  };
  const Clocks first = gather_values(parts.host, Clocks{unix_ns(), now_ns()}).front();
  head_.base_unix_ns = first.unix_ns;
  base_ns_ = first.own_ns;
  const std::size_t of_a_step =
      facts_.nodes() * kDirections.size() * static_cast<std::size_t>(options.accumulation);
  layers_.runs.reserve(std::min(kMostLayerRuns, of_a_step * static_cast<std::size_t>(std::min<std::int64_t>(
                                                                settings_.active, kMostLayerRuns))));
  parts_.timeline.set_recording(false);
}

StepProfiler::~StepProfiler() { parts_.trainer.observe_layers(nullptr); }

bool StepProfiler::goes_on() {
  if (profiled_step(settings_, parts_.trainer.steps() - 1).last) write();
  return true;
}

void StepProfiler::before_step() {
  const std::int64_t step = parts_.trainer.steps();
  const ProfileStage stage = profiled_step(settings_, step).stage;
  const bool begins = stage == ProfileStage::active && first_step_ == 0;
  if (begins || stage != stage_) observe(stage != ProfileStage::idle);
  if (begins) first_step_ = step + 1;
  stage_ = stage;
}

void StepProfiler::observe(bool wanted) {
  const bool was = parts_.timeline.recording();
  if (was || wanted) parts_.trainer.finish_steps();  // a GPU's steps are recorded when they finish
  if (wanted && !was) before_ = offset();
  parts_.timeline.set_recording(wanted);
  parts_.trainer.observe_layers(wanted ? &layers_ : nullptr);
  parts_.timeline.clear();
  layers_.clear();
}

// Ranks of a node share one clock.
ClockOffset StepProfiler::offset() const {
  return parts_.world.nodes() > 1 ? measure_clock(parts_.host, parts_.world.node()) : ClockOffset{};
}

// The files of a cycle have the same time in their names on all ranks.
void StepProfiler::write() {
  parts_.trainer.finish_steps();
  TraceClock clock = clock_between(before_, offset());
  clock.to_ns -= base_ns_;
  const std::int64_t time = gather_values(parts_.host, unix_ns()).front();
  const bool written = write_file(folder_ / torch_trace_name(head_, time), clock);
  tell(std::ranges::count(gather_values<std::int32_t>(parts_.host, written), 0));
  first_step_ = 0;
  stage_ = ProfileStage::idle;
  observe(false);
}

bool StepProfiler::write_file(const std::filesystem::path& path, const TraceClock& clock) {
  const Timeline& timeline = parts_.timeline;
  try {
    std::error_code error;
    std::filesystem::create_directories(folder_, error);  // on failure, writing the file throws
    write_atomically(path, torch_trace(head_, timeline, layers_.runs, layers_.dropped, facts_, clock),
                     Links::replace);
    return true;
  } catch (const IoError& failure) {
    log::warning("cannot write the profile of this rank: {}; training continues without it", failure.what());
    problem_ = failure.what();
    return false;
  }
}

void StepProfiler::tell(std::int64_t lost) {
  const std::int64_t last_step = parts_.trainer.steps();
  const std::string steps = first_step_ == last_step ? fmt::format("step {}", last_step)
                                                     : fmt::format("steps {} to {}", first_step_, last_step);
  if (lost > 0 && problem_.empty())
    problem_ = fmt::format("{} could not write the profile of {}", counted(lost, "rank"), steps);
  if (lost == 0) {
    parts_.say(fmt::format("the profile of {} is in {}, with one file per rank", steps, folder_.string()));
  }
  const std::size_t dropped = layers_.dropped + parts_.timeline.dropped();
  if (dropped == 0) return;
  log::shared_warning("the profile of {} lacks {} because its buffer is full: set profile.active lower",
                      steps, counted(dropped, "span"));
}

void StepProfiler::finish() {
  if (first_step_ > 0 && parts_.trainer.steps() >= first_step_) write();
  parts_.trainer.observe_layers(nullptr);
  parts_.timeline.set_recording(false);
}

}  // namespace lockstep
