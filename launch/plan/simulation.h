// SPDX-License-Identifier: Apache-2.0
//
// PlanSimulation: what `lockstep plan` is told of a cluster that is not there, checked, and the model of its
// steps that follows from it.
#pragma once

#include <string>
#include <vector>

#include "launch/commands/command_line.h"
#include "launch/config/config.h"
#include "launch/plan/report.h"
#include "launch/plan/step_trace.h"
#include "models/network.h"

namespace CLI {
class App;
}

namespace lockstep {

struct SimulationFlags {
  int ranks = 0;  // 0: nothing is simulated
  int nodes = 1;
  std::string link;
  std::string node_link;
  std::string device_step;
  std::vector<std::string> fits;  // "FILE" or "FILE@LINK"
  double stretch = 0;             // 0: fitted, or assumed
  int cores = 0;                  // of a node; 0: as many as the traced one has
  std::string json;
};
void add_simulation_flags(CLI::App& app, Command& command);
// Throws UsageError where flags of a prediction are given and no ranks to predict.
void require_ranks(const SimulationFlags& flags);

class PlanSimulation {
 public:
  // Reads the traces. Throws UsageError for flags that make no sense together, what read_step_trace throws,
  // and ConfigError for traces of another network, batch or accumulation than the configuration's.
  PlanSimulation(const SimulationFlags& flags, const Config& config);

  // Of a network of that configuration; throws ConfigError where its gradients are not those that were
  // traced.
  SimulationReport report(Network& network) const;

 private:
  struct Fit {
    StepTrace trace;
    double bytes_per_second = 0;  // of the link, as it is called; 0: not said
  };
  NodeCores choose_cores(SimulationReport& about) const;
  double choose_pace(const ComputeModel& compute, SimulationReport& about) const;
  // A tier of the cluster, and a line for the person.
  void choose_between_nodes(Cluster& cluster, double pace, SimulationReport& about) const;
  void choose_in_node(Cluster& cluster, SimulationReport& about, bool on_gpu) const;
  ComputeLoss choose_loss(const ComputeModel& compute, SimulationReport& about) const;
  std::vector<MeasuredSum> sums_between_nodes() const;
  std::vector<MeasuredSum> sums_in_node() const;
  void require_same_run(const StepTrace& trace, const std::string& file) const;

  const SimulationFlags& flags_;
  const Config& config_;
  StepTrace device_;
  std::vector<Fit> fits_;
};

}  // namespace lockstep
