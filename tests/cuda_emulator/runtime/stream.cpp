// SPDX-License-Identifier: Apache-2.0
//
// Streams: each has a queue and a thread that runs its operations. An operation begins when all operations
// that CUDA orders before it are done. By the machine's seed and delay, some operations are delayed until a
// thread waits for them or the delay has passed, so that unordered work runs in a different order each time.
#include <algorithm>
#include <cstdio>
#include <thread>

#include <unistd.h>

#include "tests/cuda_emulator/runtime/books.h"
#include "tests/cuda_emulator/runtime/device_memory.h"
#include "tests/cuda_emulator/runtime/faults.h"

namespace lockstep::emulator {
namespace {

// With the lock.
bool can_begin(const StreamOperation& operation) {
  return std::ranges::all_of(operation.after,
                             [](const StreamOperationPointer& before) { return before->done; });
}

// With the lock: wakes the streams whose next operation may begin.
void wake_streams() {
  const auto wake = [](cudaStream_t stream) {
    if (!stream->waiting.empty() && can_begin(*stream->waiting.front())) stream->changed.notify_one();
  };
  for (const DeviceBooks& device : books().devices) {
    std::ranges::for_each(device.streams, wake);
    if (device.legacy != nullptr) wake(device.legacy);
  }
}

// With the lock: marks these operations, and all operations before them, as wanted.
void want(const std::vector<StreamOperationPointer>& operations) {
  std::vector<StreamOperationPointer> found = operations;
  while (!found.empty()) {
    const StreamOperationPointer operation = found.back();
    found.pop_back();
    if (operation == nullptr || operation->wanted || operation->done) continue;
    operation->wanted = true;
    found.insert(found.end(), operation->after.begin(), operation->after.end());
  }
  wake_streams();
}

// Waits until the next operation of a stream may begin, and returns it; null if the stream is destroyed and
// empty.
StreamOperationPointer next_of(cudaStream_t stream) {
  BooksLock lock;
  while (true) {
    if (stream->waiting.empty()) {
      if (stream->destroyed) return nullptr;
      stream->changed.wait(lock.get());
      continue;
    }
    const StreamOperationPointer& front = stream->waiting.front();
    if (!can_begin(*front) || (books().held_back > 0 && !front->wanted)) {
      stream->changed.wait(lock.get());
    } else if (front->wanted || front->held_until <= Clock::now()) {
      return front;
    } else {
      stream->changed.wait_until(lock.get(), front->held_until);
    }
  }
}

// Earlier operations of the stream ran on this thread, so their order need not be announced.
void run(StreamOperation& operation, int device) {
  follow(&operation.issued);
  for (const StreamOperationPointer& before : operation.after) follow(&before->finished);
  run_work(operation.work, operation.name, device);
  announce(&operation.finished);
}

void serve(cudaStream_t stream) {
  while (const StreamOperationPointer operation = next_of(stream)) {
    run(*operation, stream->device);
    finish(*operation);
    const BooksLock lock;
    stream->waiting.pop_front();
  }
  {
    const BooksLock lock;
    books().devices[static_cast<std::size_t>(stream->device)].streams.erase(stream);
  }
  const Unseen unseen;
  delete stream;
}

Clock::time_point hold(cudaStream_t stream) {
  const auto delay = machine().delay;
  if (delay.count() == 0) return {};
  const auto chance = stream->random() % 4;
  if (chance < 2) return {};
  if (chance == 2) return Clock::now() + delay;
  return Clock::now() + delay * (stream->random() % 1000) / 1000;
}

cudaStream_t make_stream(int device, bool blocking) {
  const BooksLock lock;
  auto* stream = new CUstream_st;
  stream->device = device;
  stream->blocking = blocking;
  stream->random.seed(
      static_cast<std::minstd_rand::result_type>(machine().seed * 7919 + ++books().streams_made));
  return stream;
}

void start(cudaStream_t stream) { std::thread(serve, stream).detach(); }

}  // namespace

HeldBack::HeldBack() {
  const BooksLock lock;
  ++books().held_back;
}

HeldBack::~HeldBack() {
  const BooksLock lock;
  --books().held_back;
  wake_streams();
}

void finish(StreamOperation& operation) {
  Work finished_work;  // its captures are released without the lock
  const BooksLock lock;
  operation.done = true;
  operation.ended = Clock::now();
  operation.after.clear();
  finished_work.swap(operation.work);
  wake_streams();
  if (operation.awaited) books().done.notify_all();
}

void run_work(const Work& work, const char* name, int device) {
  if (!work || fault_of(device) != cudaSuccess) return;  // nothing runs in a broken context
  cudaError_t fault = static_cast<cudaError_t>(injected_fault("operation"));
  if (fault == static_cast<cudaError_t>(kHang)) {
    std::fprintf(stderr, "emulated GPU: %s hangs in process %d, as requested by LOCKSTEP_EMULATED_FAULTS\n",
                 name, static_cast<int>(getpid()));
    while (true) std::this_thread::sleep_for(std::chrono::hours(1));
  }
  if (fault == cudaSuccess) {
    try {
      const DeviceWork device_work;
      work();
    } catch (const DeviceFault& error) {
      std::fprintf(stderr, "emulated GPU: %s: %s\n", name, error.what());
      fault = cudaErrorLaunchFailure;
    }
  }
  if (fault == cudaSuccess) return;
  const BooksLock lock;
  books().devices[static_cast<std::size_t>(device)].fault = fault;
}

bool exists(cudaStream_t stream) {
  if (stream == nullptr) return false;  // also the legacy stream of a device that has not used it
  const BooksLock lock;
  return std::ranges::any_of(books().devices, [&](const DeviceBooks& device) {
    return device.legacy == stream || (device.streams.contains(stream) && !stream->destroyed);
  });
}

cudaStream_t resolve(cudaStream_t stream) {
  if (stream != nullptr && stream != cudaStreamLegacy) return stream;
  DeviceBooks& device = books().devices[static_cast<std::size_t>(current_device())];
  {
    const BooksLock lock;
    if (device.legacy != nullptr) return device.legacy;
  }
  const cudaStream_t made = make_stream(current_device(), true);
  {
    const BooksLock lock;
    if (device.legacy != nullptr) {  // another thread was faster
      delete made;
      return device.legacy;
    }
    device.legacy = made;
  }
  start(made);
  return made;
}

std::vector<StreamOperationPointer> last_of_all(int device) {
  std::vector<StreamOperationPointer> all;
  const DeviceBooks& mine = books().devices[static_cast<std::size_t>(device)];
  for (const cudaStream_t stream : mine.streams) {
    if (stream->last != nullptr) all.push_back(stream->last);
  }
  if (mine.legacy != nullptr && mine.legacy->last != nullptr) all.push_back(mine.legacy->last);
  return all;
}

void append(cudaStream_t stream, const StreamOperationPointer& operation) {
  const auto behind = [&](cudaStream_t other) {
    if (other != nullptr && other->last != nullptr) operation->after.push_back(other->last);
  };
  DeviceBooks& device = books().devices[static_cast<std::size_t>(stream->device)];
  behind(stream);
  if (stream == device.legacy) {
    for (const cudaStream_t other : device.streams) {
      if (other->blocking) behind(other);
    }
  } else if (stream->blocking) {
    behind(device.legacy);
  }
  operation->held_until = hold(stream);
  stream->waiting.push_back(operation);
  stream->last = operation;
  stream->changed.notify_one();
}

void wait_for(const std::vector<StreamOperationPointer>& operations) {
  {
    BooksLock lock;
    want(operations);
    for (const StreamOperationPointer& operation : operations) {
      operation->awaited = true;
      books().done.wait(lock.get(), [&] { return operation->done; });
    }
  }
  for (const StreamOperationPointer& operation : operations) follow(&operation->finished);
  deny_host_access();
}

cudaError_t enqueue(cudaStream_t stream, const char* name, Work work, const void* chain) {
  if (const cudaError_t status = enter(nullptr); status != cudaSuccess) return status;
  stream = resolve(stream);
  if (!exists(stream) || stream->device != current_device()) return answer(cudaErrorInvalidResourceHandle);
  return answer(give(stream, name, std::move(work), chain));
}

cudaError_t give(cudaStream_t stream, const char* name, Work work, const void* chain) {
  if (const cudaError_t status = allow_work(stream); status != cudaSuccess) return status;
  const auto operation = make_operation(name);
  announce(&operation->issued);
  const BooksLock lock;
  if (stream->capture != nullptr) {
    auto node = std::make_shared<Node>();
    node->name = name;
    node->work = std::move(work);
    append_node(stream, std::move(node), chain);
    return cudaSuccess;
  }
  operation->work = std::move(work);
  append(stream, operation);
  return cudaSuccess;
}

int device_of(cudaStream_t stream) {
  if (stream == nullptr || stream == cudaStreamLegacy) return current_device();
  return stream->device;
}

}  // namespace lockstep::emulator

