// SPDX-License-Identifier: Apache-2.0
//
// The interface of the emulated runtime for the emulated libraries (NCCL, cuDNN, cuBLASLt, the launch of
// kernels): the emulated machine, work in streams, the owner of memory, and injected faults.
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

// Access of host code to device memory. `pages`: denied by page protection, even if the processor has
// protection keys.
enum class HostAccess { denied, pages, allowed };

// The emulated machine. It is read from the environment once.
struct Machine {
  int devices = 8;                                  // LOCKSTEP_EMULATED_GPUS, without invisible devices
  std::vector<int> places = {};                     // their indices on the machine: CUDA_VISIBLE_DEVICES
  std::size_t memory_bytes = std::size_t{2} << 30;  // of each device: LOCKSTEP_EMULATED_MEMORY=512MiB
  std::size_t context_bytes = 0;                    // memory of a context: LOCKSTEP_EMULATED_CONTEXT
  HostAccess host_access = HostAccess::denied;      // LOCKSTEP_EMULATED_HOST_ACCESS
  int capability = 90;                              // compute capability: LOCKSTEP_EMULATED_CAPABILITY=75
  int multiprocessors = 4;                          // per device: LOCKSTEP_EMULATED_MULTIPROCESSORS
  std::size_t resident_blocks = 16;                 // per multiprocessor: LOCKSTEP_EMULATED_RESIDENT
  std::uint64_t seed = 0;                           // LOCKSTEP_EMULATED_SEED
  std::chrono::microseconds delay{0};  // longest delay of an operation: LOCKSTEP_EMULATED_DELAY=200us
  int plan_failures = 0;               // percent of failing cuDNN plans: LOCKSTEP_EMULATED_PLAN_FAILURES
  bool graphs_empty = false;           // launches of graphs do nothing: LOCKSTEP_EMULATED_GRAPHS=empty
  bool pageable_late = false;  // copies access pageable memory when they run: LOCKSTEP_EMULATED_PAGEABLE=late
};
const Machine& machine();

// Counts a call of an API function, and returns the status that the call must return at once; 0 for no fault.
// LOCKSTEP_EMULATED_FAULTS contains functions, calls and statuses ("cudaMalloc:3=2,ncclAllReduce:7=1": the
// third cudaMalloc of this process returns 2). Every emulated function of a library calls this first.
int injected_fault(const char* function);

// Stores an error for cudaGetLastError, and returns the status.
cudaError_t answer(cudaError_t status);

// Thrown by work to break the device: its context returns cudaErrorLaunchFailure from then on, as after a
// fault in a kernel.
struct DeviceFault : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// The latest order that CUDA allows. While an object lives, an operation begins only when a thread waits for
// it or for a later operation, and copies access pageable memory when they run. Code that forgets to wait
// always sees the work undone. Threads must not poll for the end of work meanwhile (cudaEventQuery).
class HeldBack {
 public:
  HeldBack();
  ~HeldBack();
  HeldBack(const HeldBack&) = delete;
  HeldBack& operator=(const HeldBack&) = delete;
};

// Work runs on a thread of the runtime, in the order of its stream. It may block, as a collective that waits
// for its peers.
using Work = std::function<void()>;

// Enqueues work in a stream. While the stream is captured, adds a node to its graph instead, whose work runs
// at each launch. The name ("cudnnBackendExecute") is for messages and must be valid until the process ends.
// Returns the status of the API call. In a graph, work of one chain (any address that identifies an ordered
// sequence) runs after earlier work of the chain, in any stream: the edges that a library adds during a
// capture.
cudaError_t enqueue(cudaStream_t stream, const char* name, Work work, const void* chain = nullptr);

// The device's index on the machine, of whose devices CUDA_VISIBLE_DEVICES may hide some.
int place_of(int device);

// Like cudaMalloc; the device's free memory decreases by a multiple of the granularity.
cudaError_t allocate(void** data, std::size_t bytes, std::size_t granularity);
// Like cudaFree, but does not wait for work that uses the memory, as cuMemUnmap.
cudaError_t unmap(void* data);

// Device memory that a library allocates internally. It counts as used but has no address.
class LibraryMemory {
 public:
  explicit LibraryMemory(int device) : device_(device) {}
  ~LibraryMemory();
  LibraryMemory(const LibraryMemory&) = delete;
  LibraryMemory& operator=(const LibraryMemory&) = delete;

  // Like a cudaMalloc in the library: fails if memory runs out or a capture forbids it. The size is this
  // share of a context's memory.
  cudaError_t grow(double share_of_context);

 private:
  int device_;
  std::size_t bytes_ = 0;
};

// Called by work: runs a kernel of `blocks` blocks when the device has space for one block (residence.h).
void run_resident(int device, std::size_t blocks, const char* name, const std::function<void()>& kernel);
// Number of blocks that the device holds now.
std::size_t resident_blocks(int device);

// Returns whether the stream is captured, so that work becomes a node of a graph.
bool is_captured(cudaStream_t stream);
// The stream's device.
int device_of(cudaStream_t stream);
// Returns whether all these bytes belong to one allocation of the device.
bool is_device_memory(const void* data, std::size_t bytes, int device);
// The number of contexts of this process on the device: 1 after the first use, otherwise 0.
int contexts(int device);
// Bytes that memsets of this process have written. Called by work: includes the device's earlier work.
std::uint64_t filled_bytes();
// The number of waits of this process for streams, events and devices that would keep a core busy with a real
// GPU, however short they are.
std::uint64_t spinning_waits();
// Counts, for the report, a collective that copy engines run.
void count_copied_collective();

}  // namespace lockstep::emulator
