// SPDX-License-Identifier: Apache-2.0
//
// The emulated runtime's own books: devices, streams, events, operations, captures. One lock guards them all,
// and ThreadSanitizer sees neither the lock nor the books (thread_sanitizer.h): it is told what CUDA orders,
// by announce() and follow() on operations, which are called without the lock.
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

constexpr int kLeastPriority = 0, kGreatestPriority = -5;  // of streams

// What a stream has to do: its work, or a place in its order. Its address stands for the order that CUDA
// promises: the host announces it when it enqueues, whoever runs it when it is done.
struct StreamOperation {
  const char* name = "";
  Work work;                                            // none: a place only
  std::vector<std::shared_ptr<StreamOperation>> after;  // must be done before; emptied when this one is done
  Clock::time_point held_until{};                       // unless somebody waits for it earlier
  bool wanted = false;                                  // somebody waits for it, or for what comes after it
  bool done = false;
  Clock::time_point ended{};
  char issued = 0;    // address that the host announces
  char finished = 0;  // address that is announced when it is done
};
using StreamOperationPointer = std::shared_ptr<StreamOperation>;

// Whoever lets go of it last frees it, and need not come after whoever ran it.
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
  std::vector<std::shared_ptr<lockstep::emulator::Node>> nodes;  // each behind all that it depends on
};

struct CUevent_st {
  int device = 0;
  unsigned flags = 0;
  lockstep::emulator::StreamOperationPointer last;               // of its last record outside of captures
  std::weak_ptr<lockstep::emulator::Capture> capture;            // where it was recorded last, if in one
  bool captured = false;                                         // it was
  std::vector<std::shared_ptr<lockstep::emulator::Node>> place;  // what it stands for there
};

struct CUstream_st {
  int device = 0;
  bool blocking = true;  // waits for the legacy stream, and that stream for it
  int priority = 0;
  std::minstd_rand random;
  std::deque<lockstep::emulator::StreamOperationPointer> waiting;
  lockstep::emulator::StreamOperationPointer last;
  bool destroyed = false;
  std::shared_ptr<lockstep::emulator::Capture> capture;
  std::vector<std::shared_ptr<lockstep::emulator::Node>> tail;  // what its next node comes after
};

struct CUgraphExec_st {
  std::vector<std::shared_ptr<lockstep::emulator::Node>> nodes;
  lockstep::emulator::StreamOperationPointer last_launch;
  std::uint64_t launches = 0;
};

namespace lockstep::emulator {

// Of a graph.
struct Node {
  const char* name = "";
  Work work;                    // none: a place only
  cudaEvent_t event = nullptr;  // recorded here at each launch
  int priority = 0;             // the captured stream's
  const void* chain = nullptr;  // of nodes that run in the order of their capture; null: of none
  std::vector<std::shared_ptr<Node>> after;
};

struct Capture {
  cudaStream_t origin = nullptr;
  cudaStreamCaptureMode mode = cudaStreamCaptureModeGlobal;
  const void* thread = nullptr;  // that began it
  bool invalid = false;
  CUgraph_st graph;
  std::set<cudaStream_t> streams;
  std::map<const void*, std::shared_ptr<Node>> chains;  // the last node of each
};

// A part of a device's memory, or of pinned memory (device -1).
struct Allocation {
  std::size_t bytes = 0;
  std::size_t counted_bytes = 0;  // of the device's memory
  int device = -1;
};

struct DeviceBooks {
  int contexts = 0;
  unsigned flags = 0;  // of cudaSetDeviceFlags
  std::size_t used_bytes = 0;
  cudaError_t fault = cudaSuccess;  // sticky
  std::set<cudaStream_t> streams;
  cudaStream_t legacy = nullptr;  // made when it is used first
};

struct Books {
  std::mutex mutex;
  std::condition_variable changed;  // an operation is done, or wanted, or no longer held back
  std::vector<DeviceBooks> devices;
  std::map<const std::byte*, Allocation> allocations;
  std::set<std::shared_ptr<Capture>> captures;  // that have begun and not ended
  std::set<cudaEvent_t> events;
  std::uint64_t streams_made = 0;
  int held_back = 0;  // how many HeldBack live
  std::uint64_t spinning_waits = 0;
};

Books& books();

// While it lives, the books are this thread's and ThreadSanitizer sees nothing.
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
// What every call that touches the device does first (with its name, or null where a library has looked for
// faults already): makes the current device's context where it has none yet, and answers the fault that was
// injected or that the context carries. Remembers it for cudaGetLastError.
cudaError_t enter(const char* function, std::size_t bytes = 0);
// What the device's context has failed with.
cudaError_t fault_of(int device);
// Remembers it for cudaGetLastError.
cudaError_t answer(cudaError_t status);
// An address that stands for it.
const void* this_thread();

// With the books: appends to the stream, behind its last operation and, as the legacy stream's rules ask,
// others'.
void append(cudaStream_t stream, const StreamOperationPointer& operation);
// The current device's legacy stream for null and cudaStreamLegacy.
cudaStream_t resolve(cudaStream_t stream);
// Whether there is such a stream; the legacy stream's name must be resolved.
bool exists(cudaStream_t stream);
// Blocks until they are done; the caller then comes after them.
void wait_for(const std::vector<StreamOperationPointer>& operations);
// Counts a wait that spins unless the device's flags say otherwise.
void count_wait(int device);
// With the books: the last operations of all streams of the device.
std::vector<StreamOperationPointer> last_of_all(int device);
// Marks it as done, when whoever ran it is done with it.
void finish(StreamOperation& operation);
// Runs an operation's work as an operation of the device; a fault becomes the device's.
void run_work(const Work& work, const char* name, int device);
// Calls of CUDA from within answer cudaErrorNotPermitted.
void run_host_function(cudaHostFn_t function, void* user_data);

// As enqueue(), for a stream that was checked, of whatever device.
cudaError_t give(cudaStream_t stream, const char* name, Work work, const void* chain = nullptr);

// What captures forbid (graph.cpp); they are invalid afterwards. Without the books.
// A call that may synchronise with anything.
cudaError_t allow_unsafe_call();
// To wait for the stream, or ask how far it is.
cudaError_t allow_wait_for(cudaStream_t stream);
// To give the stream work.
cudaError_t allow_work(cudaStream_t stream);
// With the books: a node behind the stream's tail, and behind the last of its chain, if it is of one.
void append_node(cudaStream_t stream, std::shared_ptr<Node> node, const void* chain = nullptr);
void invalidate(const std::shared_ptr<Capture>& capture);

}  // namespace lockstep::emulator
