// SPDX-License-Identifier: Apache-2.0
//
// What the emulated libraries (NCCL, cuDNN, cuBLASLt, the launch of kernels) need of the emulated runtime:
// the machine that is pretended, work on streams, whose memory a pointer is, and faults that were asked for.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <stdexcept>
#include <vector>

#include <cuda_runtime_api.h>

namespace lockstep::emulator {

// Access of host code to device memory. `pages`: denied by the protection of pages, even where the processor
// has protection keys.
enum class HostAccess { denied, pages, allowed };

// From the environment, read once.
struct Machine {
  int devices = 8;                                  // LOCKSTEP_EMULATED_GPUS, less what is not visible
  std::vector<int> places = {};                     // of them on the machine: CUDA_VISIBLE_DEVICES
  std::size_t memory_bytes = std::size_t{2} << 30;  // of each device: LOCKSTEP_EMULATED_MEMORY=512MiB
  std::size_t context_bytes = 0;                    // that a context takes: LOCKSTEP_EMULATED_CONTEXT
  HostAccess host_access = HostAccess::denied;      // LOCKSTEP_EMULATED_HOST_ACCESS
  int multiprocessors = 4;                          // of each: LOCKSTEP_EMULATED_MULTIPROCESSORS
  std::size_t resident_blocks = 16;                 // on each of those: LOCKSTEP_EMULATED_RESIDENT
  std::uint64_t seed = 0;                           // LOCKSTEP_EMULATED_SEED
  std::chrono::microseconds delay{0};  // LOCKSTEP_EMULATED_DELAY=200us: the longest before an operation
  int plan_failures = 0;               // percent of cuDNN's plans: LOCKSTEP_EMULATED_PLAN_FAILURES
  bool graphs_empty = false;           // launches of graphs do nothing: LOCKSTEP_EMULATED_GRAPHS=empty
  bool pageable_late = false;  // copies touch pageable memory when they run: LOCKSTEP_EMULATED_PAGEABLE=late
};
const Machine& machine();

// The status that a call of an API's function must return at once, 0 for none: LOCKSTEP_EMULATED_FAULTS names
// functions, calls and statuses ("cudaMalloc:3=2,ncclAllReduce:7=1": the third cudaMalloc of this process
// returns 2). Counts the call. Every emulated function of a library calls it first.
int injected_fault(const char* function);

// Work ends the device: its context answers cudaErrorLaunchFailure from now on, as after a fault in a kernel.
struct DeviceFault : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// The latest order that CUDA allows. While one lives, an operation begins only when somebody waits for it or
// for what comes after it, and copies touch pageable memory when they run: whoever does not wait surely finds
// it undone. Nobody may poll for the end of anything meanwhile (cudaEventQuery).
class HeldBack {
 public:
  HeldBack();
  ~HeldBack();
  HeldBack(const HeldBack&) = delete;
  HeldBack& operator=(const HeldBack&) = delete;
};

// On a thread of the runtime, in its stream's order. May block (a collective that waits for its peers).
using Work = std::function<void()>;

// Gives work to a stream; while the stream is captured, adds a node to its graph, whose work runs at each
// launch. The name is for messages and must outlive the process ("cudnnBackendExecute"). Returns what the
// API's call returns. In a graph, work of one chain (any address, of what has an order of its own) comes
// after the chain's work before it, on whatever streams they are: edges that a library adds while it is
// captured.
cudaError_t enqueue(cudaStream_t stream, const char* name, Work work, const void* chain = nullptr);

// The device's number on the machine, of which CUDA_VISIBLE_DEVICES may hide some.
int place_of(int device);

// As cudaMalloc; the device's free memory shrinks by whole multiples of the granularity.
cudaError_t allocate(void** data, std::size_t bytes, std::size_t granularity);

// Device memory that a library allocates internally: it counts as used and has no address.
class LibraryMemory {
 public:
  explicit LibraryMemory(int device) : device_(device) {}
  ~LibraryMemory();
  LibraryMemory(const LibraryMemory&) = delete;
  LibraryMemory& operator=(const LibraryMemory&) = delete;

  // As a cudaMalloc in the library: refused when memory runs out, and where a capture forbids it. The size is
  // this share of a context's.
  cudaError_t grow(double share_of_context);

 private:
  int device_;
  std::size_t bytes_ = 0;
};

// From work: runs a kernel of `blocks` blocks once the device has room for one (residence.h).
void run_resident(int device, std::size_t blocks, const char* name, const std::function<void()>& kernel);
// Number of blocks that the device holds now.
std::size_t resident_blocks(int device);

// Whether work given to the stream now would go into a graph.
bool is_captured(cudaStream_t stream);
// The stream's device.
int device_of(cudaStream_t stream);
// Whether all these bytes are one allocation's of the device.
bool is_device_memory(const void* data, std::size_t bytes, int device);
// Of this process on the device: 1 once anything needed it there.
int contexts(int device);
// Bytes that memsets of this process have written; asked from work, by what the device has done before it.
std::uint64_t filled_bytes();
// Of this process: waits for streams, events and devices that keep a core busy on a GPU, whether they take
// long or not.
std::uint64_t spinning_waits();

}  // namespace lockstep::emulator