using namespace lockstep::emulator;

namespace {

// Checks and resolves the stream of a call. Returns null, and sets the status, if it is invalid.
cudaStream_t find_stream(const char* function, cudaStream_t stream, cudaError_t& status) {
  status = enter(function);
  if (status != cudaSuccess) return nullptr;
  stream = resolve(stream);
  if (exists(stream)) return stream;
  status = answer(cudaErrorInvalidResourceHandle);
  return nullptr;
}

cudaError_t create(cudaStream_t* stream, unsigned flags, const char* function, int priority = 0) {
  if (const cudaError_t status = enter(function); status != cudaSuccess) return status;
  if (stream == nullptr || (flags & ~cudaStreamNonBlocking) != 0) return answer(cudaErrorInvalidValue);
  *stream = make_stream(current_device(), flags != cudaStreamNonBlocking);
  (*stream)->priority = std::clamp(priority, kGreatestPriority, kLeastPriority);
  {
    const BooksLock lock;
    books().devices[static_cast<std::size_t>(current_device())].streams.insert(*stream);
  }
  start(*stream);
  return cudaSuccess;
}

}  // namespace

extern "C" {

cudaError_t cudaStreamCreate(cudaStream_t* stream) {
  return create(stream, cudaStreamDefault, "cudaStreamCreate");
}
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
  return create(stream, flags, "cudaStreamCreateWithFlags");
}
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags, int priority) {
  return create(stream, flags, "cudaStreamCreateWithPriority", priority);
}

