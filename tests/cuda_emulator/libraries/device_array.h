// SPDX-License-Identifier: Apache-2.0
//
// Memory on the emulated device for the tests of the emulated libraries.
#pragma once

#include <cstring>
#include <vector>

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include "tests/kernels/affine_reference.h"

namespace lockstep {

class DeviceArray {
 public:
  explicit DeviceArray(std::size_t bytes) : bytes_(bytes) {
    EXPECT_EQ(cudaMalloc(&data_, bytes > 0 ? bytes : 1), cudaSuccess);
  }
  DeviceArray(const Values& values, DType type) : DeviceArray(values.size() * size_of(type)) {
    const std::vector<std::byte> elements = to_elements(values, type);
    EXPECT_EQ(cudaMemcpy(data_, elements.data(), bytes_, cudaMemcpyHostToDevice), cudaSuccess);
  }
  DeviceArray(const DeviceArray&) = delete;
  DeviceArray& operator=(const DeviceArray&) = delete;
  ~DeviceArray() { cudaFree(data_); }

  void* at(std::size_t byte) const { return static_cast<std::byte*>(data_) + byte; }
  void* data() const { return data_; }
  std::size_t bytes() const { return bytes_; }
  // Waits for the device and copies the elements to the host.
  Values read(DType type) const {
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    std::vector<std::byte> elements(bytes_);
    EXPECT_EQ(cudaMemcpy(elements.data(), data_, bytes_, cudaMemcpyDeviceToHost), cudaSuccess);
    return from_elements(elements.data(), bytes_, type);
  }
  // Fills the memory with NaN, in every type.
  void poison() const { EXPECT_EQ(cudaMemset(data_, 0xff, bytes_), cudaSuccess); }

 private:
  void* data_ = nullptr;
  std::size_t bytes_;
};

}  // namespace lockstep
