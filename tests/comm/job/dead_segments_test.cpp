// SPDX-License-Identifier: Apache-2.0
#include "comm/job/dead_segments.h"

#include <chrono>
#include <cstdlib>
#include <fstream>
#include <string_view>

#include <fcntl.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tests/message_of.h"
#include "tests/temporary_folder.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

class DeadSegmentsTest : public testing::Test {
 protected:
  DeadSegmentsTest() {
    fs::create_directories(memory_);
    fs::create_directories(processes_ / "17");
    fs::create_directories(processes_ / "self");
  }

  void make_segment(const std::string& name, std::chrono::minutes age) const {
    std::ofstream(memory_ / name, std::ios::binary) << std::string(std::size_t{1} << 20, 'x');
    fs::last_write_time(memory_ / name, fs::file_time_type::clock::now() - age);
  }
  void map(const std::string& name) const {
    std::ofstream(processes_ / "17/maps", std::ios::app)
        << "7f01-7f02 rw-s 00000000 00:19 42 " << (memory_ / name).string() << '\n';
  }
  DeadSegments found() const { return dead_segments(memory_, processes_); }

  const TemporaryFolder folder_{"dead_segments"};
  const fs::path memory_ = folder_.path() / "shm", processes_ = folder_.path() / "proc";
};

TEST_F(DeadSegmentsTest, AreSegmentsOfOpenMpiThatNoProcessMaps) {
  EXPECT_EQ(found().files, 0);
  make_segment("vader_segment.node.0.1a0001.0", std::chrono::minutes(10));
  make_segment("sm_segment.node.0.1a0001.1", std::chrono::minutes(10));
  make_segment("vader_segment.node.0.2b0001.0", std::chrono::minutes(10));
  make_segment("vader_segment.node.0.3c0001.0", std::chrono::minutes(0));
  make_segment("lockstep.17.0", std::chrono::minutes(10));
  map("vader_segment.node.0.2b0001.0");
  const DeadSegments dead = found();
  EXPECT_EQ(dead.files, 2);
  EXPECT_EQ(dead.first, "sm_segment.node.0.1a0001.1");
  EXPECT_GE(dead.bytes, std::uint64_t{2} << 20);
  EXPECT_TRUE(fs::exists(memory_ / dead.first)) << "the search must not remove files";
}

TEST_F(DeadSegmentsTest, AreReportedWithTheCommandThatRemovesThem) {
  DeadSegments dead{.files = 12, .bytes = 48 << 20, .first = "vader_segment.a", .capacity = 1 << 30};
  EXPECT_EQ(describe(DeadSegments{}, "node"), "");
  EXPECT_EQ(describe(dead, "node"), "") << "no report while there is enough space";
  dead.capacity = 64 << 20;
  expect_parts(describe(dead, "node7"), {"/dev/shm", "node7", "48 MiB", "12 files", "vader_segment.a"});
}

// Needs no other tools than find and grep: containers often lack fuser.
TEST_F(DeadSegmentsTest, CommandRemovesOnlyOldFilesThatNoProcessMaps) {
  make_segment("vader_segment.a.mapped", std::chrono::minutes(10));
  make_segment("vader_segment.a.unused", std::chrono::minutes(10));
  make_segment("vader_segment.a.new", std::chrono::minutes(0));
  const int file = open((memory_ / "vader_segment.a.mapped").c_str(), O_RDONLY | O_CLOEXEC);
  ASSERT_GE(file, 0);
  void* mapped = mmap(nullptr, 1, PROT_READ, MAP_SHARED, file, 0);
  close(file);
  ASSERT_NE(mapped, MAP_FAILED);
  const fs::path tools = folder_.path() / "bin";
  fs::create_directories(tools);
  for (const char* tool : {"find", "grep"}) {
    const fs::path usual = fs::path("/usr/bin") / tool;
    fs::create_symlink(fs::exists(usual) ? usual : fs::path("/bin") / tool, tools / tool);
  }
  constexpr std::string_view kFolder = "/dev/shm";
  std::string command = describe(
      DeadSegments{.files = 1, .bytes = 1 << 20, .first = "vader_segment.a", .capacity = 1 << 20}, "node");
  command.erase(0, command.find(fmt::format("find {} ", kFolder)));
  command.replace(command.find(kFolder), kFolder.size(),
                  fmt::format("'{}'", fs::canonical(memory_).string()));
  EXPECT_EQ(std::system(fmt::format("export PATH='{}'; {}", tools.string(), command).c_str()), 0) << command;
  munmap(mapped, 1);
  EXPECT_TRUE(fs::exists(memory_ / "vader_segment.a.mapped"));
  EXPECT_FALSE(fs::exists(memory_ / "vader_segment.a.unused"));
  EXPECT_TRUE(fs::exists(memory_ / "vader_segment.a.new"));
}

}  // namespace
}  // namespace lockstep
