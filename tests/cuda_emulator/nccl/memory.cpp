// SPDX-License-Identifier: Apache-2.0
//
// NCCL's functions: memory, and its registration.
#include <cstdlib>
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

// True if all of the memory is from one call of ncclMemAlloc, and begins at a multiple of this many bytes.
bool allocated_here(const void* data, std::size_t bytes, std::size_t alignment) {
  const Unseen unseen;
  const auto* begin = static_cast<const std::byte*>(data);
  const std::lock_guard lock(allocated().mutex);
  for (const auto& [address, size] : allocated().bytes) {
    const auto* first = static_cast<const std::byte*>(address);
    if (first <= begin && begin + bytes <= first + size)
      return static_cast<std::size_t>(begin - first) % alignment == 0;
  }
  return false;
}

using HandleKind = EmulatedCommunicator::HandleKind;

ncclResult_t register_as(HandleKind kind, const char* function, const CommunicatorPointer& communicator,
                         void* data, std::size_t bytes, void** handle) {
  const bool usable = data != nullptr && bytes > 0 && is_device_memory(data, bytes, communicator->device());
  if (!usable || handle == nullptr) {
    return complain(ncclInvalidArgument,
                    fmt::format("{}: {} bytes at {} are not memory of device {}, or the pointer for the "
                                "handle is null",
                                function, bytes, data, communicator->device()));
  }
  const Unseen unseen;
  *handle = communicator->add_registration(data, bytes, kind);
  return ncclSuccess;
}

ncclResult_t deregister_as(HandleKind kind, const char* function, ncclComm_t comm, void* handle) {
  if (const ncclResult_t fault = requested_fault(function)) return fault;
  const CommunicatorPointer communicator = find_handle(comm);
  if (!communicator) return refuse_handle(function, comm);
  const Unseen unseen;
  try {
    communicator->remove_registration(handle, kind);
    return ncclSuccess;
  } catch (const NcclError& error) {
    return complain(error.status, error.what());
  }
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

// NCCL unmaps the memory (cuMemUnmap). Unlike cudaFree, that need not wait for the device.
ncclResult_t ncclMemFree(void* data) {
  if (const ncclResult_t fault = requested_fault("ncclMemFree")) return fault;
  if (data == nullptr) return ncclSuccess;
  try {
    forget(data);
  } catch (const NcclError& error) {
    return complain(error.status, error.what());
  }
  if (const cudaError_t status = unmap(data)) return refuse_cuda("ncclMemFree", status);
  return ncclSuccess;
}

ncclResult_t ncclCommRegister(ncclComm_t comm, void* data, std::size_t bytes, void** handle) {
  if (const ncclResult_t fault = requested_fault("ncclCommRegister")) return fault;
  const CommunicatorPointer communicator = find_handle(comm);
  if (!communicator) return refuse_handle("ncclCommRegister", comm);
  return register_as(HandleKind::registration, "ncclCommRegister", communicator, data, bytes, handle);
}

ncclResult_t ncclCommDeregister(ncclComm_t comm, void* handle) {
  return deregister_as(HandleKind::registration, "ncclCommDeregister", comm, handle);
}

// NCCL needs the physical allocation of the memory, which cudaMalloc() hides.
ncclResult_t ncclCommWindowRegister(ncclComm_t comm, void* data, std::size_t bytes, ncclWindow_t* window,
                                    int flags) {
  if (const ncclResult_t fault = requested_fault("ncclCommWindowRegister")) return fault;
  const CommunicatorPointer communicator = find_handle(comm);
  if (!communicator) return refuse_handle("ncclCommWindowRegister", comm);
  if (window == nullptr || flags < NCCL_WIN_DEFAULT || flags > NCCL_WIN_COLL_SYMMETRIC) {
    return complain(
        ncclInvalidArgument,
        fmt::format("ncclCommWindowRegister: the pointer for the window is null, or flags are {}", flags));
  }
  // As NCCL 2.29 where it has no windows.
  if (const char* enabled = std::getenv("NCCL_WIN_ENABLE"); enabled != nullptr && *enabled == '0') {
    *window = nullptr;
    return ncclSuccess;
  }
  const bool symmetric = flags == NCCL_WIN_COLL_SYMMETRIC && communicator->has_windows();
  void* handle = nullptr;
  if (!symmetric) {
    const ncclResult_t status =
        register_as(HandleKind::window, "ncclCommWindowRegister", communicator, data, bytes, &handle);
    *window = static_cast<ncclWindow_t>(handle);
    return status;
  }
  if (!allocated_here(data, bytes, NCCL_WIN_REQUIRED_ALIGNMENT)) {
    return complain(ncclInvalidArgument,
                    fmt::format("ncclCommWindowRegister: {} bytes at {} are not from ncclMemAlloc, "
                                "or do not begin at a multiple of {} bytes of it",
                                bytes, data, NCCL_WIN_REQUIRED_ALIGNMENT));
  }
  const Unseen unseen;
  try {
    *window = static_cast<ncclWindow_t>(communicator->add_window(data, bytes));
    return ncclSuccess;
  } catch (const NcclError& error) {
    return complain(error.status, error.what());
  }
}

ncclResult_t ncclCommWindowDeregister(ncclComm_t comm, ncclWindow_t window) {
  return deregister_as(HandleKind::window, "ncclCommWindowDeregister", comm, window);
}
