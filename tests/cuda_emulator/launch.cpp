// SPDX-License-Identifier: Apache-2.0
//
// The launch of kernels: the part of cudaLaunchKernelEx() that is no template.
#include <cstdio>
#include <span>
#include <string>

#include <cuda_runtime.h>
#include <fmt/format.h>

#include "tests/cuda_emulator/emulator.h"
#include "tests/cuda_emulator/function_names.h"
#include "tests/cuda_emulator/runtime/runtime.h"

namespace lockstep::emulator {
namespace {

// Returns whether the emulator may ignore the attribute. It may ignore hints, such as a priority. Attributes
// that change what a kernel may do or see are accepted only with the value that has no effect.
bool is_emulated(const cudaLaunchAttribute& attribute) {
  const cudaLaunchAttributeValue& value = attribute.val;
  switch (attribute.id) {
    case cudaLaunchAttributeIgnore:
    case cudaLaunchAttributePriority:
      return true;
    case cudaLaunchAttributeProgrammaticStreamSerialization:
      return value.programmaticStreamSerializationAllowed == 0;
    case cudaLaunchAttributeCooperative:
      return value.cooperative == 0;
    case cudaLaunchAttributeClusterDimension:
      return value.clusterDim.x == 1 && value.clusterDim.y == 1 && value.clusterDim.z == 1;
    default:
      return false;
  }
}

// Runs the kernel. A KernelError breaks the device.
void run_kernel(const Launch& shape, const char* name, const std::function<void()>& thread) {
  try {
    run(shape, thread);
  } catch (const KernelError& error) {
    const std::string message = fmt::format("emulated CUDA: kernel {}: {}", name, error.what());
    fmt::print(stderr, "{}\n", message);
    throw DeviceFault(message);
  }
}

}  // namespace

cudaError_t launch(const cudaLaunchConfig_t& config, const void* kernel, std::function<void()> thread) {
  if (const int fault = injected_fault("cudaLaunchKernelEx")) return answer(static_cast<cudaError_t>(fault));
  const char* name = name_of_function(kernel);
  const Launch shape{config.gridDim, config.blockDim, config.dynamicSmemBytes, machine().seed};
  if (!allowed(shape)) return answer(cudaErrorInvalidConfiguration);
  if (config.attrs == nullptr && config.numAttrs > 0) return answer(cudaErrorInvalidValue);
  for (const cudaLaunchAttribute& attribute : std::span(config.attrs, config.numAttrs)) {
    if (is_emulated(attribute)) continue;
    fmt::print(stderr, "emulated CUDA: kernel {}: launch attribute {} with this value is not emulated\n",
               name, static_cast<int>(attribute.id));
    return answer(cudaErrorNotSupported);
  }
  int device = 0;
  if (const cudaError_t status = cudaGetDevice(&device); status != cudaSuccess) return status;
  return enqueue(config.stream, name, [device, shape, name, function = std::move(thread)] {
    run_resident(device, shape.grid.volume(), name, [&] { run_kernel(shape, name, function); });
  });
}

}  // namespace lockstep::emulator

cudaError_t cudaFuncGetName(const char** name, const void* kernel) {
  if (name == nullptr || kernel == nullptr) return cudaErrorInvalidValue;
  *name = lockstep::emulator::name_of_function(kernel);
  return cudaSuccess;
}
