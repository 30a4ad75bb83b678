// SPDX-License-Identifier: Apache-2.0
//
// StepProfiler: profiles a training by a schedule (profile/schedule.h). In the steps that it is to observe
// the timeline records, and so does this each layer; in all others neither. After each cycle every rank
// writes its file (profile/torch_trace.h). What cannot be written ends nothing: it is told of.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "comm/world.h"
#include "launch/account/trace.h"
#include "launch/config/config.h"
#include "launch/fit_observer.h"
#include "launch/profile/layer_facts.h"
#include "launch/profile/torch_trace.h"
#include "launch/run_files/report.h"
#include "launch/trainer.h"
#include "launch/training.h"

namespace lockstep {

class StepProfiler final : public PassingObserver {
 public:
  struct Parts {
    const World& world;
    Communicator& host;
    Training& training;  // with a timeline
    Trainer& trainer;
    Report& report;
  };
  // Collective, before the first step that may be one of them. goes_on: the
  // training's own folder keeps what is in it; otherwise that is set aside.
  StepProfiler(const Config& config, const Parts& parts, bool goes_on, FitObserver& then);
  ~StepProfiler() override;
  StepProfiler(const StepProfiler&) = delete;
  StepProfiler& operator=(const StepProfiler&) = delete;

  bool goes_on() override;

  // Collective: training is over. Of a cycle that was cut short what there is of it is written.
  void finish();
  // What is not there, and why; empty: nothing.
  const std::string& problem() const { return problem_; }

 private:
  // Keeps what a cycle may hold in memory.
  struct LayerRecorder final : LayerObserver {
    void layer_ran(std::size_t node, Direction direction, std::int64_t begin_ns,
                   std::int64_t end_ns) override;
    void clear();

    std::vector<LayerRun> runs;
    std::size_t dropped = 0;
  };

  void begin_step();
  // From now on, forgetting what there is.
  void observe(bool wanted);
  void write();
  bool write_file(const std::filesystem::path& path, const TraceClock& clock);
  // lost: files of ranks.
  void tell(std::int64_t lost);
  ClockOffset offset() const;

  ProfileSettings settings_;
  Parts parts_;
  std::filesystem::path folder_;
  TraceHead head_;
  LayerFacts facts_;
  LayerRecorder layers_;
  std::int64_t base_ns_ = 0;  // of rank 0's clock
  ClockOffset before_;        // the first step that is observed
  ProfileStage stage_ = ProfileStage::idle;
  std::int64_t first_step_ = 0;  // of those that are active, from 1; 0: none yet
  std::string problem_;
};

}  // namespace lockstep
