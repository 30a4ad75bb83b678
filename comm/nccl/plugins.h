// SPDX-License-Identifier: Apache-2.0
//
// The interfaces by which NCCL calls functions of this process: its tuner and its profiler, both of version
// 5, from NCCL 2.28 on. If NCCL_TUNER_PLUGIN and NCCL_PROFILER_PLUGIN are "STATIC_PLUGIN", NCCL looks up the
// tables ncclTunerPlugin_v5 and ncclProfiler_v5 among the symbols that the program exports. No package has
// NCCL's headers of these interfaces, so the layouts are repeated here (src/include/plugin/ of NCCL 2.28.9).
#pragma once

#include <cstddef>
#include <cstdint>

#include <nccl.h>

namespace lockstep {

inline constexpr int kHasPlugins = 22803;  // the first NCCL that has these versions
inline constexpr const char* kTunerVariable = "NCCL_TUNER_PLUGIN";
inline constexpr const char* kProfilerVariable = "NCCL_PROFILER_PLUGIN";
inline constexpr const char* kPluginOfProgram = "STATIC_PLUGIN";

using NcclLogger = void (*)(int level, unsigned long flags, const char* file, int line, const char* format,
                            ...);

struct NcclTuner {
  const char* name;
  // For each communicator, when it is made.
  ncclResult_t (*init)(void** context, std::uint64_t communicator, std::size_t ranks, std::size_t nodes,
                       NcclLogger logger, void* domains, void* constants);
  // For each collective, on the thread that enqueues it; not for kernels on symmetric windows and for copy
  // engines. *channels is 0; a value above 0 replaces NCCL's number of thread blocks.
  ncclResult_t (*choose)(void* context, int function, std::size_t bytes, int operations, float** costs,
                         int algorithms, int protocols, int registered, int* channels);
  ncclResult_t (*finalize)(void* context);
};

// Types of events, as bits of a mask.
inline constexpr int kNcclCollective = 1 << 1;
inline constexpr int kNcclKernelChannel = 1 << 6;  // one thread block of a collective's kernel
inline constexpr int kNcclKernelChannelStop = 22;  // a state

struct NcclEvent {
  std::uint64_t type;
  void* parent;  // the handle of the event that contains it
  int rank;
  union {
    struct {
      std::uint64_t number;
      const char* function;  // such as "AllReduce"
      const void* send;
      void* recv;
      std::size_t count;
      int root;
      const char* type;
      std::uint8_t channels;
      std::uint8_t warps;
      const char* algorithm;
      const char* protocol;
      void* group;
    } collective;
    struct {
      std::uint8_t channel;
      std::uint64_t begin_ns;  // the device's global timer
    } kernel;
  };
};

union NcclEventState {
  struct {
    std::uint64_t end_ns;
  } kernel;
};

struct NcclProfiler {
  const char* name;
  // For each communicator, when it is made. *events: the mask of the events to report.
  ncclResult_t (*init)(void** context, std::uint64_t communicator, int* events, const char* communicator_name,
                       int nodes, int ranks, int rank, NcclLogger logger);
  // *handle = null: the event is not wanted.
  ncclResult_t (*start)(void* context, void** handle, NcclEvent* event);
  ncclResult_t (*stop)(void* handle);
  ncclResult_t (*record)(void* handle, int state, NcclEventState* values);
  ncclResult_t (*finalize)(void* context);
};

}  // namespace lockstep

extern "C" {
extern const lockstep::NcclTuner ncclTunerPlugin_v5;
extern const lockstep::NcclProfiler ncclProfiler_v5;
}
