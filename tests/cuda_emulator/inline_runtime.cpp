// SPDX-License-Identifier: Apache-2.0
#include "tests/cuda_emulator/inline_runtime.h"

#include <cstdlib>
#include <utility>

namespace lockstep::emulator {
namespace {

HeldWork* holder = nullptr;

Machine& the_machine() {
  static Machine only = [] {
    const char* seed = std::getenv("LOCKSTEP_EMULATED_SEED");
    return Machine{.seed = seed == nullptr ? 0 : std::strtoull(seed, nullptr, 10)};
  }();
  return only;
}

}  // namespace

HeldWork::HeldWork() { holder = this; }
HeldWork::~HeldWork() { holder = nullptr; }

void set_seed(std::uint64_t seed) { the_machine().seed = seed; }

const Machine& machine() { return the_machine(); }
int injected_fault(const char*) { return 0; }
cudaError_t answer(cudaError_t status) { return status; }
void run_resident(int, std::size_t, const char*, const std::function<void()>& kernel) { kernel(); }
cudaError_t enqueue(cudaStream_t, const char*, Work work, const void*) {
  if (holder != nullptr) {
    holder->add(std::move(work));
  } else {
    work();
  }
  return cudaSuccess;
}

}  // namespace lockstep::emulator

const char* cudaGetErrorName(cudaError_t status) {
  return status == cudaSuccess                     ? "cudaSuccess"
         : status == cudaErrorInvalidConfiguration ? "cudaErrorInvalidConfiguration"
                                                   : "cudaError";
}
const char* cudaGetErrorString(cudaError_t status) {
  return status == cudaErrorInvalidConfiguration ? "invalid configuration argument" : "error";
}
cudaError_t cudaGetLastError() { return cudaSuccess; }
cudaError_t cudaGetDevice(int* device) {
  *device = 0;
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int) { return cudaSuccess; }
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
  if (attribute != cudaDevAttrMultiProcessorCount) return cudaErrorInvalidValue;
  *value = device == 0 ? 4 : device;
  return cudaSuccess;
}
