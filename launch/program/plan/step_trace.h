// SPDX-License-Identifier: Apache-2.0
//
// StepTrace: the part of a run's trace (`lockstep train --trace`) that a plan uses: the time of each phase of
// every step, and the begin and end of the all-reduce of every bucket (its sum). The only reader of that file
// in Lockstep.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "comm/world.h"

namespace lockstep {

// The traced run, as its trace describes it (Timeline::describe).
struct TracedRun {
  std::string network;  // model.name
  std::int64_t batch = 0;
  std::int64_t accumulation = 1;
  int ranks = 1;
  int nodes = 1;
  bool overlap = true;                                   // comm.overlap
  AllReduceWay between_nodes = AllReduceWay::automatic;  // comm.between_nodes
  int threads = 0;     // compute threads of a rank; 0: it uses a GPU, or the trace does not record them
  int node_cores = 0;  // of all ranks of a node together; 0: not recorded
  std::vector<std::size_t> bucket_bytes;  // in the order they leave

  std::size_t gradient_bytes() const;
  int ranks_per_node() const { return (ranks + nodes - 1) / nodes; }
};
std::string to_json(const TracedRun& run);

struct StepTrace {
  // Seconds since the step's last backward began.
  struct Sum {
    double begin = 0;
    double end = 0;
    double met = 0;  // all ranks have joined it; equals begin where the trace does not record it
  };
  struct Step {
    double data = 0;
    double forward = 0;
    double backward = 0;  // of all micro-batches
    double last_backward = 0;
    double exchange = 0;  // exposed communication
    double optimizer = 0;
    double seconds = 0;     // from its begin to that of the next step
    std::vector<Sum> sums;  // by bucket
    // Excludes exposed communication and the time between phases.
    double compute() const { return data + forward + backward + optimizer; }
  };

  TracedRun run;
  bool tells_meetings = false;  // records when all ranks have joined a sum
  std::vector<Step> steps;      // complete ones in order, except the first two, which allocate memory
};

// Reads rank 0 of a Chrome trace. Errors contain `name`. Throws DataError for text that is not a trace of
// `lockstep train`, or has no complete step after the first two.
StepTrace parse_step_trace(std::string_view text, const std::string& name);
// Reads the trace from a file. Throws IoError where the file cannot be read.
StepTrace read_step_trace(const std::filesystem::path& path);

}  // namespace lockstep
