// SPDX-License-Identifier: Apache-2.0
//
// The state of the emulated runtime ("books"): devices, streams, events, operations, captures. One lock
// protects all of it. ThreadSanitizer sees neither the lock nor the state (thread_sanitizer.h). The order
// that CUDA guarantees is announced by announce() and follow() on operations, which are called without the
// lock.
#pragma once

#include <chrono>
#include <condition_variable>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <set>
#include <vector>

#include <cuda_runtime_api.h>

#include "tests/cuda_emulator/runtime/runtime.h"
#include "tests/cuda_emulator/thread_sanitizer.h"

namespace lockstep::emulator {

using Clock = std::chrono::steady_clock;

constexpr int kLeastPriority = 0, kGreatestPriority = -5;  // priorities of streams

// An operation of a stream: work, or only a position in the stream's order. Its address represents the order
// that CUDA guarantees: the host announces it when it enqueues the operation, and the running thread when it
// is done.
struct StreamOperation {
  const char* name = "";
  Work work;                                            // empty for a position only
  std::vector<std::shared_ptr<StreamOperation>> after;  // must be done before; cleared when this one is done
  Clock::time_point held_until{};                       // unless a thread waits for it earlier
  bool wanted = false;                                  // a thread waits for it or for a later operation
  bool awaited = false;                                 // a thread waits for it
  bool done = false;
  Clock::time_point ended{};
  char issued = 0;    // address that the host announces
  char finished = 0;  // address that is announced when it is done
};
using StreamOperationPointer = std::shared_ptr<StreamOperation>;

// The last owner frees the operation. It need not be ordered after the thread that ran it.
inline StreamOperationPointer make_operation(const char* name) {
  const auto free = [](StreamOperation* operation) {
    const Unseen unseen;
    delete operation;
  };
  auto* operation = new StreamOperation;
  operation->name = name;
  return {operation, free};
}

struct Node;
struct Capture;

}  // namespace lockstep::emulator

struct CUgraph_st {
  std::vector<std::shared_ptr<lockstep::emulator::Node>> nodes;  // each node comes after its dependencies
};

struct CUevent_st {
  int device = 0;
  unsigned flags = 0;
  lockstep::emulator::StreamOperationPointer last;               // its last record outside captures
  std::weak_ptr<lockstep::emulator::Capture> capture;            // capture of its last record, if captured
  bool captured = false;                                         // the last record was captured
  std::vector<std::shared_ptr<lockstep::emulator::Node>> place;  // its position in the capture
};

struct CUstream_st {
  int device = 0;
  bool blocking = true;  // this stream and the legacy stream wait for each other
  int priority = 0;
  std::minstd_rand random;
  std::condition_variable changed;  // its next operation may begin, or it is destroyed
  std::deque<lockstep::emulator::StreamOperationPointer> waiting;
  lockstep::emulator::StreamOperationPointer last;
  bool destroyed = false;
  std::shared_ptr<lockstep::emulator::Capture> capture;
  std::vector<std::shared_ptr<lockstep::emulator::Node>> tail;  // dependencies of its next node
};

struct CUgraphExec_st {
  std::vector<std::shared_ptr<lockstep::emulator::Node>> nodes;
  lockstep::emulator::StreamOperationPointer last_launch;
  std::uint64_t launches = 0;
};

