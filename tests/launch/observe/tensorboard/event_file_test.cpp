// SPDX-License-Identifier: Apache-2.0
//
// The bytes of TensorBoard files. tensorboard_test.py checks that protobuf's tools, and TensorBoard if
// installed, read the values of metrics.jsonl from them.
#include "launch/observe/tensorboard/event_file.h"

#include <fstream>
#include <limits>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "core/files/crc32c.h"
#include "core/files/file_text.h"
#include "tests/temporary_folder.h"

namespace lockstep {
namespace {

TEST(Crc32c, UsesTheCastagnoliPolynomial) {
  EXPECT_EQ(crc32c("123456789"), 0xe3069283u);
  EXPECT_EQ(crc32c(""), 0u);
  EXPECT_EQ(crc32c(std::string(32, '\xff')), 0x62a8ab43u) << "RFC 3720, B.4";
}

class EventFiles : public testing::Test {
 protected:
  static std::string bytes_of(const EventFile& file) { return file_text(file.path()); }
  // Writes a file with an event at each of these steps.
  EventFile written(std::initializer_list<std::int64_t> steps) const {
    const EventFile file = EventFile::begin(folder_);
    for (const std::int64_t step : steps) EXPECT_EQ(file.add(step, kScalars), 0);
    return file;
  }

  static int files_in(const std::filesystem::path& folder) {
    return static_cast<int>(std::distance(std::filesystem::directory_iterator(folder), {}));
  }

  const std::vector<Scalar> kScalars = {{.tag = "loss", .value = 0.5}};
  TemporaryFolder temporary_;
  std::filesystem::path folder_ = temporary_.path() / "tensorboard";
};

TEST_F(EventFiles, HaveTheBytesThatTensorBoardWrites) {
  const std::string payload(
      "\x09\0\0\0\0\0\0\xf8\x3f"  // wall_time 1.5
      "\x10\xac\x02"              // step 300
      "\x2a\x0c\x0a\x0a\x0a\x03"  // a summary of 12 bytes, its value of 10, its tag of 3
      "a/b\x15\0\0\x80\x3e",      // simple_value 0.25
      26);
  const std::string record = event_record(1.5, 300, std::vector<Scalar>{{.tag = "a/b", .value = 0.25}});
  EXPECT_EQ(record.substr(0, 8), std::string("\x1a\0\0\0\0\0\0\0", 8));
  EXPECT_EQ(record.substr(12, record.size() - 16), payload);
}

TEST_F(EventFiles, OmitValuesThatAreNotFinite) {
  const std::vector<Scalar> all = {{.tag = "nan", .value = std::numeric_limits<double>::quiet_NaN()},
                                   {.tag = "infinity", .value = std::numeric_limits<double>::infinity()},
                                   {.tag = "infinite as a float", .value = 1e39},
                                   {.tag = "loss", .value = 0.5}};
  EXPECT_EQ(event_record(1, 2, all), event_record(1, 2, kScalars));
}

TEST_F(EventFiles, KeepFilesOfAnEarlierRun) {
  const std::string before = bytes_of(written({5, 10}));
  const EventFile second = written({5});
  EXPECT_EQ(second.path().parent_path(), folder_);
  const std::filesystem::path earlier = folder_.string() + ".1";
  ASSERT_EQ(files_in(earlier), 1);
  EXPECT_EQ(file_text(std::filesystem::directory_iterator(earlier)->path()), before);
}

// A reader may have the file open, and a killed run may have left half a record at its end.
TEST_F(EventFiles, ResumedRunAddsAFileAndKeepsTheEarlierOnes) {
  const EventFile first = written({5, 10, 15});
  std::ofstream(first.path(), std::ios::app) << "half";
  const std::string before = bytes_of(first);
  std::string last = first.path().filename();
  for (int start = 0; start < 3; ++start) {  // within one second
    const EventFile next = EventFile::continue_after(folder_, 10);
    EXPECT_GT(next.path().filename().string(), last) << "readers sort files by name";
    last = next.path().filename();
    EXPECT_EQ(next.add(11, kScalars), 0);
  }
  EXPECT_EQ(bytes_of(first), before);
  EXPECT_EQ(files_in(folder_), 4);
}

TEST_F(EventFiles, ResumedRunRecordsItsFirstStep) {
  const std::string payload(
      "\x09\0\0\0\0\0\0\xf8\x3f"  // wall_time 1.5
      "\x10\x0b"                  // step 11
      "\x3a\x02\x08\x01",         // a session log of 2 bytes: START
      15);
  const std::string record = start_record(1.5, 11);
  EXPECT_EQ(record.substr(12, record.size() - 16), payload);
  written({5, 10, 15});
  const std::string bytes = bytes_of(EventFile::continue_after(folder_, 10));
  EXPECT_NE(bytes.find(payload.substr(9)), std::string::npos);
}

TEST_F(EventFiles, ResumedRunWithoutEarlierFilesStartsANewFile) {
  const std::size_t empty = bytes_of(written({})).size();
  std::filesystem::remove_all(folder_);
  EXPECT_EQ(bytes_of(EventFile::continue_after(folder_, 10)).size(), empty);
}

}  // namespace
}  // namespace lockstep
