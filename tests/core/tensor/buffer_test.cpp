// SPDX-License-Identifier: Apache-2.0
#include "core/tensor/buffer.h"

#include <algorithm>
#include <limits>
#include <span>
#include <string>
#include <utility>

#include <gtest/gtest.h>
#include <unistd.h>

#include "core/backend_factories.h"
#include "core/error.h"
#include "tests/control_group_tree.h"
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

std::size_t bytes_of_the_machine() {
  return static_cast<std::size_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
}

// The system would grant this memory and kill the process at the first write. The size does not depend on the
// available bytes, which other processes change.
TEST(Buffer, MoreThanAvailableIsAMemoryErrorWithTheAvailableBytes) {
  const std::size_t bytes = bytes_of_the_machine();
  const std::string message = message_of<MemoryError>([&] { Buffer(bytes, kCpu); });
  expect_parts(message, {std::to_string(bytes)});
  EXPECT_TRUE(std::ranges::any_of(
      numbers_named_in(message),
      [&](double number) { return number > 0x1p20 && number < static_cast<double>(bytes); }))
      << message << ", without the available bytes";
}

TEST(AvailableMemory, IsBetweenOneMebibyteAndAllMemoryOfTheMachine) {
  EXPECT_GT(available_memory(kCpu), std::size_t{1} << 20);
  EXPECT_LE(available_memory(kCpu), bytes_of_the_machine());
}

// A machine with 8,000,000 KiB of available memory.
struct MemoryTree : ControlGroupTree {
  MemoryTree() { put("proc/meminfo", "MemTotal:  9000000 kB\nMemAvailable:    8000000 kB\n"); }
  std::size_t available() const { return detail::available_cpu_memory(root()); }
  static constexpr std::size_t kMachine = 8'000'000UL * 1024;
};

TEST(AvailableMemory, LimitOfAnEnclosingGroupOfVersion2Counts) {
  const MemoryTree tree;
  tree.put("proc/self/cgroup", "0::/job/step\n");
  tree.mount("/", "/sys/fs/cgroup", "cgroup2 cgroup2 rw,nsdelegate");
  tree.put("sys/fs/cgroup/job/memory.max", "1000000\n");
  tree.put("sys/fs/cgroup/job/memory.current", "300000\n");
  tree.put("sys/fs/cgroup/job/step/memory.max", "max\n");
  tree.put("sys/fs/cgroup/job/step/memory.current", "200000\n");
  EXPECT_EQ(tree.available(), 700'000u);
  tree.put("sys/fs/cgroup/job/memory.stat", "anon 5\ninactive_file 100000\nactive_file 50000\n");
  EXPECT_EQ(tree.available(), 850'000u) << "file cache counts as free";
}

TEST(AvailableMemory, LimitOfVersion1Counts) {
  const MemoryTree tree;
  tree.put("proc/self/cgroup", "4:memory:/docker/ab\n3:cpu,cpuacct:/x\n0::/z\n");
  tree.mount("/", "/sys/fs/cgroup/memory", "cgroup cgroup rw,memory");
  tree.put("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  tree.put("sys/fs/cgroup/memory/memory.usage_in_bytes", "5000000\n");
  tree.put("sys/fs/cgroup/memory/docker/ab/memory.limit_in_bytes", "2000000\n");
  tree.put("sys/fs/cgroup/memory/docker/ab/memory.usage_in_bytes", "500000\n");
  tree.put("sys/fs/cgroup/memory/docker/ab/memory.stat",
           "inactive_file 1\nactive_file 2\ntotal_inactive_file 300000\ntotal_active_file 100000\n");
  EXPECT_EQ(tree.available(), 1'900'000u);
}

TEST(AvailableMemory, GroupWithTheLeastRoomDecides) {
  const MemoryTree tree;
  tree.put("proc/self/cgroup", "0::/job/step\n");
  tree.mount("/", "/sys/fs/cgroup", "cgroup2 cgroup2 rw");
  tree.put("sys/fs/cgroup/job/memory.max", "1000000");
  tree.put("sys/fs/cgroup/job/memory.current", "150000");
  tree.put("sys/fs/cgroup/job/step/memory.max", "400000");
  tree.put("sys/fs/cgroup/job/step/memory.current", "100000");
  EXPECT_EQ(tree.available(), 300'000u) << "the step's own limit";
  tree.put("sys/fs/cgroup/job/memory.current", "950000");
  EXPECT_EQ(tree.available(), 50'000u) << "other steps use the job's memory";
  tree.put("sys/fs/cgroup/job/memory.current", "1000001");
  EXPECT_EQ(tree.available(), 0u) << "more used than the limit";
  tree.put("sys/fs/cgroup/job/memory.stat", "inactive_file 2000000");
  EXPECT_EQ(tree.available(), 300'000u) << "more cache than used memory";
}

TEST(AvailableMemory, IsThatOfTheMachineWithoutLimits) {
  const MemoryTree tree;
  EXPECT_EQ(tree.available(), tree.kMachine) << "no groups";
  tree.put("proc/self/cgroup", "4:memory:/a\n0::/a\n");
  tree.mount("/", "/sys/fs/cgroup", "cgroup2 cgroup2 rw");
  tree.mount("/", "/one", "cgroup cgroup rw,memory");
  EXPECT_EQ(tree.available(), tree.kMachine) << "no files";
  tree.put("sys/fs/cgroup/a/memory.max", "1000");
  EXPECT_EQ(tree.available(), tree.kMachine) << "unknown use";
  tree.put("sys/fs/cgroup/a/memory.current", "100");
  EXPECT_EQ(tree.available(), 900u);
  for (const char* text : {"max", "", "nonsense"}) {
    tree.put("sys/fs/cgroup/a/memory.max", text);
    EXPECT_EQ(tree.available(), tree.kMachine) << text;
  }
  tree.put("one/a/memory.limit_in_bytes", "9223372036854771712");
  tree.put("one/a/memory.usage_in_bytes", "100");
  EXPECT_EQ(tree.available(), tree.kMachine) << "version 1's largest limit";
  tree.put("proc/meminfo", "");
  EXPECT_EQ(tree.available(), std::numeric_limits<std::size_t>::max()) << "nothing is reported";
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