namespace lockstep::emulator {

// A node of a graph.
struct Node {
  const char* name = "";
  Work work;                    // empty for a position only
  cudaEvent_t event = nullptr;  // recorded here at each launch
  int priority = 0;             // the captured stream's
  const void* chain = nullptr;  // nodes of one chain run in the order of their capture; null: no chain
  std::vector<std::shared_ptr<Node>> after;
};

struct Capture {
  cudaStream_t origin = nullptr;
  cudaStreamCaptureMode mode = cudaStreamCaptureModeGlobal;
  const void* thread = nullptr;  // the thread that began it
  bool invalid = false;
  CUgraph_st graph;
  std::set<cudaStream_t> streams;
  std::map<const void*, std::shared_ptr<Node>> chains;  // the last node of each chain
};

// A block of a device's memory, or of pinned memory (device -1).
struct Allocation {
  std::size_t bytes = 0;
  std::size_t counted_bytes = 0;  // subtracted from the device's free memory
  int device = -1;
};

struct DeviceBooks {
  int contexts = 0;
  unsigned flags = 0;  // set by cudaSetDeviceFlags
  std::size_t used_bytes = 0;
  cudaError_t fault = cudaSuccess;  // sticky
  std::set<cudaStream_t> streams;
  cudaStream_t legacy = nullptr;  // created at its first use
};

struct Books {
  std::mutex mutex;
  std::condition_variable done;  // an awaited operation is done
  std::vector<DeviceBooks> devices;
  std::map<const std::byte*, Allocation> allocations;
  std::set<std::shared_ptr<Capture>> captures;  // active captures
  std::set<cudaEvent_t> events;
  std::uint64_t streams_made = 0;
  int held_back = 0;  // number of HeldBack objects
  std::uint64_t spinning_waits = 0;
  std::uint64_t copied_collectives = 0;
};

Books& books();

// Holds the lock of the books, and hides accesses from ThreadSanitizer.
class BooksLock {
 public:
  BooksLock() : lock_(books().mutex) {}
  std::unique_lock<std::mutex>& get() { return lock_; }

 private:
  Unseen unseen_;
  std::unique_lock<std::mutex> lock_;
};

// The current device of this thread.
int current_device();
// Every call that uses the device calls this first, with its name, or null if a library has already checked
// for injected faults. Creates the current device's context if there is none. Returns the injected fault or
// the fault of the context, and stores it for cudaGetLastError.
cudaError_t enter(const char* function, std::size_t bytes = 0);
// The fault of the device's context.
cudaError_t fault_of(int device);
// An address that identifies the thread.
const void* this_thread();

// With the lock: appends to the stream, after its last operation and, by the rules of the legacy stream,
// after operations of other streams.
void append(cudaStream_t stream, const StreamOperationPointer& operation);
// Returns the stream; for null and cudaStreamLegacy, the current device's legacy stream.
cudaStream_t resolve(cudaStream_t stream);
// Returns whether the stream exists. The stream must be resolved.
bool exists(cudaStream_t stream);
// Blocks until the operations are done, and orders the caller after them.
void wait_for(const std::vector<StreamOperationPointer>& operations);
// Counts a wait that spins unless the device's flags say otherwise.
void count_wait(int device);
// With the lock: the last operations of all streams of the device.
std::vector<StreamOperationPointer> last_of_all(int device);
// Marks the operation as done.
void finish(StreamOperation& operation);
// Runs an operation's work on the device. A fault breaks the device.
void run_work(const Work& work, const char* name, int device);
// Runs a host function. CUDA calls in it return cudaErrorNotPermitted.
void run_host_function(cudaHostFn_t function, void* user_data);

// Like enqueue(), for a checked stream of any device.
cudaError_t give(cudaStream_t stream, const char* name, Work work, const void* chain = nullptr);

// Checks for captures that forbid a call (graph.cpp), which invalidates them. Called without the lock.
// For a call that may synchronise with any work.
cudaError_t allow_unsafe_call();
// For a wait for the stream or a query of it.
cudaError_t allow_wait_for(cudaStream_t stream);
// For a wait for the device.
cudaError_t allow_wait_for_device(int device);
// For work in the stream.
cudaError_t allow_work(cudaStream_t stream);
// With the lock: appends a node after the stream's tail and after the last node of its chain, if it has one.
void append_node(cudaStream_t stream, std::shared_ptr<Node> node, const void* chain = nullptr);
void invalidate(const std::shared_ptr<Capture>& capture);
// With the lock, for a stream that is destroyed: invalidates its capture, and ends it if it began there.
void leave_capture(cudaStream_t stream);

}  // namespace lockstep::emulator
