// SPDX-License-Identifier: Apache-2.0
//
// A rank's profile as a file that tools for PyTorch's profiler open: Chrome's Trace Event Format with the
// names that TensorBoard's torch-tb-profiler and HolisticTraceAnalysis look for. Where they know a single
// name for what we do in our own way, that name is written and the arguments say what it is:
//
// - ProfilerStep#N is step N of the training, from 1;
// - on a CPU a bucket's sum is gloo:all_reduce, the only collective of CPUs that torch-tb-profiler counts;
// - on a GPU steps are replayed as a whole, and what is known is when the device passed from phase to phase
//   and from bucket to bucket: forward, backward and optimizer are written as kernels of one stream, and the
//   buckets' sums, as ncclKernel_AllReduce, as kernels of another. A launch stands for what the host did
//   before each step, as HolisticTraceAnalysis assigns kernels to steps by what launched them.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "comm/buckets.h"
#include "core/device.h"
#include "core/timeline.h"
#include "launch/profile/layer_facts.h"

namespace lockstep {

// What the files of a rank say of it.
struct TraceHead {
  std::string host;
  int process = 0;
  int rank = 0;
  int ranks = 1;
  Device device;
  std::vector<CudaDevice> devices = {};  // of the node
  std::string optimizer = "sgd";
  std::vector<Bucket> buckets = {};
  std::size_t parameter_bytes = 0, gradient_bytes = 0;
  std::int64_t base_unix_ns = 0;  // where the clock of events begins
};

// What ran of a layer, by the host's clock.
struct LayerRun {
  std::uint32_t node = 0;
  Direction direction = Direction::forward;
  std::int64_t begin_ns = 0;
  std::int64_t end_ns = 0;
};

// The JSON. Layers ran one after another, in whole steps. dropped: runs that had no room.
std::string torch_trace(const TraceHead& head, const Timeline& timeline, std::span<const LayerRun> layers,
                        std::size_t dropped, const LayerFacts& facts, const TraceClock& clock);

// HOST_RANK.TIME.pt.trace.json, ranks with as many digits as the last one has, so that names sort.
std::string torch_trace_name(const TraceHead& head, std::int64_t unix_ns);

}  // namespace lockstep
