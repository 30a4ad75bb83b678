// SPDX-License-Identifier: Apache-2.0
#include "tests/cuda_emulator/libraries/cudnn_device.h"

#include <nlohmann/json.hpp>

namespace lockstep::emulator::cudnn {
namespace {

// In the order in which cuDNN reads them.
constexpr const char* kLists[] = {"maxGridSize", "maxBlockSize"};
constexpr const char* kNumbers[] = {"regsPerBlock",
                                    "multiProcessorCount",
                                    "warpSize",
                                    "maxSharedMemoryPerBlock",
                                    "maxSharedMemoryPerBlockOptin",
                                    "reservedSharedMemoryPerBlock",
                                    "maxRegistersPerSM",
                                    "maxCtasPerSM",
                                    "maxThreadsPerBlock",
                                    "maxThreadsPerSM",
                                    "pciDeviceId",
                                    "isTccDriver",
                                    "supportCoopLaunch",
                                    "totalGlobalMem",
                                    "smClockRateKHz",
                                    "memClockRateKHz",
                                    "l2CacheSize",
                                    "cudaDeviceId",
                                    "deviceVer",
                                    "driverVer"};

Target target_of_json(const std::vector<char>& text) {
  const auto json = nlohmann::json::parse(text.begin(), text.end(), nullptr, false);
  require(json.is_object(), CUDNN_STATUS_BAD_PARAM, "a device description is not a JSON object");
  const auto need = [&](const char* name, auto is) {
    require(json.contains(name), CUDNN_STATUS_BAD_PARAM, std::string("a device description lacks ") + name);
    require(is(json[name]), CUDNN_STATUS_BAD_PARAM,
            std::string("a device description has the wrong type of ") + name);
  };
  const auto is_number = [](const auto& value) { return value.is_number_integer(); };
  const auto is_list = [&](const auto& value) {
    return value.is_array() && value.size() == 3 && std::all_of(value.begin(), value.end(), is_number);
  };
  for (const char* name : kLists) need(name, is_list);
  for (const char* name : kNumbers) need(name, is_number);
  need("deviceName", [](const auto& value) { return value.is_string(); });
  return {
      .compute_capability = json["deviceVer"], .multiprocessors = json["multiProcessorCount"], .device = -1};
}

}  // namespace

Target target_of_device(int device) {
  cudaDeviceProp properties{};
  require(cudaGetDeviceProperties(&properties, device) == cudaSuccess, CUDNN_STATUS_NOT_INITIALIZED,
          "there is no such device");
  return {.compute_capability = properties.major * 100 + properties.minor * 10,
          .multiprocessors = properties.multiProcessorCount,
          .device = device};
}

Target target_of_description(const Descriptor& d) {
  if (d.has(CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION)) {
    return target_of_json(d.all<char>(CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION));
  }
  if (d.has(CUDNN_ATTR_DEVICEPROP_HANDLE)) {
    const auto handle = d.one<cudnnHandle_t>(CUDNN_ATTR_DEVICEPROP_HANDLE);
    require(handle != nullptr, CUDNN_STATUS_BAD_PARAM_NULL_POINTER, "the handle is null");
    return target_of_device(handle->device);
  }
  return target_of_device(d.one_or(CUDNN_ATTR_DEVICEPROP_DEVICE_ID, std::int32_t{0}));
}

}  // namespace lockstep::emulator::cudnn
