// SPDX-License-Identifier: Apache-2.0
//
// Events. A record adds a position to its stream's order. A wait uses the event's position at the time of the
// call; a later record does not change it. If the stream is captured, the event's position is a node of the
// graph.
#include <algorithm>

#include "tests/cuda_emulator/runtime/books.h"
#include "tests/cuda_emulator/runtime/device_memory.h"

namespace lockstep::emulator {
namespace {

bool is_event(cudaEvent_t event) {
  const BooksLock lock;
  return books().events.contains(event);
}

cudaError_t create(cudaEvent_t* event, unsigned flags, const char* function) {
  if (const cudaError_t status = enter(function); status != cudaSuccess) return status;
  if (event == nullptr || (flags & ~(cudaEventBlockingSync | cudaEventDisableTiming)) != 0)
    return answer(cudaErrorInvalidValue);
  const BooksLock lock;
  *event = new CUevent_st{.device = current_device(), .flags = flags};
  books().events.insert(*event);
  return cudaSuccess;
}

// With the lock.
void record_in_capture(cudaEvent_t event, cudaStream_t stream, bool external) {
  if (!external) {
    event->captured = true;
    event->capture = stream->capture;
    event->place = stream->tail;
    return;
  }
  auto node = std::make_shared<Node>();
  node->name = "cudaEventRecord";
  node->event = event;
  append_node(stream, std::move(node));
}

cudaError_t record(const char* function, cudaEvent_t event, cudaStream_t stream, unsigned flags) {
  if (const cudaError_t status = enter(function); status != cudaSuccess) return status;
  stream = resolve(stream);
  if (!exists(stream) || !is_event(event) || stream->device != event->device)
    return answer(cudaErrorInvalidResourceHandle);
  const bool external = flags == cudaEventRecordExternal;
  if (flags != cudaEventRecordDefault && !external) return answer(cudaErrorInvalidValue);
  if (const cudaError_t status = allow_work(stream); status != cudaSuccess) return answer(status);
  const auto place = make_operation("cudaEventRecord");
  announce(&place->issued);
  const BooksLock lock;
  if (stream->capture != nullptr) {
    record_in_capture(event, stream, external);
    return cudaSuccess;
  }
  if (external) return answer(cudaErrorIllegalState);
  append(stream, place);
  event->captured = false;
  event->last = place;
  return cudaSuccess;
}

// With the lock: makes the captured stream depend on the position of a captured event.
cudaError_t wait_in_capture(cudaStream_t stream, cudaEvent_t event) {
  const std::shared_ptr<Capture> capture = event->capture.lock();
  if (capture == nullptr || !books().captures.contains(capture)) return cudaErrorCapturedEvent;
  if (stream->capture != nullptr && stream->capture != capture) {
    invalidate(stream->capture);
    invalidate(capture);
    return cudaErrorStreamCaptureMerge;
  }
  if (capture->invalid) return cudaErrorStreamCaptureInvalidated;
  if (stream->capture == nullptr) {  // the stream joins the capture
    stream->capture = capture;
    stream->tail.clear();
    capture->streams.insert(stream);
  }
  for (const std::shared_ptr<Node>& node : event->place) {
    if (std::ranges::find(stream->tail, node) == stream->tail.end()) stream->tail.push_back(node);
  }
  return cudaSuccess;
}

// The operation of the event's last record. Returns an error if the record is in a capture.
cudaError_t last_record(cudaEvent_t event, StreamOperationPointer& last) {
  const BooksLock lock;
  if (event->captured) {
    if (const auto capture = event->capture.lock()) invalidate(capture);
    return cudaErrorCapturedEvent;
  }
  last = event->last;
  return cudaSuccess;
}

}  // namespace
}  // namespace lockstep::emulator

using namespace lockstep::emulator;

extern "C" {

cudaError_t cudaEventCreate(cudaEvent_t* event) { return create(event, cudaEventDefault, "cudaEventCreate"); }
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
  return create(event, flags, "cudaEventCreateWithFlags");
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
  if (const cudaError_t status = enter("cudaEventDestroy"); status != cudaSuccess) return status;
  const BooksLock lock;
  if (books().events.erase(event) == 0) return answer(cudaErrorInvalidResourceHandle);
  delete event;
  return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  return record("cudaEventRecord", event, stream, cudaEventRecordDefault);
}
cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned flags) {
  return record("cudaEventRecordWithFlags", event, stream, flags);
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags) {
  if (const cudaError_t status = enter("cudaStreamWaitEvent"); status != cudaSuccess) return status;
  stream = resolve(stream);
  if (!exists(stream) || !is_event(event)) return answer(cudaErrorInvalidResourceHandle);
  if (flags != cudaEventWaitDefault) return answer(cudaErrorInvalidValue);
  const auto place = make_operation("cudaStreamWaitEvent");
  announce(&place->issued);
  const BooksLock lock;
  if (event->captured) return answer(wait_in_capture(stream, event));
  if (event->last == nullptr) return cudaSuccess;  // never recorded
  if (stream->capture != nullptr) {
    invalidate(stream->capture);
    return answer(cudaErrorStreamCaptureIsolation);
  }
  place->after.push_back(event->last);
  append(stream, place);
  return cudaSuccess;
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
  if (const cudaError_t status = enter("cudaEventQuery"); status != cudaSuccess) return status;
  if (!is_event(event)) return answer(cudaErrorInvalidResourceHandle);
  StreamOperationPointer last;
  if (const cudaError_t status = last_record(event, last); status != cudaSuccess) return answer(status);
  if (const cudaError_t status = allow_unsafe_call(); status != cudaSuccess) return answer(status);
  if (last != nullptr) {
    {
      const BooksLock lock;
      if (!last->done) return answer(cudaErrorNotReady);
    }
    follow(&last->finished);
    deny_host_access();
  }
  return answer(fault_of(event->device));
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  if (const cudaError_t status = enter("cudaEventSynchronize"); status != cudaSuccess) return status;
  if (!is_event(event)) return answer(cudaErrorInvalidResourceHandle);
  StreamOperationPointer last;
  if (const cudaError_t status = last_record(event, last); status != cudaSuccess) return answer(status);
  if (const cudaError_t status = allow_unsafe_call(); status != cudaSuccess) return answer(status);
  if ((event->flags & cudaEventBlockingSync) == 0) {  // independent of the device's flags
    const BooksLock lock;
    ++books().spinning_waits;
  }
  if (last != nullptr) wait_for({last});
  return answer(fault_of(event->device));
}

cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t begin, cudaEvent_t end) {
  if (const cudaError_t status = enter("cudaEventElapsedTime"); status != cudaSuccess) return status;
  if (milliseconds == nullptr) return answer(cudaErrorInvalidValue);
  if (!is_event(begin) || !is_event(end) || begin->device != end->device)
    return answer(cudaErrorInvalidResourceHandle);
  const BooksLock lock;
  if (begin->captured || end->captured) return answer(cudaErrorCapturedEvent);
  if (((begin->flags | end->flags) & cudaEventDisableTiming) != 0 || begin->last == nullptr ||
      end->last == nullptr)
    return answer(cudaErrorInvalidResourceHandle);
  if (!begin->last->done || !end->last->done) return answer(cudaErrorNotReady);
  *milliseconds = std::chrono::duration<float, std::milli>(end->last->ended - begin->last->ended).count();
  return cudaSuccess;
}

}  // extern "C"
