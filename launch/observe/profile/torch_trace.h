// SPDX-License-Identifier: Apache-2.0
//
// A rank's profile as a file for tools of PyTorch's profiler: Chrome's Trace Event Format with the names that
// TensorBoard's torch-tb-profiler and HolisticTraceAnalysis expect. If they expect a fixed name for an
// operation that Lockstep does differently, that name is written and the arguments explain it:
//
// - ProfilerStep#N is step N of the training, from 1;
// - on a CPU the all-reduce of a bucket is gloo:all_reduce, the only CPU collective that torch-tb-profiler
//   counts;
// - on a GPU the device's transitions between phases, buckets and layers are known, and no single kernels:
//   forward, backward and optimizer are kernels of one stream, the all-reduces of buckets, named
//   ncclKernel_AllReduce, kernels of another, and layers operators of a separate thread. One launch
//   represents the host's work before each step, as HolisticTraceAnalysis assigns kernels to steps by their
//   launch.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "comm/gradients/buckets.h"
#include "core/device.h"
#include "core/timeline.h"
#include "launch/observe/profile/layer_facts.h"

namespace lockstep {

// Facts about the rank in its files.
struct TraceHead {
  std::string host;
  int process = 0;
  int rank = 0;
  int ranks = 1;
  Device device;
  std::vector<CudaDevice> devices = {};  // all devices of the node
  std::string optimizer = "sgd";
  std::vector<Bucket> buckets = {};
  std::size_t parameter_bytes = 0, gradient_bytes = 0;
  std::int64_t base_unix_ns = 0;  // zero of the events' clock
};

// One run of a layer, on the host's clock.
struct LayerRun {
  std::uint32_t node = 0;
  Direction direction = Direction::forward;
  std::int64_t begin_ns = 0;
  std::int64_t end_ns = 0;
};

// Returns the JSON. layers: runs in order of time, in whole steps. dropped: layer runs that were not kept.
std::string torch_trace(const TraceHead& head, const Timeline& timeline, std::span<const LayerRun> layers,
                        std::size_t dropped, const LayerFacts& facts, const TraceClock& clock);

// HOST_RANK.TIME.pt.trace.json. Ranks are zero-padded so that names sort.
std::string torch_trace_name(const TraceHead& head, std::int64_t unix_ns);

}  // namespace lockstep
