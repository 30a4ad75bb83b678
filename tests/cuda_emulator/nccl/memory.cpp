// SPDX-License-Identifier: Apache-2.0
//
// NCCL's functions: memory, and its registration.
#include <map>
#include <mutex>

#include <fmt/format.h>
#include <nccl.h>

#include "tests/cuda_emulator/nccl/errors.h"
#include "tests/cuda_emulator/nccl/handles.h"
#include "tests/cuda_emulator/runtime/runtime.h"

namespace lockstep::emulator {
namespace {

// Memory that peers can map consists of physical pieces of this size.
constexpr std::size_t kGranularity = std::size_t{2} << 20;

// Sizes in bytes of the allocations of ncclMemAlloc, by address.
struct Allocated {
  std::mutex mutex;
  std::map<void*, std::size_t> bytes;
};

Allocated& allocated() {
  static Allocated& made = *new Allocated;
  return made;
}

ncclResult_t refuse_cuda(const char* function, cudaError_t status) {
  return complain(ncclUnhandledCudaError, fmt::format("{}: {}", function, cudaGetErrorString(status)));
}

// Removes an allocation. Throws NcclError if it is invalid or registered.
void forget(void* data) {
  const Unseen unseen;
  const std::lock_guard lock(allocated().mutex);
  const auto found = allocated().bytes.find(data);
  if (found == allocated().bytes.end()) {
    throw NcclError(ncclInvalidArgument, fmt::format("ncclMemFree: {} is not from ncclMemAlloc", data));
  }
  if (is_registered_somewhere(data, found->second)) {
    throw NcclError(ncclInvalidUsage,
                    fmt::format("ncclMemFree: {} is still registered with a communicator", data));
  }
  allocated().bytes.erase(found);
}

void remember(void* data, std::size_t bytes) {
  const Unseen unseen;
  const std::lock_guard lock(allocated().mutex);
  allocated().bytes[data] = bytes;
}

}  // namespace
}  // namespace lockstep::emulator

using namespace lockstep::emulator;

ncclResult_t ncclMemAlloc(void** data, std::size_t bytes) {
  if (const ncclResult_t fault = requested_fault("ncclMemAlloc")) return fault;
  if (data == nullptr || bytes == 0)
    return complain(ncclInvalidArgument, "ncclMemAlloc: the pointer is null or the size is 0");
  if (const cudaError_t status = allocate(data, bytes, kGranularity))
    return refuse_cuda("ncclMemAlloc", status);
  remember(*data, bytes);
  return ncclSuccess;
}

ncclResult_t ncclMemFree(void* data) {
  if (const ncclResult_t fault = requested_fault("ncclMemFree")) return fault;
  if (data == nullptr) return ncclSuccess;
  try {
    forget(data);
  } catch (const NcclError& error) {
    return complain(error.status, error.what());
  }
  if (const cudaError_t status = cudaFree(data)) return refuse_cuda("ncclMemFree", status);
  return ncclSuccess;
}

ncclResult_t ncclCommRegister(ncclComm_t comm, void* data, std::size_t bytes, void** handle) {
  if (const ncclResult_t fault = requested_fault("ncclCommRegister")) return fault;
  const CommunicatorPointer communicator = find_handle(comm);
  if (!communicator) return refuse_handle("ncclCommRegister", comm);
  const bool usable = data != nullptr && bytes > 0 && is_device_memory(data, bytes, communicator->device());
  if (!usable || handle == nullptr) {
    return complain(ncclInvalidArgument,
                    fmt::format("ncclCommRegister: {} bytes at {} are not memory of device {}, or "
                                "the pointer for the handle is null",
                                bytes, data, communicator->device()));
  }
  const Unseen unseen;
  *handle = communicator->add_registration(data, bytes);
  return ncclSuccess;
}

ncclResult_t ncclCommDeregister(ncclComm_t comm, void* handle) {
  if (const ncclResult_t fault = requested_fault("ncclCommDeregister")) return fault;
  const CommunicatorPointer communicator = find_handle(comm);
  if (!communicator) return refuse_handle("ncclCommDeregister", comm);
  const Unseen unseen;
  try {
    communicator->remove_registration(handle);
    return ncclSuccess;
  } catch (const NcclError& error) {
    return complain(error.status, error.what());
  }
}
