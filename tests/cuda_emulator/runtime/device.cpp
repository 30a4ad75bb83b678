// SPDX-License-Identifier: Apache-2.0
//
// Devices, contexts and errors.
#include <bit>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include "tests/cuda_emulator/runtime/books.h"
#include "tests/cuda_emulator/runtime/device_memory.h"
#include "tests/cuda_emulator/runtime/faults.h"
#include "tests/cuda_emulator/runtime/visible_devices.h"

namespace lockstep::emulator {
namespace {

constexpr int kL2Bytes = 1 << 16;  // size of a cache that does not exist

thread_local int device_of_thread = 0;
thread_local cudaError_t last_error = cudaSuccess;
thread_local char thread_number = 0;
thread_local bool in_host_function = false;

struct Name {
  cudaError_t status;
  const char* name;
  const char* text;
};
constexpr Name kNames[] = {
    {cudaSuccess, "cudaSuccess", "no error"},
    {cudaErrorInvalidValue, "cudaErrorInvalidValue", "invalid argument"},
    {cudaErrorMemoryAllocation, "cudaErrorMemoryAllocation", "out of memory"},
    {cudaErrorInitializationError, "cudaErrorInitializationError", "initialization error"},
    {cudaErrorCudartUnloading, "cudaErrorCudartUnloading", "driver shutting down"},
    {cudaErrorInvalidConfiguration, "cudaErrorInvalidConfiguration", "invalid configuration argument"},
    {cudaErrorInvalidMemcpyDirection, "cudaErrorInvalidMemcpyDirection", "invalid copy direction for memcpy"},
    {cudaErrorDevicesUnavailable, "cudaErrorDevicesUnavailable",
     "CUDA-capable device(s) is/are busy or unavailable"},
    {cudaErrorNoDevice, "cudaErrorNoDevice", "no CUDA-capable device is detected"},
    {cudaErrorInvalidDevice, "cudaErrorInvalidDevice", "invalid device ordinal"},
    {cudaErrorInvalidResourceHandle, "cudaErrorInvalidResourceHandle", "invalid resource handle"},
    {cudaErrorIllegalState, "cudaErrorIllegalState",
     "the operation cannot be performed in the present state"},
    {cudaErrorNotReady, "cudaErrorNotReady", "device not ready"},
    {cudaErrorIllegalAddress, "cudaErrorIllegalAddress", "an illegal memory access was encountered"},
    {cudaErrorLaunchTimeout, "cudaErrorLaunchTimeout", "the launch timed out and was terminated"},
    {cudaErrorContextIsDestroyed, "cudaErrorContextIsDestroyed", "context is destroyed"},
    {cudaErrorLaunchFailure, "cudaErrorLaunchFailure", "unspecified launch failure"},
    {cudaErrorNotPermitted, "cudaErrorNotPermitted", "operation not permitted"},
    {cudaErrorNotSupported, "cudaErrorNotSupported", "operation not supported"},
    {cudaErrorStreamCaptureUnsupported, "cudaErrorStreamCaptureUnsupported",
     "operation not permitted when stream is capturing"},
    {cudaErrorStreamCaptureInvalidated, "cudaErrorStreamCaptureInvalidated",
     "operation failed due to a previous error during capture"},
    {cudaErrorStreamCaptureMerge, "cudaErrorStreamCaptureMerge",
     "operation would result in a merge of separate capture sequences"},
    {cudaErrorStreamCaptureUnmatched, "cudaErrorStreamCaptureUnmatched",
     "capture was not ended in the same stream as it began"},
    {cudaErrorStreamCaptureUnjoined, "cudaErrorStreamCaptureUnjoined", "capturing stream has unjoined work"},
    {cudaErrorStreamCaptureIsolation, "cudaErrorStreamCaptureIsolation",
     "dependency created on uncaptured work in another stream"},
    {cudaErrorStreamCaptureImplicit, "cudaErrorStreamCaptureImplicit",
     "operation would make the legacy stream depend on a capturing blocking stream"},
    {cudaErrorCapturedEvent, "cudaErrorCapturedEvent",
     "operation not permitted on an event last recorded in a capturing stream"},
    {cudaErrorStreamCaptureWrongThread, "cudaErrorStreamCaptureWrongThread",
     "attempt to terminate a thread-local capture sequence from another thread"},
};

const Name* find_name(cudaError_t status) {
  for (const Name& name : kNames) {
    if (name.status == status) return &name;
  }
  return nullptr;
}

// In compute mode "exclusive process" only one process may have a context on a device.
// LOCKSTEP_EMULATED_EXCLUSIVE is the prefix of files, one for each device, whose locks represent the
// contexts.
bool take_device(int device) {
  const char* prefix = std::getenv("LOCKSTEP_EMULATED_EXCLUSIVE");
  if (prefix == nullptr || *prefix == '\0') return true;
  const std::string path = std::string(prefix) + "." + std::to_string(place_of(device));
  const int file =
      open(path.c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0600);  // stays open until the process ends
  return file >= 0 && flock(file, LOCK_EX | LOCK_NB) == 0;
}

// Runs at exit: appends one line of JSON to the file LOCKSTEP_EMULATED_REPORT, if it is set.
void report() {
  const char* path = std::getenv("LOCKSTEP_EMULATED_REPORT");
  if (path == nullptr || *path == '\0') return;
  const BooksLock lock;
  std::string contexts;
  for (const DeviceBooks& device : books().devices) {
    contexts += (contexts.empty() ? "" : ", ") + std::to_string(device.contexts);
  }
  std::size_t device_allocations = 0;
  for (const auto& [address, allocation] : books().allocations)
    device_allocations += allocation.device >= 0 ? 1 : 0;
  const std::string line = "{\"contexts\": [" + contexts +
                           "], \"device_allocations\": " + std::to_string(device_allocations) +
                           ", \"spinning_waits\": " + std::to_string(books().spinning_waits) +
                           ", \"copied_collectives\": " + std::to_string(books().copied_collectives) + "}\n";
  const int file = open(path, O_CREAT | O_WRONLY | O_APPEND | O_CLOEXEC, 0600);
  if (file < 0) return;
  if (write(file, line.data(), line.size()) < 0) std::perror("emulated GPU: LOCKSTEP_EMULATED_REPORT");
  close(file);
}

cudaError_t make_context(int device) {
  DeviceBooks& mine = books().devices[static_cast<std::size_t>(device)];
  if (mine.contexts > 0) return cudaSuccess;
  if (machine().context_bytes > machine().memory_bytes) return cudaErrorMemoryAllocation;
  if (!take_device(device)) return cudaErrorDevicesUnavailable;
  mine.used_bytes += machine().context_bytes;
  mine.contexts = 1;
  return cudaSuccess;
}

}  // namespace

Books& books() {
  // Never destroyed: threads of streams use it until the process ends.
  static Books& all = *[] {
    auto* made = new Books;
    made->devices = std::vector<DeviceBooks>(static_cast<std::size_t>(machine().devices));
    std::atexit(report);
    return made;
  }();
  return all;
}

int current_device() { return device_of_thread; }
const void* this_thread() { return &thread_number; }

cudaError_t answer(cudaError_t status) {
  if (status != cudaSuccess) last_error = status;
  return status;
}

cudaError_t enter(const char* function, std::size_t bytes) {
  if (machine().devices == 0) return answer(cudaErrorNoDevice);
  if (in_host_function) return answer(cudaErrorNotPermitted);
  const int fault = function == nullptr ? 0 : injected_fault(function, bytes);
  if (fault != 0) return answer(static_cast<cudaError_t>(fault));
  const BooksLock lock;
  if (const cudaError_t made = make_context(current_device()); made != cudaSuccess) return answer(made);
  return answer(books().devices[static_cast<std::size_t>(current_device())].fault);
}

void run_host_function(cudaHostFn_t function, void* user_data) {
  const HostCode host_code;
  in_host_function = true;
  function(user_data);
  in_host_function = false;
}

cudaError_t fault_of(int device) {
  const BooksLock lock;
  return books().devices[static_cast<std::size_t>(device)].fault;
}

int contexts(int device) {
  const BooksLock lock;
  return books().devices[static_cast<std::size_t>(device)].contexts;
}

void count_wait(int device) {
  const BooksLock lock;
  const unsigned flags = books().devices[static_cast<std::size_t>(device)].flags;
  if ((flags & cudaDeviceScheduleMask) != cudaDeviceScheduleBlockingSync) ++books().spinning_waits;
}

void count_copied_collective() {
  const BooksLock lock;
  ++books().copied_collectives;
}

std::uint64_t spinning_waits() {
  const BooksLock lock;
  return books().spinning_waits;
}

}  // namespace lockstep::emulator

