// SPDX-License-Identifier: Apache-2.0
//
// Fixture for tests of the emulated runtime: streams and events of device 0, and numbers in its memory.
#pragma once

#include <vector>

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include "tests/cuda_emulator/runtime/runtime.h"

namespace lockstep::emulator {

#define EXPECT_CUDA(status, call) EXPECT_EQ(call, status) << cudaGetErrorString(cudaPeekAtLastError())
#define ASSERT_OK(call) ASSERT_EQ(call, cudaSuccess)

class Runtime : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_OK(cudaSetDevice(0));
    for (cudaStream_t& stream : streams_)
      ASSERT_OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    for (cudaEvent_t& event : events_) ASSERT_OK(cudaEventCreate(&event));
  }
  void TearDown() override {
    for (const cudaStream_t stream : streams_) {
      cudaStreamSynchronize(stream);
      EXPECT_EQ(cudaStreamDestroy(stream), cudaSuccess);
    }
    for (const cudaEvent_t event : events_) EXPECT_EQ(cudaEventDestroy(event), cudaSuccess);
    cudaGetLastError();
  }

  cudaStream_t first() const { return streams_[0]; }
  cudaStream_t second() const { return streams_[1]; }
  cudaEvent_t event(int i = 0) const { return events_[static_cast<std::size_t>(i)]; }

  std::vector<cudaStream_t> streams_ = std::vector<cudaStream_t>(2);
  std::vector<cudaEvent_t> events_ = std::vector<cudaEvent_t>(3);
};

// Device memory with one number.
class Number {
 public:
  explicit Number(int value) {
    EXPECT_EQ(cudaMalloc(reinterpret_cast<void**>(&data_), sizeof(int)), cudaSuccess);
    EXPECT_EQ(cudaMemcpy(data_, &value, sizeof(int), cudaMemcpyHostToDevice), cudaSuccess);
  }
  ~Number() { EXPECT_EQ(cudaFree(data_), cudaSuccess); }
  Number(const Number&) = delete;
  Number& operator=(const Number&) = delete;

  int* data() const { return data_; }
  int get() const {
    int value = 0;
    EXPECT_EQ(cudaMemcpy(&value, data_, sizeof(int), cudaMemcpyDeviceToHost), cudaSuccess);
    return value;
  }

 private:
  int* data_ = nullptr;
};

inline void add(cudaStream_t stream, const Number& number, int value) {
  EXPECT_EQ(enqueue(stream, "add", [data = number.data(), value] { *data = *data * 10 + value; }),
            cudaSuccess);
}

// As add(), but atomic, for unordered work: there is no data race in any order.
inline void add_unordered(cudaStream_t stream, const Number& number, int value) {
  EXPECT_EQ(enqueue(stream, "add",
                    [data = number.data(), value] {
                      const std::atomic_ref<int> sum(*data);
                      for (int old = sum; !sum.compare_exchange_weak(old, old * 10 + value);) continue;
                    }),
            cudaSuccess);
}

}  // namespace lockstep::emulator
