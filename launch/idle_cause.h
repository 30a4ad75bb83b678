// SPDX-License-Identifier: Apache-2.0
//
// IdleCause: why a device was not busy for some steps, the change that is estimated to gain most, and how
// much. A pure function over what the steps' account says.
#pragma once

#include <optional>
#include <string>

#include "core/timeline.h"
#include "launch/communication.h"
#include "launch/step_series.h"

namespace lockstep {

// What can be changed, as it is now.
struct IdleContext {
  bool on_gpu = false;
  bool records_steps = false;  // a GPU's are recorded and replayed (train.cuda_graph)
  int local_ranks = 1;         // of rank 0's node
  int threads = 1;             // of a rank
  int cores = 1;               // that rank 0's node has
  std::int64_t batch = 1;
  std::int64_t accumulation = 1;
  bool decodes = false;  // loaders decode images: records would not have to
  bool preloads = false;
  int loader_threads = 0;  // 0: as many as it takes
};

struct IdleCause {
  std::string cause;              // "data", "communication", "allocation", "small_work"
  double lost_seconds = 0;        // of the line's time
  std::string evidence;           // "the ranks wait 3.2 ms a step for data (41 % of the time)"
  std::string key, value;         // the change, where a setting makes it
  std::string change;             // "data.loader=preload", or what else to do
  double samples_per_second = 0;  // with it, estimated
};

// Of the line's steps: what they lost most by. advice: of the last epoch, on its communication, where there
// was any. Nothing where all of what was not computing is less than a twentieth.
std::optional<IdleCause> find_idle_cause(const StepLine& line, const IdleContext& context,
                                         const std::optional<Advice>& advice);

}  // namespace lockstep
