// SPDX-License-Identifier: Apache-2.0
//
// PlanSimulation: checks the flags of `lockstep plan` that describe a cluster, and predicts training steps on
// it.
#pragma once

#include <string>
#include <vector>

#include "launch/program/commands/command_line.h"
#include "launch/program/config/config.h"
#include "launch/program/plan/report.h"
#include "launch/program/plan/step_trace.h"
#include "models/network.h"

namespace CLI {
class App;
}

namespace lockstep {

struct SimulationFlags {
  int ranks = 0;  // 0: no simulation
  int nodes = 1;
  std::string link;               // "[CARDSx]SPEED[,LATENCY]"
  std::string node_link;          // the same
  std::string device_step;        // a trace, or a time as in "19.5ms"
  std::vector<std::string> fits;  // "FILE" or "FILE@LINK"
  double stretch = 0;             // 0: fitted, or else a prior
  int cores = 0;                  // of a node; 0: those of the traced node
  std::vector<std::string> gpus;  // to estimate; with ranks, the GPU of the cluster
  std::string json;
};
void add_simulation_flags(CLI::App& app, Command& command);
// Throws UsageError where a flag of the prediction is given without --ranks, and where --ranks is given with
// several GPUs.
void require_ranks(const SimulationFlags& flags);

class PlanSimulation {
 public:
  // Reads the traces. `flags` and `config` must outlive it. Throws UsageError for conflicting flags, the
  // errors of read_step_trace and measured_sums, and ConfigError for a trace of another network, batch,
  // accumulation or number of threads, for a device trace without overlap, and for MPI's own all-reduce
  // between nodes. UsageError also for a GPU without a published bandwidth in its node, where none is given.
  PlanSimulation(const SimulationFlags& flags, const Config& config);

  // `network` is built from the configuration. Throws ConfigError where its gradients have another size than
  // the traced ones, and where the traces fit no link.
  SimulationReport report(Network& network) const;

 private:
  struct Fit {
    StepTrace trace;
    double bytes_per_second = 0;  // nominal speed of the link; 0: not given
  };
  // True where a trace measured sums, which then replace NCCL's model.
  bool measures_sums() const;
  NodeCores choose_cores(SimulationReport& about) const;
  double choose_pace(const ComputeModel& compute, SimulationReport& about) const;
  // Each sets a tier of the cluster, and adds its source to about.from.
  void choose_between_nodes(Cluster& cluster, double pace, SimulationReport& about) const;
  void choose_in_node(Cluster& cluster, SimulationReport& about, bool on_gpu) const;
  ComputeLoss choose_loss(const ComputeModel& compute, SimulationReport& about) const;
  // The type of sums over ranks, as StepModel has it.
  SumType sum_type(bool on_gpu) const;
  // measured_sums() with the bytes of fp32 where the traced run widened its gradients.
  std::vector<MeasuredSum> sums_of(const StepTrace& trace, double bytes_per_second) const;
  std::vector<MeasuredSum> sums_between_nodes() const;
  std::vector<MeasuredSum> sums_in_node() const;
  void require_same_run(const StepTrace& trace, const std::string& file) const;

  const SimulationFlags& flags_;
  const Config& config_;
  StepTrace device_;
  bool step_is_given_ = false;  // as a time: device_ has one step of even phases, without buckets
  std::vector<Fit> fits_;
};

}  // namespace lockstep
