// SPDX-License-Identifier: Apache-2.0
//
// Capture and graphs. A captured stream runs nothing: enqueued work becomes nodes after the stream's tail,
// and events extend the capture to other streams. A launch is one operation of its stream. Within it, two
// threads run the nodes in an order that respects the dependencies and differs from launch to launch.
#include <algorithm>
#include <cstdio>
#include <map>
#include <thread>

#include "tests/cuda_emulator/runtime/books.h"
#include "tests/cuda_emulator/runtime/device_memory.h"

namespace lockstep::emulator {
namespace {

// With the lock: returns whether the capture forbids unsafe calls of this thread.
bool forbids(const Capture& capture) {
  if (capture.mode == cudaStreamCaptureModeRelaxed) return false;
  return capture.thread == this_thread() || capture.mode == cudaStreamCaptureModeGlobal;
}

// With the lock: these nodes and all nodes that they depend on.
std::set<const Node*> with_all_before(const std::vector<std::shared_ptr<Node>>& nodes) {
  std::set<const Node*> all;
  std::vector<const Node*> found;
  for (const auto& node : nodes) found.push_back(node.get());
  while (!found.empty()) {
    const Node* node = found.back();
    found.pop_back();
    if (!all.insert(node).second) continue;
    for (const auto& before : node->after) found.push_back(before.get());
  }
  return all;
}

// With the lock: returns whether the tail of the capture's first stream depends on all of the capture's
// nodes.
bool joined(const Capture& capture) {
  const std::set<const Node*> reached = with_all_before(capture.origin->tail);
  return std::ranges::all_of(capture.graph.nodes,
                             [&](const auto& node) { return reached.contains(node.get()); });
}

// With the lock.
void leave(const std::shared_ptr<Capture>& capture) {
  for (const cudaStream_t stream : capture->streams) {
    stream->capture = nullptr;
    stream->tail.clear();
  }
  books().captures.erase(capture);
}

// One launch of a graph: the nodes that have run and those that may run.
class Replay {
 public:
  Replay(std::vector<std::shared_ptr<Node>> nodes, std::map<const Node*, StreamOperationPointer> records,
         StreamOperationPointer launch, int device, std::uint64_t seed)
      : nodes_(std::move(nodes)), records_(std::move(records)), launch_(std::move(launch)), device_(device) {
    random_.seed(static_cast<std::minstd_rand::result_type>(seed + 1));
    for (const std::shared_ptr<Node>& node : nodes_) state_.try_emplace(node.get());
  }

  // Called on the thread of the launch. Returns when all nodes have run.
  void run() {
    const HostCode between_nodes;  // nodes are device work, except for host functions
    std::thread second([this] { serve(); });
    serve();
    second.join();
    for (std::thread& thread : apart_) thread.join();
    for (auto& [node, state] : state_) follow(&state.finished);
  }

 private:
  struct State {
    bool begun = false;
    bool done = false;
    char finished = 0;
  };

  void serve() {
    while (const Node* node = next()) {
#if defined(__SANITIZE_THREAD__)
      run_apart(*node);
#else
      run(*node);
#endif
    }
  }

#if defined(__SANITIZE_THREAD__)
  // Nodes on one thread would be ordered, so each node gets its own thread.
  void run_apart(const Node& node) {
    std::thread thread([this, &node] { run(node); });
    const Unseen unseen;
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return state_[&node].done; });
    apart_.push_back(std::move(thread));
  }
#endif

  // Waits for a node that may run, and returns it; null if all nodes have begun.
  const Node* next() {
    const Unseen unseen;
    std::unique_lock lock(mutex_);
    while (true) {
      std::vector<const Node*> ready;
      bool left = false;
      for (const auto& node : nodes_) {
        if (state_[node.get()].begun) continue;
        left = true;
        if (std::ranges::all_of(node->after, [&](const auto& before) { return state_[before.get()].done; }))
          ready.push_back(node.get());
      }
      if (!ready.empty()) {
        const Node* node = ready[random_() % ready.size()];
        state_[node].begun = true;
        return node;
      }
      if (!left) return nullptr;
      changed_.wait(lock);
    }
  }

  void run(const Node& node) {
    follow(&launch_->issued);
    for (const StreamOperationPointer& before : launch_->after) follow(&before->finished);
    for (const auto& before : node.after) follow(&state_.at(before.get()).finished);
    run_work(node.work, node.name, device_);
    const auto record = records_.find(&node);
    if (record != records_.end()) {
      announce(&record->second->finished);
      finish(*record->second);
    }
    State& state = state_.at(&node);
    announce(&state.finished);
    const Unseen unseen;
    const std::lock_guard lock(mutex_);
    state.done = true;
    changed_.notify_all();
  }

  std::vector<std::shared_ptr<Node>> nodes_;
  std::map<const Node*, StreamOperationPointer> records_;
  StreamOperationPointer launch_;
  int device_;
  std::minstd_rand random_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<const Node*, State> state_;
  std::vector<std::thread> apart_;
};

