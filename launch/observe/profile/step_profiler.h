// SPDX-License-Identifier: Apache-2.0
//
// StepProfiler: profiles a training by a schedule (schedule.h). It and the timeline record only in observed
// steps. After each cycle every rank writes its file (torch_trace.h). A failed write is reported and does not
// end training.
#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "comm/world.h"
#include "launch/observe/profile/layer_facts.h"
#include "launch/observe/profile/schedule.h"
#include "launch/observe/profile/torch_trace.h"
#include "launch/observe/profile/trace.h"
#include "launch/train/trainer.h"
#include "launch/train/training_observer.h"

namespace lockstep {

class StepProfiler final : public TrainingObserver {
 public:
  struct Parts {
    const World& world;
    Communicator& host;
    const Graph& graph;
    Network& network;
    GradientBuckets& buckets;
    Timeline& timeline;
    Trainer& trainer;
    std::function<void(const std::string&)> say;  // prints a line
  };
  struct Options {
    ProfileSettings settings;  // dir: kOwnFolder means run_dir/profile
    std::filesystem::path run_dir;
    std::string optimizer;  // name of the optimizer
    std::int64_t accumulation = 1;
    // The training resumes and keeps its default profile folder; otherwise an existing one is renamed.
    bool resumes = false;
  };
  // Collective, before the first step that may be profiled. Parts outlive this.
  StepProfiler(const Parts& parts, const Options& options);
  ~StepProfiler() override;
  StepProfiler(const StepProfiler&) = delete;
  StepProfiler& operator=(const StepProfiler&) = delete;

  void before_step() override;
  bool goes_on() override;

  // Collective, after training. Writes the recorded part of an interrupted cycle.
  void finish();
  // The reason why a profile is missing; empty if all are complete.
  const std::string& problem() const { return problem_; }

 private:
  // Keeps the layer runs of a cycle, up to a limit of memory.
  struct LayerRecorder final : LayerObserver {
    void layer_ran(std::size_t node, Direction direction, std::int64_t begin_ns,
                   std::int64_t end_ns) override;
    void clear();

    std::vector<LayerRun> runs;
    std::size_t dropped = 0;
  };

  // Starts or stops recording, and discards what was recorded.
  void observe(bool wanted);
  void write();
  bool write_file(const std::filesystem::path& path, const TraceClock& clock);
  // lost: the number of ranks whose file was not written.
  void tell(std::int64_t lost);
  ClockOffset offset() const;

  ProfileSettings settings_;
  Parts parts_;
  std::filesystem::path folder_;
  TraceHead head_;
  LayerFacts facts_;
  LayerRecorder layers_;
  std::int64_t base_ns_ = 0;  // rank 0's clock at the start
  ClockOffset before_;        // clock offset before the first observed step
  ProfileStage stage_ = ProfileStage::idle;
  std::int64_t first_step_ = 0;  // first active step of the cycle, from 1; 0: none yet
  std::string problem_;
};

}  // namespace lockstep
