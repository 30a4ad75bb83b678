// SPDX-License-Identifier: Apache-2.0
//
// HDF5 files in a folder, damaged and locked files, and the process that reads them.
#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include <fcntl.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <hdf5.h>
#include <poll.h>
#include <sys/file.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "core/error.h"
#include "core/system/job_signals.h"
#include "data/hdf5/hdf5_protocol.h"
#include "tests/data/hdf5/hdf5_writer.h"
#include "tests/failing_call.h"
#include "tests/message_of.h"
#include "tests/temporary_folder.h"

namespace lockstep {
namespace {

void write_train(const TemporaryFolder& folder) {
  const Hdf5Writer train(folder.path() / "train.h5");
  train.put("images", {kImages, kHeight, kWidth, kChannels}, H5T_NATIVE_UINT8, pixels(), true);
  train.put("labels", {kImages}, H5T_NATIVE_INT64, kLabels);
}

TEST(Hdf5, TestFilesWithoutLabelsArePassedOver) {
  const TemporaryFolder folder;
  using Labels = std::vector<std::int64_t>;
  write_two(folder, "train.h5", H5T_NATIVE_UINT8, Bytes(30, 9));
  for (const Labels& unlabelled : {Labels{}, Labels{-1, -1}}) {
    write_two(folder, "test.h5", H5T_NATIVE_UINT8, Bytes(30, 1), unlabelled);
    expect_parts(message_of<DataError>([&] { open_dataset(options_of(folder), Split::test); }),
                 {"test.h5", "data.test_split", "data.validation_share"});
    write_two(folder, "val.h5", H5T_NATIVE_UINT8, Bytes(30, 2));
    testing::internal::CaptureStderr();
    const auto test = open_dataset(options_of(folder), Split::test);
    const std::string log = testing::internal::GetCapturedStderr();
    EXPECT_EQ(std::ranges::count(lines_naming(log, "data.test_split"), '\n'), 1) << log;
    expect_parts(lines_naming(log, "warning"), {"test.h5", "val.h5"});
    Bytes image(15);
    test->read(0, image);
    EXPECT_EQ(image, Bytes(15, 2));
    folder.remove("val.h5");
  }
}

TEST(Hdf5, AFileOfTrainingSamplesMayBeNamedByItsPath) {
  const TemporaryFolder folder;
  write_train(folder);
  DatasetOptions options = options_of(folder);
  options.path = folder.path() / "train.h5";
  expect_all(*open_dataset(options, Split::train));
  expect_parts(message_of<DataError>([&] { open_dataset(options, Split::test); }),
               {"train.h5", "images, labels", "data.validation_share"});
  DatasetOptions named = options;
  named.hdf5 = {.images = "images", .labels = "labels"};
  expect_parts(message_of<ConfigError>([&] { open_dataset(named, Split::test); }),
               {"train.h5", "data.hdf5.images", "{split}", "data.validation_share"});
  options.validation_share = 0.5;
  const std::int64_t train = open_dataset(options, Split::train)->size();
  const std::int64_t test = open_dataset(options, Split::test)->size();
  EXPECT_GT(train, 0);
  EXPECT_GT(test, 0);
  EXPECT_EQ(train + test, kImages);
}

TEST(Hdf5, AFileOfBothSplitsMayBeNamedByItsPath) {
  const TemporaryFolder folder;
  const std::vector<std::int64_t> labels = {0, 1};
  {
    const Hdf5Writer file(folder.path() / "digits_train_test.h5");
    file.put("X_train", {2, 3, 5}, H5T_NATIVE_UINT8, Bytes(30, 1));
    file.put("y_train", {2}, H5T_NATIVE_INT64, labels);
    file.put("X_test", {2, 3, 5}, H5T_NATIVE_UINT8, Bytes(30, 2));
    file.put("y_test", {2}, H5T_NATIVE_INT64, labels);
  }
  write_two(folder, "train_test.h5", H5T_NATIVE_UINT8, Bytes(30, 9));
  DatasetOptions options = options_of(folder);
  options.path = folder.path() / "digits_train_test.h5";
  for (const Split split : {Split::train, Split::test}) {
    Bytes image(15);
    open_dataset(options, split)->read(1, image);
    EXPECT_EQ(image, Bytes(15, split == Split::train ? std::uint8_t{1} : std::uint8_t{2}));
  }
  // Arrays whose names contain no split are not used for both.
  options.path = folder.path() / "train_test.h5";
  expect_parts(message_of<DataError>([&] { open_dataset(options, Split::test); }),
               {"train_test.h5", "images, labels", "data.hdf5.images"});
}

TEST(Hdf5, FilesWithOtherEndingsAreNotUsed) {
  const TemporaryFolder folder;
  for (const char* name : {"cells.Human_Train.H5", "val.h5"})  // ".Human" begins like an ending
    write_two(folder, name, H5T_NATIVE_UINT8, Bytes(30, 9));
  for (const char* name :
       {"test.html", "train.html", "train_and_test.html", "test.html.bak", "train.html~", "train.html.tmp~"})
    folder.write(name, {1});
  testing::internal::CaptureStderr();
  for (const Split split : {Split::train, Split::test})
    EXPECT_EQ(open_dataset(options_of(folder), split)->size(), 2);
  EXPECT_EQ(lines_naming(testing::internal::GetCapturedStderr(), ".html"), "");
}

TEST(Hdf5, MissingShardsAndSkippedCopiesAreNamedOnce) {
  const TemporaryFolder folder;
  for (const char* name : {"train-00000-of-00004.h5", "test-00000-of-00003.h5"})
    write_two(folder, name, H5T_NATIVE_UINT8, Bytes(30, 9));
  folder.write("train-00000-of-00004.h5.bak", {1});
  testing::internal::CaptureStderr();
  for (const Split split : {Split::train, Split::test}) open_dataset(options_of(folder), split);
  const std::string log = testing::internal::GetCapturedStderr();
  const std::string warnings = lines_naming(log, "warning");
  EXPECT_EQ(std::ranges::count(warnings, '\n'), 2) << log;
  expect_parts(lines_naming(warnings, "train-"), {" 1 ", " 4 "});
  expect_parts(lines_naming(warnings, "test-"), {" 1 ", " 3 "});
  EXPECT_EQ(std::ranges::count(lines_naming(log, "train-00000-of-00004.h5.bak"), '\n'), 1) << log;
}

TEST(Hdf5, AFileThatIsBeingWrittenIsNotCalledDamaged) {
  const TemporaryFolder folder;
  write_train(folder);
  const int writer = open((folder.path() / "train.h5").c_str(), O_RDONLY | O_CLOEXEC);
  ASSERT_EQ(flock(writer, LOCK_EX), 0);
  expect_parts(message_of<IoError>([&] { open_dataset(options_of(folder), Split::train); }),
               {"train.h5", "open for writing"});
  close(writer);
  expect_all(*open_dataset(options_of(folder), Split::train));
}

// Root may read every file, so a test that runs as root takes another user's rights.
TEST(Hdf5, AFileWithoutPermissionIsNotCalledDamaged) {
  const TemporaryFolder folder;
  write_train(folder);
  std::filesystem::permissions(folder.path(), static_cast<std::filesystem::perms>(0755));
  std::filesystem::permissions(folder.path() / "train.h5", std::filesystem::perms::none);
  constexpr uid_t kNobody = 65534;
  const uid_t user = geteuid();
  if (user == 0) {
    ASSERT_EQ(seteuid(kNobody), 0);
  }
  const std::string error = message_of<IoError>([&] { open_dataset(options_of(folder), Split::train); });
  ASSERT_EQ(seteuid(user), 0);
  expect_parts(error, {"train.h5", "Permission denied"});
}

int read_without_locks(const DatasetOptions& options) {
  CHECK(let_call_fail(SYS_flock, ENOLCK), "{}", std::strerror(errno));  // as on NFS without a lock service
  expect_all(*open_dataset(options, Split::train));
  return testing::Test::HasFailure() ? 1 : 0;
}

TEST(Hdf5, FilesAreReadWhereTheyCannotBeLocked) {
  if (prctl(PR_GET_SECCOMP) < 0) GTEST_SKIP() << "needs a kernel with seccomp";
  const TemporaryFolder folder;
  write_train(folder);
  EXPECT_EXIT(std::_Exit(read_without_locks(options_of(folder))), testing::ExitedWithCode(0), "");
}

TEST(Hdf5, TruncatedFilesAreRefusedOrReadWhole) {
  const TemporaryFolder folder;
  write_train(folder);
  std::ifstream file(folder.path() / "train.h5", std::ios::binary);
  const Bytes whole{std::istreambuf_iterator<char>(file), {}};
  int refused = 0;
  for (std::size_t length = 0; length < whole.size(); length += 97) {
    folder.write("train.h5", Bytes(whole.begin(), whole.begin() + static_cast<long>(length)));
    try {
      expect_all(*open_dataset(options_of(folder), Split::train));
    } catch (const DataError& error) {
      ++refused;
      expect_parts(error.what(), {"train.h5: "});
    }
  }
  EXPECT_GT(refused, 10);
  folder.write("train.h5", whole);
  expect_parts(message_of<IoError>([&] { open_dataset(options_of(folder), Split::test); }), {"test.h5"});
}

// Each test starts a process, so it tests every 9th byte, and of the bytes far from any other than 0, which
// are unused space, every 99th.
TEST(Hdf5, AFlippedByteIsRefusedOrRead) {
  const TemporaryFolder folder;
  write_train(folder);
  std::ifstream file(folder.path() / "train.h5", std::ios::binary);
  const Bytes whole{std::istreambuf_iterator<char>(file), {}};
  const auto is_used = [&](std::size_t at) {
    const auto first = whole.begin() + static_cast<std::ptrdiff_t>(at - std::min<std::size_t>(at, 8));
    const auto last = whole.begin() + static_cast<std::ptrdiff_t>(std::min(at + 9, whole.size()));
    return std::any_of(first, last, [](std::uint8_t byte) { return byte != 0; });
  };
  int refused = 0;
  for (std::size_t at = 0; at < whole.size(); at += 9) {
    if (!is_used(at) && at % 11 != 0) continue;
    Bytes bytes = whole;
    bytes[at] ^= static_cast<std::uint8_t>(1 << (at % 8));
    folder.remove("train.h5");  // ext4 writes a file to the disk if it is overwritten
    folder.write("train.h5", bytes);
    try {
      const auto dataset = open_dataset(options_of(folder), Split::train);
      Bytes image(static_cast<std::size_t>(dataset->image_shape().bytes()));
      for (std::int64_t i = 0; i < dataset->size(); ++i) dataset->read(i, image);
    } catch (const DataError& error) {
      ++refused;
      expect_parts(error.what(), {"train.h5: "});
    }
  }
  EXPECT_GT(refused, 10);
}

// The process that reads the only split that this thread has open.
pid_t reader_process() {
  std::ifstream children("/proc/thread-self/children");
  pid_t reader = 0;
  children >> reader;
  return reader;
}

// The library crashes on some damaged files.
TEST(Hdf5, ACrashOfTheLibraryIsAnErrorThatNamesTheFile) {
  const TemporaryFolder folder;
  write_train(folder);
  const auto dataset = open_dataset(options_of(folder), Split::train);
  expect_all(*dataset);
  const pid_t reader = reader_process();
  ASSERT_GT(reader, 0) << "a separate process must read the file";
  kill(reader, SIGSEGV);
  Bytes image(static_cast<std::size_t>(dataset->image_shape().bytes()));
  for (int time = 0; time < 2; ++time)
    expect_parts(message_of<DataError>([&] { dataset->read(0, image); }), {"train.h5", "HDF5"});
}

// After a late answer, later samples would have each other's pixels.
TEST(Hdf5, ASampleThatTakesTooLongEndsTheReading) {
  const TemporaryFolder folder;
  write_train(folder);
  DatasetOptions options = options_of(folder);
  options.hdf5.longest_answer = std::chrono::seconds(1);
  const auto dataset = open_dataset(options, Split::train);
  const pid_t reader = reader_process();
  ASSERT_GT(reader, 0);
  Bytes image(static_cast<std::size_t>(dataset->image_shape().bytes()));
  kill(reader, SIGSTOP);
  expect_parts(message_of<DataError>([&] { dataset->read(0, image); }), {"train.h5", "1 s"});
  kill(reader, SIGCONT);
  expect_parts(message_of<DataError>([&] { dataset->read(1, image); }), {"train.h5"});
}

// Ctrl-C and mpirun send these signals to the whole process group. Training must be able to read until it has
// saved.
TEST(Hdf5, SignalsToTheJobDoNotEndTheReader) {
  const TemporaryFolder folder;
  write_train(folder);
  const auto dataset = open_dataset(options_of(folder), Split::train);
  const pid_t reader = reader_process();
  ASSERT_GT(reader, 0);
  for (const JobSignal& each : kStopSignals) kill(reader, each.number);
  kill(reader, SIGUSR2);
  expect_all(*dataset);
}

// Otherwise a thread that waits for the end of a pipe, such as the signal watch, would wait for the reader,
// too.
TEST(Hdf5, TheReaderKeepsNoFilesOfTheJobOpen) {
  const TemporaryFolder folder;
  write_train(folder);
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  const auto dataset = open_dataset(options_of(folder), Split::train);
  close(ends[1]);
  pollfd end{.fd = ends[0], .events = POLLIN, .revents = 0};
  EXPECT_EQ(poll(&end, 1, 0), 1) << "the reader must not keep the other end open";
  close(ends[0]);
  expect_all(*dataset);
}

TEST(Hdf5, TheReaderHasAMemoryLimit) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "sanitizers map more than any limit";
#else
  const TemporaryFolder folder;
  write_train(folder);
  const auto dataset = open_dataset(options_of(folder), Split::train);
  std::ifstream limits(fmt::format("/proc/{}/limits", reader_process()));
  std::string memory;
  for (std::string line; std::getline(limits, line);)
    if (line.starts_with("Max address space")) memory = line;
  EXPECT_NE(memory.find(fmt::format(" {} ", kMostHdf5Memory)), std::string::npos) << memory;
#endif
}

}  // namespace
}  // namespace lockstep