// True if the graph has work of streams with different priorities.
bool has_priorities(const CUgraph_st& graph) {
  std::set<int> found;
  for (const auto& node : graph.nodes) {
    if (node->work) found.insert(node->priority);
  }
  return found.size() > 1;
}

// True if nodes of different chains, which are collectives of several NCCL communicators, may run
// concurrently. Their blocks wait for peers: if a device has space for only one of them, two ranks may start
// different ones and wait for each other forever.
bool may_deadlock(const CUgraph_st& graph) {
  const Node* last = nullptr;
  for (const auto& node : graph.nodes) {
    if (node->chain == nullptr) continue;
    if (last != nullptr && last->chain != node->chain && !with_all_before({node}).contains(last)) return true;
    last = node.get();
  }
  return false;
}

cudaError_t refuse_graph(const char* reason) {
  std::fprintf(stderr, "emulated GPU: cudaGraphInstantiate: %s\n", reason);
  return answer(cudaErrorInvalidValue);
}

// With the lock: sets the positions of events that the graph records to this launch.
std::map<const Node*, StreamOperationPointer> record_events(const CUgraphExec_st& executable) {
  std::map<const Node*, StreamOperationPointer> records;
  for (const auto& node : executable.nodes) {
    if (node->event == nullptr || !books().events.contains(node->event)) continue;
    auto place = make_operation(node->name);
    node->event->captured = false;
    node->event->last = place;
    records.emplace(node.get(), std::move(place));
  }
  return records;
}

}  // namespace

void invalidate(const std::shared_ptr<Capture>& capture) { capture->invalid = true; }

void leave_capture(cudaStream_t stream) {
  const std::shared_ptr<Capture> capture = stream->capture;
  if (capture == nullptr) return;
  invalidate(capture);
  if (capture->origin == stream) return leave(capture);
  capture->streams.erase(stream);
  stream->capture = nullptr;
  stream->tail.clear();
}

void append_node(cudaStream_t stream, std::shared_ptr<Node> node, const void* chain) {
  node->after = stream->tail;
  node->priority = stream->priority;
  node->chain = chain;
  if (chain != nullptr) {
    std::shared_ptr<Node>& last = stream->capture->chains[chain];
    if (last != nullptr) node->after.push_back(last);
    last = node;
  }
  stream->capture->graph.nodes.push_back(node);
  stream->tail = {std::move(node)};
}

cudaError_t allow_unsafe_call() {
  const BooksLock lock;
  bool allowed = true;
  for (const auto& capture : books().captures) {
    if (!forbids(*capture)) continue;
    invalidate(capture);
    allowed = false;
  }
  return allowed ? cudaSuccess : cudaErrorStreamCaptureUnsupported;
}

cudaError_t allow_wait_for(cudaStream_t stream) {
  {
    const BooksLock lock;
    if (stream->capture != nullptr) {
      invalidate(stream->capture);
      return cudaErrorStreamCaptureUnsupported;
    }
  }
  return allow_unsafe_call();
}

cudaError_t allow_wait_for_device(int device) {
  {
    const BooksLock lock;
    bool captured = false;
    for (const auto& capture : books().captures) {
      if (std::ranges::none_of(capture->streams, [&](cudaStream_t each) { return each->device == device; }))
        continue;
      invalidate(capture);
      captured = true;
    }
    if (captured) return cudaErrorStreamCaptureUnsupported;
  }
  return allow_unsafe_call();
}

cudaError_t allow_work(cudaStream_t stream) {
  const BooksLock lock;
  if (stream->capture != nullptr)
    return stream->capture->invalid ? cudaErrorStreamCaptureInvalidated : cudaSuccess;
  if (stream != books().devices[static_cast<std::size_t>(stream->device)].legacy) return cudaSuccess;
  bool implicit = false;  // the legacy stream would wait for a captured stream
  for (const auto& capture : books().captures) {
    for (const cudaStream_t captured : capture->streams) {
      if (!captured->blocking || captured->device != stream->device) continue;
      invalidate(capture);
      implicit = true;
    }
  }
  return implicit ? cudaErrorStreamCaptureImplicit : cudaSuccess;
}

bool is_captured(cudaStream_t stream) {
  const BooksLock lock;
  return stream != nullptr && stream != cudaStreamLegacy && stream->capture != nullptr;
}

}  // namespace lockstep::emulator

using namespace lockstep::emulator;

