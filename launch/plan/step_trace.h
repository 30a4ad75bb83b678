// SPDX-License-Identifier: Apache-2.0
//
// StepTrace: what a plan reads out of the trace of a run (`lockstep train --trace`): for every step where its
// time went, and for every bucket when its sum began and ended. The one reader of that file in Lockstep.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "comm/world.h"

namespace lockstep {

// The run, as a trace says it (Timeline::describe).
struct TracedRun {
  std::string network;  // model.name
  std::int64_t batch = 0;
  std::int64_t accumulation = 1;
  int ranks = 1;
  int nodes = 1;
  bool overlap = true;                                   // comm.overlap
  AllReduceWay between_nodes = AllReduceWay::automatic;  // comm.between_nodes
  int threads = 0;     // that a rank computes with; 0: a device of its own does, or the trace does not tell
  int node_cores = 0;  // that all ranks of a node have
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
    double met = 0;  // all ranks had begun it; begin where the trace does not tell
  };
  struct Step {
    double data = 0;
    double forward = 0;
    double backward = 0;  // of all micro-batches
    double last_backward = 0;
    double exchange = 0;  // exposed communication
    double optimizer = 0;
    double seconds = 0;     // from its beginning to the next one's
    std::vector<Sum> sums;  // by bucket
    // What it took without any communication that was not hidden.
    double compute() const { return data + forward + backward + optimizer; }
  };

  TracedRun run;
  bool tells_meetings = false;  // when all ranks were in a sum
  std::vector<Step> steps;  // complete ones, in order, without the first two, in which memory is allocated
};

// Of the Chrome trace's rank 0. `name` is said in errors. Throws DataError for what is no trace of
// `lockstep train`, or has no complete step after the first two.
StepTrace parse_step_trace(std::string_view text, const std::string& name);
// The same of a file; throws IoError where it cannot be read.
StepTrace read_step_trace(const std::filesystem::path& path);

}  // namespace lockstep
