// SPDX-License-Identifier: Apache-2.0
//
// IdleCause: why a device was not busy for some steps, or busy and slow, the change that is estimated to gain
// most, and how much. A pure function over what the steps' account says, and what is asked for where it
// decides something.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "core/timeline.h"
#include "launch/account/communication.h"
#include "launch/account/step_series.h"
#include "launch/devices/memory_need.h"
#include "launch/monitor/slowed_device.h"
#include "models/compute_roof.h"

namespace lockstep {

// What can be changed, as it is now.
struct IdleContext {
  bool on_gpu = false;
  bool records_steps = false;    // a GPU's are recorded and replayed (train.cuda_graph)
  bool halves_are_fast = false;  // and the precision is not one of them
  int ranks = 1;
  int local_ranks = 1;    // of rank 0's node
  int threads = 1;        // of a rank
  int cores = 1;          // that the ranks of rank 0's node may use
  int machine_cores = 0;  // that it has; 0: not known
  std::int64_t batch = 1;
  std::int64_t accumulation = 1;
  bool decodes = false;  // loaders decode images: records would not have to
  bool preloads = false;
  int loader_threads = 0;          // 0: as many as it takes
  std::int64_t metrics_every = 0;  // run.metrics_every; 0: evaluations lie between epochs
  std::int64_t log_every = 50;
  // Asked when it matters. Null, or nothing: not known.
  std::function<std::optional<ComputeRoof>()> roof = {};
  std::function<BatchRoom(std::int64_t batch)> room = {};
  // Of this node, at this moment.
  std::function<std::optional<SlowedDevice>()> slowed = {};
};

struct IdleCause {
  // "data", "communication", "allocation", "small_work", "memory", "monitoring"; of a device that is busy and
  // slow also "architecture"
  std::string cause;
  double lost_seconds = 0;        // of the line's time
  std::string evidence;           // "the ranks wait 3.2 ms a step for data (41 % of the time)"
  std::string key, value;         // the change, where a setting makes it
  std::string change;             // "data.loader=preload", or what else to do
  double samples_per_second = 0;  // with it, estimated; 0: not known
};

// Of the line's steps: what they lost most by. advice: of the last epoch, on its communication, where there
// was any. Nothing where all of what was not computing is less than a twentieth.
std::optional<IdleCause> find_idle_cause(const StepLine& line, const IdleContext& context,
                                         const std::optional<Advice>& advice);

// Of a line whose steps computed, but far from what is attainable: what computing lost most by, work that is
// too small to fill the device or a network that its memory bounds. Nothing where no roof is known.
std::optional<IdleCause> find_slow_cause(const StepLine& line, const IdleContext& context);

// Of a device whose clock was held down meanwhile.
IdleCause cause_of(const SlowedDevice& device, const StepLine& line);

}  // namespace lockstep
