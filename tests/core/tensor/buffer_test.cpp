// SPDX-License-Identifier: Apache-2.0
#include "core/tensor/buffer.h"

#include <algorithm>
#include <limits>
#include <span>
#include <string>
#include <utility>

#include <gtest/gtest.h>
#include <unistd.h>

#include "core/error.h"
#include "tests/message_of.h"

namespace lockstep {
namespace {

constexpr Device kCpu = {};

bool is_aligned(const void* address, std::size_t alignment) {
  return reinterpret_cast<std::uintptr_t>(address) % alignment == 0;
}

// An adopted buffer that counts its releases.
Buffer counted(int& releases, std::byte* memory, std::size_t bytes) {
  return Buffer::adopt(memory, bytes, kCpu, [&releases](void*) { ++releases; });
}

TEST(Buffer, IsZeroedAndAligned) {
  for (const std::size_t bytes : {1UL, 63UL, 64UL, 65UL, 100'000UL, 1UL << 20, (1UL << 20) + 1, 5UL << 20}) {
    for (int round = 0; round < 2; ++round) {  // the second buffer may get the first one's memory
      const Buffer buffer(bytes, kCpu);
      EXPECT_EQ(buffer.bytes(), bytes);
      EXPECT_TRUE(is_aligned(buffer.data(), bytes >= (1 << 20) ? 4096 : kAlignment)) << bytes;
      const std::span<std::byte> memory(buffer.data(), bytes);
      EXPECT_TRUE(std::all_of(memory.begin(), memory.end(), [](std::byte b) { return b == std::byte{0}; }));
      std::fill(memory.begin(), memory.end(), std::byte{0xff});
    }
  }
}

TEST(Buffer, ZeroBytesAllocateNothing) {
  const Buffer empty;
  EXPECT_EQ(empty.data(), nullptr);
  EXPECT_EQ(empty.bytes(), 0u);
  const Buffer zero(0, kCpu);
  EXPECT_EQ(zero.data(), nullptr);
}

TEST(Buffer, PinnedMemoryOfTheCpuIsPlainMemory) {
  const Buffer buffer(128, kCpu, MemoryKind::pinned_host);
  EXPECT_NE(buffer.data(), nullptr);
  EXPECT_EQ(buffer.device(), kCpu);
}

TEST(Buffer, TooManyBytesAreAnError) {
  EXPECT_THROW(Buffer(std::numeric_limits<std::size_t>::max(), kCpu), Error);
  EXPECT_THROW(Buffer(std::numeric_limits<std::size_t>::max() - 10, kCpu), Error);
}

// The system would grant this memory and kill the process at the first write.
TEST(Buffer, MoreThanAvailableIsAMemoryErrorWithTheAvailableBytes) {
  const std::size_t available = available_memory(kCpu);
  ASSERT_GT(available, std::size_t{1} << 20);
  const std::size_t bytes = 2 * available;
  const std::string message = message_of<MemoryError>([&] { Buffer(bytes, kCpu); });
  expect_parts(message, {std::to_string(bytes)});
  EXPECT_TRUE(std::ranges::any_of(numbers_named_in(message),
                                  [&](double number) {
                                    return number > 0.5 * static_cast<double>(available) &&
                                           number < static_cast<double>(bytes);
                                  }))
      << message << ", of which about " << available << " bytes are available";
}

TEST(AvailableMemory, IsBetweenOneMebibyteAndAllMemoryOfTheMachine) {
  const auto pages = static_cast<std::size_t>(sysconf(_SC_PHYS_PAGES));
  EXPECT_GT(available_memory(kCpu), std::size_t{1} << 20);
  EXPECT_LE(available_memory(kCpu), pages * static_cast<std::size_t>(sysconf(_SC_PAGESIZE)));
}

TEST(Buffer, ContainsOnlyRangesInsideIt) {
  const Buffer buffer(256, kCpu);
  EXPECT_TRUE(buffer.contains(buffer.data(), 256));
  EXPECT_TRUE(buffer.contains(buffer.data() + 256, 0));
  EXPECT_TRUE(buffer.contains(buffer.data() + 100, 156));
  EXPECT_FALSE(buffer.contains(buffer.data() + 100, 157));
  EXPECT_FALSE(buffer.contains(buffer.data() + 100, std::numeric_limits<std::size_t>::max()));
  int elsewhere = 0;
  EXPECT_FALSE(buffer.contains(&elsewhere, sizeof(elsewhere)));
}

TEST(Buffer, MovingTransfersTheMemory) {
  Buffer first(64, kCpu);
  std::byte* const data = first.data();
  Buffer second(std::move(first));
  EXPECT_EQ(second.data(), data);
  EXPECT_EQ(first.data(), nullptr);  // NOLINT: a moved-from buffer is empty
  EXPECT_EQ(first.bytes(), 0u);
}

TEST(Buffer, ReleasesAdoptedMemoryOnce) {
  std::byte memory[64] = {};
  int releases = 0;
  {
    Buffer buffer = counted(releases, memory, sizeof(memory));
    Buffer moved(std::move(buffer));
    EXPECT_EQ(moved.data(), memory);
    EXPECT_EQ(releases, 0);
  }
  EXPECT_EQ(releases, 1);
}

TEST(Buffer, AssigningReleasesTheOldMemoryImmediately) {
  std::byte memory[2][64] = {};
  int first = 0;
  int second = 0;
  {
    Buffer target = counted(first, memory[0], 64);
    Buffer source = counted(second, memory[1], 64);
    target = std::move(source);
    EXPECT_EQ(first, 1);
    EXPECT_EQ(second, 0);
    EXPECT_EQ(target.data(), memory[1]);
    EXPECT_EQ(source.data(), nullptr);  // NOLINT: a moved-from buffer is empty
  }
  EXPECT_EQ(first, 1);
  EXPECT_EQ(second, 1);
}

TEST(Buffer, AMissingDeviceIsAConfigError) {
  if (!cuda_status().devices.empty()) GTEST_SKIP() << "there is a CUDA device";
  EXPECT_THROW(Buffer(64, Device{.kind = DeviceKind::cuda, .index = 0}), ConfigError);
}

}  // namespace
}  // namespace lockstep