using namespace lockstep::emulator;

extern "C" {

const char* cudaGetErrorName(cudaError_t status) {
  const Name* found = find_name(status);
  return found == nullptr ? "unrecognized error code" : found->name;
}
const char* cudaGetErrorString(cudaError_t status) {
  const Name* found = find_name(status);
  return found == nullptr ? "unrecognized error code" : found->text;
}
cudaError_t cudaGetLastError() {
  const cudaError_t found = cudaPeekAtLastError();
  last_error = cudaSuccess;
  return found;
}
cudaError_t cudaPeekAtLastError() {
  if (machine().devices > 0) {
    const BooksLock lock;
    const cudaError_t fault = books().devices[static_cast<std::size_t>(current_device())].fault;
    if (fault != cudaSuccess) return fault;  // permanent
  }
  return last_error;
}

cudaError_t cudaDriverGetVersion(int* version) {
  *version = 13000;
  return cudaSuccess;
}
cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = 13000;
  return cudaSuccess;
}
cudaError_t cudaGetDeviceCount(int* count) {
  *count = machine().devices;
  return answer(*count == 0 ? cudaErrorNoDevice : cudaSuccess);
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  if (device < 0 || device >= machine().devices) return answer(cudaErrorInvalidDevice);
  if (const int fault = injected_fault("cudaGetDeviceProperties"); fault != 0)
    return answer(static_cast<cudaError_t>(fault));
  *properties = {};
  std::snprintf(properties->name, sizeof properties->name, "emulated GPU");
  properties->uuid = uuid_of(place_of(device));
  properties->totalGlobalMem = machine().memory_bytes;
  properties->major = machine().capability / 10;
  properties->minor = machine().capability % 10;
  properties->multiProcessorCount = machine().multiprocessors;
  properties->pciDomainID = 0xe0e0;  // does not exist on any machine
  properties->pciBusID = place_of(device);
  return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
  if (device < 0 || device >= machine().devices) return answer(cudaErrorInvalidDevice);
  switch (attribute) {
    case cudaDevAttrMultiProcessorCount:
      *value = machine().multiprocessors;
      return cudaSuccess;
    case cudaDevAttrL2CacheSize:
      *value = kL2Bytes;
      return cudaSuccess;
    case cudaDevAttrMaxThreadsPerMultiProcessor:
      *value = 2048;
      return cudaSuccess;
  }
  return answer(cudaErrorInvalidValue);
}

