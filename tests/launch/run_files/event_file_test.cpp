// SPDX-License-Identifier: Apache-2.0
//
// Files for TensorBoard as bytes. That protobuf's own tools, and TensorBoard where it is there, read the same
// in them as stands in metrics.jsonl is in tensorboard_test.py.
#include "launch/run_files/event_file.h"

#include <fstream>
#include <limits>
#include <sstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "core/crc32c.h"
#include "tests/data/temporary_folder.h"

namespace lockstep {
namespace {

TEST(Crc32c, IsCastagnolis) {
  EXPECT_EQ(crc32c("123456789"), 0xe3069283u);
  EXPECT_EQ(crc32c(""), 0u);
  EXPECT_EQ(crc32c(std::string(32, '\xff')), 0x62a8ab43u) << "RFC 3720, B.4";
}

class EventFiles : public testing::Test {
 protected:
  static std::string bytes_of(const EventFile& file) {
    std::ifstream stream(file.path(), std::ios::binary);
    std::ostringstream bytes;
    bytes << stream.rdbuf();
    return bytes.str();
  }
  // With an event at each of these steps.
  EventFile written(std::initializer_list<std::int64_t> steps) const {
    const EventFile file = EventFile::begin(folder_);
    for (const std::int64_t step : steps) EXPECT_EQ(file.add(step, kScalars), 0);
    return file;
  }

  const std::vector<Scalar> kScalars = {{.tag = "loss", .value = 0.5}};
  TemporaryFolder temporary_;
  std::filesystem::path folder_ = temporary_.path() / "tensorboard";
};

TEST_F(EventFiles, AreWhatTensorBoardWrites) {
  const std::string payload(
      "\x09\0\0\0\0\0\0\xf8\x3f"  // wall_time 1.5
      "\x10\xac\x02"              // step 300
      "\x2a\x0c\x0a\x0a\x0a\x03"  // a summary of 12 bytes, its value of 10, and that one's tag of 3
      "a/b\x15\0\0\x80\x3e",      // simple_value 0.25
      26);
  const std::string record = event_record(1.5, 300, std::vector<Scalar>{{.tag = "a/b", .value = 0.25}});
  EXPECT_EQ(record.substr(0, 8), std::string("\x1a\0\0\0\0\0\0\0", 8));
  EXPECT_EQ(record.substr(12, record.size() - 16), payload);
}

// A text tells of a start, which is where the training went on: behind the last epoch that has ended.
TEST_F(EventFiles, OfStartsGoOnWhereTheTrainingDoes) {
  const EventFile file = written({5});
  EXPECT_EQ(file.add(7, EventText{.tag = "run/config", .markdown = "of step/loss"}), 0);
  const std::string kept = bytes_of(file);
  EXPECT_EQ(file.add(8, EventText{.tag = "run/config", .markdown = "of step/loss"}), 0);
  EXPECT_EQ(bytes_of(EventFile::continue_after(folder_, 5, 7)), kept);
  EXPECT_EQ(file.add(7, std::vector<Histogram>{{.tag = "weights/step/", .limits = {0}, .counts = {1}}}), 0);
  EXPECT_EQ(bytes_of(EventFile::continue_after(folder_, 5, 7)), kept) << "of an epoch that was cut short";
}

TEST_F(EventFiles, LeaveOutWhatIsNotFinite) {
  const std::vector<Scalar> all = {{.tag = "nan", .value = std::numeric_limits<double>::quiet_NaN()},
                                   {.tag = "infinity", .value = std::numeric_limits<double>::infinity()},
                                   {.tag = "loss", .value = 0.5}};
  EXPECT_EQ(event_record(1, 2, all), event_record(1, 2, kScalars));
}

TEST_F(EventFiles, OfAnEarlierRunStay) {
  const std::string before = bytes_of(written({5, 10}));
  const EventFile second = written({5});
  EXPECT_EQ(second.path().parent_path(), folder_);
  int files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder_.string() + ".1")) {
    ++files;
    std::ifstream stream(entry.path(), std::ios::binary);
    std::ostringstream bytes;
    bytes << stream.rdbuf();
    EXPECT_EQ(bytes.str(), before);
  }
  EXPECT_EQ(files, 1);
}

TEST_F(EventFiles, GoOnBehindTheStepThatWasSaved) {
  const EventFile file = written({5, 10, 15});
  const std::string all = bytes_of(file);
  const std::size_t record = event_record(1, 5, kScalars).size();
  const EventFile goes_on = EventFile::continue_after(folder_, 10, 10);
  EXPECT_EQ(goes_on.path(), file.path());
  EXPECT_EQ(bytes_of(goes_on), all.substr(0, all.size() - record));
  EXPECT_EQ(goes_on.add(15, kScalars), 0);
  EXPECT_EQ(bytes_of(goes_on).size(), all.size());
}

// The series goes on where the training does, the lines of epochs where the last one ended that was saved.
TEST_F(EventFiles, OfSingleStepsGoOnBehindAStepOfTheirOwn) {
  const EventFile file = written({5});
  const std::vector<Scalar> series = {{.tag = "step/loss", .value = 0.5}};
  for (const std::int64_t step : {6, 7}) EXPECT_EQ(file.add(step, series), 0);
  const std::string kept = bytes_of(file);
  EXPECT_EQ(file.add(7, kScalars), 0) << "an epoch that was cut short";
  EXPECT_EQ(file.add(8, series), 0);
  EXPECT_EQ(bytes_of(EventFile::continue_after(folder_, 5, 7)), kept);
}

// Whatever half of a record is left of a run that was killed, or of a disk that was full.
TEST_F(EventFiles, GoOnBehindWhatIsWhole) {
  const EventFile file = written({5, 10});
  const std::string all = bytes_of(file);
  const std::size_t record = event_record(1, 5, kScalars).size();
  for (std::size_t cut = 1; cut <= record; ++cut) {
    std::ofstream(file.path(), std::ios::binary) << all.substr(0, all.size() - cut);
    EXPECT_EQ(bytes_of(EventFile::continue_after(folder_, 10, 10)), all.substr(0, all.size() - record))
        << cut;
  }
  for (std::size_t place = all.size() - record; place < all.size(); ++place) {
    std::string damaged = all;
    damaged[place] = static_cast<char>(damaged[place] ^ 0x10);
    std::ofstream(file.path(), std::ios::binary) << damaged;
    EXPECT_EQ(bytes_of(EventFile::continue_after(folder_, 10, 10)), all.substr(0, all.size() - record))
        << place;
  }
}

TEST_F(EventFiles, BeginWhereThereIsNothingToGoOnWith) {
  const std::size_t empty = bytes_of(written({})).size();
  std::filesystem::remove_all(folder_);
  EXPECT_EQ(bytes_of(EventFile::continue_after(folder_, 10, 10)).size(), empty);
}

}  // namespace
}  // namespace lockstep