extern "C" {

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode) {
  if (const cudaError_t status = enter("cudaStreamBeginCapture"); status != cudaSuccess) return status;
  if (stream == nullptr || stream == cudaStreamLegacy) return answer(cudaErrorStreamCaptureUnsupported);
  if (!exists(stream)) return answer(cudaErrorInvalidResourceHandle);
  const BooksLock lock;
  if (stream->capture != nullptr) return answer(cudaErrorIllegalState);
  auto capture = std::make_shared<Capture>();
  capture->origin = stream;
  capture->mode = mode;
  capture->thread = this_thread();
  capture->streams = {stream};
  stream->capture = capture;
  stream->tail.clear();
  books().captures.insert(capture);
  return cudaSuccess;
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  if (const cudaError_t status = enter("cudaStreamEndCapture"); status != cudaSuccess) return status;
  if (graph == nullptr) return answer(cudaErrorInvalidValue);
  *graph = nullptr;
  if (!exists(stream)) return answer(cudaErrorInvalidResourceHandle);
  const BooksLock lock;
  const std::shared_ptr<Capture> capture = stream->capture;
  if (capture == nullptr) return answer(cudaErrorIllegalState);
  if (capture->origin != stream) {
    invalidate(capture);
    return answer(cudaErrorStreamCaptureUnmatched);
  }
  if (capture->mode != cudaStreamCaptureModeRelaxed && capture->thread != this_thread())
    return answer(cudaErrorStreamCaptureWrongThread);
  const bool complete = joined(*capture);
  leave(capture);
  if (capture->invalid) return answer(cudaErrorStreamCaptureInvalidated);
  if (!complete) return answer(cudaErrorStreamCaptureUnjoined);
  *graph = new CUgraph_st(capture->graph);
  return cudaSuccess;
}

cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status) {
  if (const cudaError_t entered = enter("cudaStreamIsCapturing"); entered != cudaSuccess) return entered;
  if (!exists(resolve(stream))) return answer(cudaErrorInvalidResourceHandle);
  const BooksLock lock;
  const Capture* capture = stream == nullptr || stream == cudaStreamLegacy ? nullptr : stream->capture.get();
  *status = capture == nullptr ? cudaStreamCaptureStatusNone
            : capture->invalid ? cudaStreamCaptureStatusInvalidated
                               : cudaStreamCaptureStatusActive;
  return cudaSuccess;
}

cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t* nodes, std::size_t* count) {
  if (const cudaError_t status = enter("cudaGraphGetNodes"); status != cudaSuccess) return status;
  if (graph == nullptr || count == nullptr) return answer(cudaErrorInvalidValue);
  const BooksLock lock;
  if (nodes == nullptr) {
    *count = graph->nodes.size();
    return cudaSuccess;
  }
  for (std::size_t i = 0; i < *count; ++i) {
    const bool there = i < graph->nodes.size();
    nodes[i] = there ? reinterpret_cast<cudaGraphNode_t>(graph->nodes[i].get()) : nullptr;
  }
  *count = std::min(*count, graph->nodes.size());
  return cudaSuccess;
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t* executable, cudaGraph_t graph, unsigned long long flags) {
  if (const cudaError_t status = enter("cudaGraphInstantiate"); status != cudaSuccess) return status;
  if (executable == nullptr || graph == nullptr || (flags & ~cudaGraphInstantiateFlagUseNodePriority) != 0)
    return answer(cudaErrorInvalidValue);
  if (const cudaError_t status = allow_unsafe_call(); status != cudaSuccess) return answer(status);
  if (flags == 0 && has_priorities(*graph)) {
    return refuse_graph(
        "the priorities of streams would be lost; use cudaGraphInstantiateFlagUseNodePriority to keep them");
  }
  if (may_deadlock(*graph)) {
    return refuse_graph(
        "the collectives of several communicators are unordered and may deadlock; "
        "NCCL_LAUNCH_ORDER_IMPLICIT=1 orders them");
  }
  const BooksLock lock;
  *executable = new CUgraphExec_st{};
  if (!machine().graphs_empty) (*executable)->nodes = graph->nodes;
  return cudaSuccess;
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t executable, cudaStream_t stream) {
  if (const cudaError_t status = enter("cudaGraphLaunch"); status != cudaSuccess) return status;
  if (executable == nullptr) return answer(cudaErrorInvalidValue);
  stream = resolve(stream);
  if (!exists(stream)) return answer(cudaErrorInvalidResourceHandle);
  if (const cudaError_t status = allow_work(stream); status != cudaSuccess) return answer(status);
  const auto launch = make_operation("cudaGraphLaunch");
  announce(&launch->issued);
  const BooksLock lock;
  if (stream->capture != nullptr) {  // would be a child graph
    invalidate(stream->capture);
    return answer(cudaErrorNotSupported);
  }
  if (executable->last_launch != nullptr) launch->after.push_back(executable->last_launch);
  const std::uint64_t seed = machine().seed * 104729 + executable->launches++;
  launch->work = [nodes = executable->nodes, records = record_events(*executable), device = stream->device,
                  seed, held = std::weak_ptr<StreamOperation>(launch)] {
    Replay(nodes, records, held.lock(), device, seed).run();
  };
  append(stream, launch);
  executable->last_launch = launch;
  return cudaSuccess;
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  const cudaError_t status = enter("cudaGraphDestroy");
  delete graph;
  return status;
}

// Does not interrupt a running launch. Frees the nodes even if the device is broken.
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t executable) {
  const cudaError_t status = enter("cudaGraphExecDestroy");
  delete executable;
  return status;
}

}  // extern "C"
