// SPDX-License-Identifier: Apache-2.0
//
// IdleCause: why a device was idle, or busy and slow, for some steps, the change with the largest estimated
// gain, and that gain. A pure function of the steps' account and of callbacks, which it calls only where the
// answer matters.
#pragma once

#include <functional>
#include <limits>
#include <optional>
#include <string>

#include "launch/observe/account/advice.h"
#include "launch/observe/account/batch_room.h"
#include "launch/observe/account/step_series.h"
#include "launch/observe/monitor/slowed_device.h"
#include "models/compute_roof.h"

namespace lockstep {

// A setting for the width of layers, and its value.
struct WidthSetting {
  std::string key;
  std::int64_t value = 0;
};

// The settings and the machine that a change may concern.
struct IdleContext {
  bool on_gpu = false;
  bool records_steps = false;      // a GPU's steps are recorded and replayed (train.cuda_graph)
  bool times_collectives = false;  // comm.kernel_times, which excludes train.cuda_graph
  bool halves_are_fast = false;    // 16-bit types are fast, and the training does not use them
  int ranks = 1;
  int local_ranks = 1;    // on rank 0's node
  int threads = 1;        // per rank
  int cores = 1;          // available to the ranks on rank 0's node
  int machine_cores = 0;  // all cores of rank 0's node; 0: not known
  std::int64_t batch = 1;
  std::int64_t most_batch =
      std::numeric_limits<std::int64_t>::max();  // per rank, for which the dataset has samples
  std::int64_t accumulation = 1;
  bool decodes = false;      // loaders decode images; packed records need no decoding
  bool draws = false;        // images get other random crops in each epoch; packed pixels hold only one
  bool reads_files = false;  // loaders read files; not for samples that are in memory or computed
  // Images fit in free memory, are the same in each of several epochs, and are not in memory yet.
  bool may_keep = true;
  bool preloads = false;
  int loader_threads = 0;          // 0: automatic
  std::int64_t metrics_every = 0;  // run.metrics_every; 0: no evaluations within epochs
  std::int64_t log_every = 50;
  std::int64_t epoch_steps = std::numeric_limits<std::int64_t>::max();  // the last one ends a line
  // run.checkpoint_every and run.checkpoint_minutes; 0: disabled.
  std::int64_t checkpoint_every = 0;
  double checkpoint_minutes = 0;
  bool may_time_kernels = true;  // kernels.choose = "time" is possible, and not set
  // Called only where the answer matters. Null, or an empty result: not known.
  std::function<std::optional<ComputeRoof>()> roof = {};
  std::function<BatchRoom(std::int64_t batch)> room = {};
  // The setting that gives a layer its channels.
  std::function<std::optional<WidthSetting>(const std::string& layer, std::int64_t channels)> width = {};
  // A device of this node whose clock is throttled at the time of the call.
  std::function<std::optional<SlowedDevice>()> slowed = {};
};

struct IdleCause {
  // "data", "communication", "allocation", "small_work", "memory", "monitoring"; for a device that is busy
  // and slow also "architecture"
  std::string cause;
  double lost_seconds = 0;  // part of the line's time
  std::string evidence;     // "compute waits 3.2 ms per step for data (41 % of the time)"
  std::string key, value;   // the setting to change; empty: none
  // "data.loader=preload"; a command or a flag, such as "start 2 ranks (--ranks 2)"; or "no setting changes
  // this: " and what would
  std::string change;
  double samples_per_second = 0;  // estimated with the change; 0: not known
};

// Returns the cause of the largest loss in the line's steps; nothing if that loss is below a twentieth of the
// time. advice: on the communication of the last epoch, if any.
std::optional<IdleCause> find_idle_cause(const StepLine& line, const IdleContext& context,
                                         const std::optional<Advice>& advice);

// For a line whose steps computed far below the attainable rate: the larger of two losses, work too small to
// fill the device or a network bound by its memory traffic and layer sizes. Returns nothing if no roof is
// known.
std::optional<IdleCause> find_slow_cause(const StepLine& line, const IdleContext& context);

// For a device whose clock was throttled during the line.
IdleCause cause_of(const SlowedDevice& device, const StepLine& line);

}  // namespace lockstep
