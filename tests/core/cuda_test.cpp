// SPDX-License-Identifier: Apache-2.0
//
// Tests of core/cuda on a real GPU.
#include <numeric>
#include <vector>

#include <gtest/gtest.h>

#include "core/error.h"
#include "core/stream.h"
#include "core/tensor/buffer.h"
#include "tests/message_of.h"

namespace lockstep {
namespace {

class Cuda : public testing::Test {
 protected:
  void SetUp() override {
    const CudaStatus status = cuda_status();
    if (status.devices.empty()) GTEST_SKIP() << "no CUDA device: " << status.message;
  }
  Device device_{.kind = DeviceKind::cuda, .index = 0};
};

TEST(CudaStatus, AnswersWithoutThrowing) {
  const CudaStatus status = cuda_status();
  EXPECT_TRUE(status.built);
  EXPECT_FALSE(status.message.empty());
  for (const CudaDevice& device : status.devices) {
    EXPECT_EQ(device.uuid.size(), 40u) << device.uuid;
    EXPECT_EQ(device.is_slice(), device.name.find(" MIG ") != std::string::npos) << device.name;
    EXPECT_GT(device.memory_bytes, 0u);
  }
}

TEST_F(Cuda, MemoryStartsAsZerosAndCopiesBothWays) {
  Stream stream(device_, StreamUse::compute);
  const std::size_t count = 1 << 20;
  const Buffer memory(count * sizeof(int), device_);
  const Buffer pinned(count * sizeof(int), device_, MemoryKind::pinned_host);
  auto* host = reinterpret_cast<int*>(pinned.data());
  host[5] = 1;
  stream.copy(host, memory.data(), memory.bytes());
  stream.synchronize();
  EXPECT_EQ(std::accumulate(host, host + count, 0LL), 0);
  std::iota(host, host + count, 0);
  stream.copy(memory.data(), host, memory.bytes());
  std::vector<int> back(count);
  stream.copy(back.data(), memory.data(), memory.bytes());
  stream.synchronize();
  EXPECT_TRUE(std::equal(back.begin(), back.end(), host));
}

TEST_F(Cuda, TheMemoryOfAnAbsentDeviceIsAConfigurationError) {
  EXPECT_THROW(available_memory({.kind = DeviceKind::cuda, .index = 1000}), ConfigError);
}

TEST_F(Cuda, AnEventOrdersTwoStreams) {
  Stream compute(device_, StreamUse::compute);
  Stream communication(device_, StreamUse::communication);
  Event produced(device_);
  const Buffer memory(1 << 26, device_);
  std::vector<std::byte> host(memory.bytes(), std::byte{7});
  std::vector<std::byte> seen(memory.bytes());
  compute.copy(memory.data(), host.data(), host.size());
  compute.record(produced);
  communication.wait(produced);
  communication.copy(seen.data(), memory.data(), seen.size());
  communication.synchronize();
  EXPECT_TRUE(produced.ready());
  EXPECT_EQ(seen, host);
}

TEST_F(Cuda, HostTasksRunInStreamOrder) {
  Stream stream(device_, StreamUse::compute);
  std::vector<int> order;
  for (int i = 0; i < 100; ++i) stream.enqueue([&order, i] { order.push_back(i); });
  stream.synchronize();
  std::vector<int> expected(100);
  std::iota(expected.begin(), expected.end(), 0);
  EXPECT_EQ(order, expected);
}

// The copy stream joins the recording of the compute stream.
TEST_F(Cuda, HostTasksAreRefusedInEveryRecordedStream) {
  Stream compute(device_, StreamUse::compute);
  Stream copy(device_, StreamUse::copy);
  Event begun(device_), ended(device_);
  std::string reason;
  EXPECT_THROW(compute.record_work(
                   [&] {
                     compute.record(begun);
                     copy.wait(begun);
                     copy.enqueue([] {});
                     copy.record(ended);
                     compute.wait(ended);
                   },
                   reason),
               Error);
}

TEST_F(Cuda, AFailingCallIsNamed) {
  const auto allocate_a_petabyte = [&] { const Buffer memory(std::size_t{1} << 50, device_); };
  expect_parts(message_of(allocate_a_petabyte), {"cudaMalloc"});
}

}  // namespace
}  // namespace lockstep