cudaError_t cudaGetDevice(int* device) {
  if (machine().devices == 0) return answer(cudaErrorNoDevice);
  *device = current_device();
  return cudaSuccess;
}

// Creates the device's context, like CUDA since version 12.
cudaError_t cudaSetDevice(int device) {
  if (machine().devices == 0) return answer(cudaErrorNoDevice);
  if (device < 0 || device >= machine().devices) return answer(cudaErrorInvalidDevice);
  if (const int fault = injected_fault("cudaSetDevice"); fault != 0)
    return answer(static_cast<cudaError_t>(fault));
  device_of_thread = device;
  const BooksLock lock;
  return answer(make_context(device));
}

// Overwrites the flags if the device already has a context.
cudaError_t cudaSetDeviceFlags(unsigned flags) {
  const unsigned schedule = flags & cudaDeviceScheduleMask;
  const unsigned others = cudaDeviceMapHost | cudaDeviceLmemResizeToMax | cudaDeviceSyncMemops;
  if (std::popcount(schedule) > 1 || (flags & ~(cudaDeviceScheduleMask | others)) != 0)
    return answer(cudaErrorInvalidValue);
  if (const cudaError_t status = enter("cudaSetDeviceFlags"); status != cudaSuccess) return status;
  const BooksLock lock;
  books().devices[static_cast<std::size_t>(current_device())].flags = flags;
  return cudaSuccess;
}

// Creates no context. Mapped pinned memory is always possible.
cudaError_t cudaGetDeviceFlags(unsigned* flags) {
  if (machine().devices == 0) return answer(cudaErrorNoDevice);
  if (flags == nullptr) return answer(cudaErrorInvalidValue);
  const BooksLock lock;
  *flags = books().devices[static_cast<std::size_t>(current_device())].flags | cudaDeviceMapHost;
  return cudaSuccess;
}

cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  *least = kLeastPriority;
  *greatest = kGreatestPriority;
  return enter("cudaDeviceGetStreamPriorityRange");
}

}  // extern "C"