// The stream's remaining operations still run, and waits for the device include them. Then its thread frees
// it.
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  if (const cudaError_t status = enter("cudaStreamDestroy"); status != cudaSuccess) return status;
  if (stream == cudaStreamLegacy || !exists(stream)) return answer(cudaErrorInvalidResourceHandle);
  const BooksLock lock;
  leave_capture(stream);
  stream->destroyed = true;
  stream->changed.notify_one();
  return cudaSuccess;
}

cudaError_t cudaStreamQuery(cudaStream_t stream) {
  cudaError_t status = cudaSuccess;
  stream = find_stream("cudaStreamQuery", stream, status);
  if (stream == nullptr) return status;
  if (status = allow_wait_for(stream); status != cudaSuccess) return answer(status);
  StreamOperationPointer last;
  {
    const BooksLock lock;
    last = stream->last;
    if (last != nullptr && !last->done) return answer(cudaErrorNotReady);
  }
  if (last != nullptr) follow(&last->finished);
  deny_host_access();
  return answer(fault_of(stream->device));
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  cudaError_t status = cudaSuccess;
  stream = find_stream("cudaStreamSynchronize", stream, status);
  if (stream == nullptr) return status;
  if (status = allow_wait_for(stream); status != cudaSuccess) return answer(status);
  count_wait(stream->device);
  StreamOperationPointer last;
  {
    const BooksLock lock;
    last = stream->last;
  }
  if (last != nullptr) wait_for({last});
  return answer(fault_of(stream->device));
}

cudaError_t cudaDeviceSynchronize() {
  if (const cudaError_t status = enter("cudaDeviceSynchronize"); status != cudaSuccess) return status;
  if (const cudaError_t status = allow_wait_for_device(current_device()); status != cudaSuccess)
    return answer(status);
  count_wait(current_device());
  std::vector<StreamOperationPointer> all;
  {
    const BooksLock lock;
    all = last_of_all(current_device());
  }
  wait_for(all);
  return answer(fault_of(current_device()));
}

cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void* user_data) {
  cudaError_t status = cudaSuccess;
  stream = find_stream("cudaLaunchHostFunc", stream, status);
  if (stream == nullptr) return status;
  if (function == nullptr) return answer(cudaErrorInvalidValue);
  return answer(give(stream, "a host function", [=] { run_host_function(function, user_data); }));
}

}  // extern "C"
