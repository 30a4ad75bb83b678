// SPDX-License-Identifier: Apache-2.0
//
// `lockstep pack` and `lockstep inspect`, and training on the records that they write and read.
#include <csignal>
#include <fstream>
#include <iterator>
#include <map>
#include <random>
#include <regex>
#include <thread>

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <sys/wait.h>

#include "core/error.h"
#include "tests/data/jpeg_files.h"
#include "tests/launch/program/program.h"
#include "tests/message_of.h"
#include "tests/thinning.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

constexpr const char* kSynthetic =
    " --set data.format=synthetic --set data.synthetic.height=16 --set data.synthetic.width=16"
    " --set data.synthetic.train_samples=20000 --set data.synthetic.test_samples=500";

class Records : public ::testing::Test {
 protected:
  std::string path(const std::string& name) const { return (folder_.path() / name).string(); }

  ProgramResult pack(const std::string& to, const std::string& more) const {
    return run_shell(fmt::format("{} pack cifar10_resnet18 {}{}", program("lockstep"), path(to), more));
  }
  ProgramResult inspect(const std::string& arguments) const {
    return run_shell(
        fmt::format("cd {} && {} inspect {}", folder_.path().string(), program("lockstep"), arguments));
  }
  nlohmann::json description(const std::string& name) const {
    return nlohmann::json::parse(inspect(name + " --json").output);
  }
  std::map<std::string, std::string> files_in(const std::string& name) const {
    std::map<std::string, std::string> files;
    for (const auto& entry : fs::directory_iterator(path(name)))
      files[entry.path().filename().string()] = text_of(entry.path());
    return files;
  }
  // The digest after training on the data with this number of ranks.
  std::string digest(int ranks, const std::string& data) const {
    const ProgramResult result = run_ranks(
        ranks, fmt::format("{} train cifar10_resnet18 {} --digest {} --set run.dir={} --set model.name=cnn "
                           "--set train.precision=fp32 --set world.device=cpu --set train.batch=4 "
                           "--set train.accumulation={} --set train.reproducible=true --set train.threads=1 "
                           "--set kernels.choose=direct --set train.epochs=2",
                           program("lockstep"), data, path("digest"), path("run"), 2 / ranks));
    EXPECT_EQ(result.exit_code, 0) << result.output;
    return text_of(path("digest"));
  }
  // Writes these images, of which the first `train` are for training.
  template <typename ShapeOf>
  void write_photos(int images, int train, const ShapeOf& shape_of) const {
    for (int i = 0; i < images; ++i) {
      const ImageShape shape = shape_of(i);
      folder_.write(
          fmt::format("photos/{}/{}/{:02}.jpg", i < train ? "train" : "test", i % 2 == 0 ? "cat" : "dog", i),
          encode(shape, noise(shape, static_cast<std::uint32_t>(i))));
    }
  }
  void write_photos() const {
    write_photos(36, 24, [](int) { return ImageShape{.height = 28, .width = 28, .channels = 3}; });
  }
  void write_photos_of_any_size() const {
    write_photos(36, 24, [](int i) { return ImageShape{.height = 20 + i, .width = 60 - i, .channels = 3}; });
  }

  TemporaryFolder folder_;
};

std::string last_line_of(const std::string& text) {
  const std::size_t end = text.find_last_not_of('\n');
  return text.substr(text.rfind('\n', end) + 1, end - text.rfind('\n', end));
}

TEST_F(Records, TrainToTheBitsOfTheFolder) {
  write_photos();
  const std::string photos = " --set data.path=" + path("photos");
  const ProgramResult packed = pack("pixels", photos);
  ASSERT_EQ(packed.exit_code, 0) << packed.output;
  EXPECT_GE(count(packed.output, "28x28x3"), 1) << packed.output;
  EXPECT_GE(count(packed.output, "--set data.format=records --set data.path="), 1) << packed.output;
  ASSERT_EQ(pack("files", photos + " --as files").exit_code, 0);
  for (const char* records : {"pixels", "files"}) {
    const nlohmann::json json = description(records);
    EXPECT_EQ(json["train"]["samples"], 24);
    EXPECT_EQ(json["test"]["samples"], 12);
    EXPECT_EQ(json["train"]["classes"], 2);
  }
  const std::string expected = digest(1, photos);
  for (const char* records : {"pixels", "files"})
    EXPECT_EQ(digest(2, " --set data.format=records --set data.path=" + path(records)), expected) << records;
}

// Images of two preparations would be mixed in one set.
TEST_F(Records, UnfinishedPackingGoesOnOnlyWithTheSamePreparation) {
  write_photos(14, 12, [](int) { return ImageShape{.height = 260, .width = 300, .channels = 3}; });
  const std::string photos = " --shard-mib 1 --set data.resize=256 --set data.path=" + path("photos");
  ASSERT_EQ(pack("r", photos).exit_code, 0);
  const auto whole = files_in("r");
  ASSERT_GT(whole.size(), 2u);
  for (const std::string other :
       {" --set data.center_crop=0.5", " --set data.channels=1", " --set data.exif_orientation=ignore"}) {
    fs::remove_all(path("r.partial"));
    fs::create_directory(path("r.partial"));
    fs::copy_file(path("r/" + whole.begin()->first), path("r.partial/" + whole.begin()->first));
    fs::rename(path("r"), path("kept"));
    const ProgramResult mixed = pack("r", photos + other);
    EXPECT_EQ(mixed.exit_code, exit_code::config) << other << mixed.output;
    expect_parts(mixed.output, {path("r.partial")});
    fs::rename(path("kept"), path("r"));
  }
}

// The configuration that was packed, with the settings that pack prints.
TEST_F(Records, PrintedSettingsReadTheSplitsOfTheSource) {
  write_photos();
  fs::rename(path("photos/test"), path("photos/val"));
  for (const std::string split : {"data.validation_share=0.3", "data.test_split=val"}) {
    const std::string photos = fmt::format(" --set {} --set data.path={}", split, path("photos"));
    const ProgramResult packed = pack("r", photos);
    ASSERT_EQ(packed.exit_code, 0) << packed.output;
    EXPECT_EQ(digest(1, photos + last_line_of(packed.output)), digest(1, photos)) << split;
    fs::remove_all(path("r"));
  }
}

TEST_F(Records, ResizedPixelsTrainToTheBitsOfTheFolder) {
  write_photos_of_any_size();
  const std::string photos =
      " --set data.resize=24 --set data.center_crop=0.875 --set data.path=" + path("photos");
  const std::string random_crops = photos + " --set data.random_resized_crop=true";
  for (const char* as : {"pixels", "jpeg"}) {
    const ProgramResult one_crop = pack("r", fmt::format("{} --as {}", random_crops, as));
    EXPECT_EQ(one_crop.exit_code, exit_code::config) << one_crop.output;
    expect_parts(one_crop.output, {"data.random_resized_crop", "--as files"});
  }
  const ProgramResult packed = pack("r", photos);
  ASSERT_EQ(packed.exit_code, 0) << packed.output;
  const std::string printed = last_line_of(packed.output);
  EXPECT_EQ(count(printed, " --set data.center_crop=0.875"), 1) << "exports lack the crop: " << printed;
  EXPECT_EQ(digest(1, random_crops + printed), digest(1, photos));
}

TEST_F(Records, PhotosOfAnySizeTrainToTheBitsOfTheFolder) {
  write_photos_of_any_size();
  const std::string photos = " --set data.path=" + path("photos"), resize = " --set data.resize=24";
  const ProgramResult any_size = pack("r", photos + " --as files");
  EXPECT_EQ(any_size.exit_code, exit_code::data) << any_size.output;
  expect_parts(any_size.output, {path("photos/train"), "data.resize"});
  fs::remove_all(path("r.partial"));
  const ProgramResult packed = pack("r", photos + " --as files" + resize);
  ASSERT_EQ(packed.exit_code, 0) << packed.output;
  EXPECT_EQ(count(packed.output, resize), 1) << packed.output;
  EXPECT_NE(text_of(path("r/train-00000-of-00001.lsr")).find(text_of(path("photos/train/dog/23.jpg"))),
            std::string::npos);
  const std::string records = " --set data.format=records --set data.path=" + path("r");
  for (const std::string crop : {"", " --set data.random_resized_crop=true"}) {
    const std::string expected = digest(1, photos + resize + crop);
    EXPECT_EQ(digest(2, records + resize + crop), expected) << crop;
  }
  const ProgramResult without_size =
      run_shell(program("lockstep") + " train cifar10_resnet18 --set run.dir=" + path("run") + records);
  EXPECT_EQ(without_size.exit_code, exit_code::config) << without_size.output;
  expect_parts(lines_naming(without_size.output, "data.resize"), {path("r")});
  const ProgramResult told = inspect("r --sheet sheet.png");
  EXPECT_EQ(told.exit_code, 0) << told.output;
  expect_parts(told.output, {"36 images"});
  for (const char* range : {R"(\b20\b\D+\b43\b)", R"(\b37\b\D+\b60\b)"})
    EXPECT_TRUE(std::regex_search(told.output, std::regex(range))) << range << told.output;
  const nlohmann::json json = description("r");
  EXPECT_EQ(json["train"]["own_sizes"], true);
  EXPECT_EQ(json["train"]["samples"], 24);
  EXPECT_EQ(json["test"]["samples"], 12);
}

TEST_F(Records, PhotosPackedWithoutTheirOrientationAreValid) {
  const ImageShape stored{.height = 20, .width = 30, .channels = 3};
  for (int i = 0; i < 8; ++i) {
    const Bytes photo = encode(stored, noise(stored, static_cast<std::uint32_t>(i)));
    folder_.write(fmt::format("photos/{}/{}/{}.jpg", i < 4 ? "train" : "test", i % 2 == 0 ? "cat" : "dog", i),
                  i % 4 < 2 ? with_exif(photo, 6) : photo);
  }
  const std::string photos = " --as files --set data.path=" + path("photos");
  EXPECT_EQ(pack("turned", photos).exit_code, exit_code::data) << "EXIF gives two sizes";
  ASSERT_EQ(pack("r", photos + " --set data.exif_orientation=ignore").exit_code, 0);
  const ProgramResult told = inspect("r --sheet sheet.png");
  EXPECT_EQ(told.exit_code, 0) << told.output;
  expect_parts(told.output, {"20x30x3", "8 images"});
}

TEST_F(Records, NeverOverwriteExistingFiles) {
  write_photos();
  const std::string photos = " --set data.path=" + path("photos");
  expect_failure(pack("photos", photos), exit_code::config, {path("photos")});
  expect_failure(pack("r", photos + " --as png"), exit_code::usage, {"--as"});
  expect_failure(pack("r", std::string(kSynthetic) + " --as files"), exit_code::config, {"pixels", "jpeg"});
  EXPECT_FALSE(fs::exists(path("r")));
}

TEST_F(Records, DamagedPhotoEndsPackingAndNamesTheFlag) {
  write_photos();
  const ImageShape shape{.height = 28, .width = 28, .channels = 3};
  folder_.write("photos/train/dog/01.jpg", with_sound_header_only(encode(shape, noise(shape, 1))));
  for (const std::string as : {"pixels", "files", "files --set data.resize=24"}) {
    const std::string photos = fmt::format(" --set data.path={} --as {}", path("photos"), as);
    expect_failure(pack("r", photos), exit_code::data, {"train/dog/01.jpg", "--leave-out-damaged"});
    EXPECT_FALSE(fs::exists(path("r")));
    fs::remove_all(path("r.partial"));
    const ProgramResult packed = pack("r", photos + " --leave-out-damaged");
    ASSERT_EQ(packed.exit_code, 0) << packed.output;
    for (const char* part : {R"(\b1\s+image\b)", R"(\b23\s+training\b)", R"(\b12\s+test\b)"})
      EXPECT_TRUE(std::regex_search(packed.output, std::regex(part))) << part << packed.output;
    EXPECT_EQ(description("r")["train"]["samples"], 23);
    fs::remove_all(path("r"));
  }
}

// 5 images of 256 x 256 x 3 in a file; at least one file has none that can be decoded.
TEST_F(Records, FlagThatIsGivenIsNotAdvised) {
  write_photos(14, 12, [](int) { return ImageShape{.height = 260, .width = 300, .channels = 3}; });
  for (int i = 1; i < 12; ++i)
    folder_.write(fmt::format("photos/train/{}/{:02}.jpg", i % 2 == 0 ? "cat" : "dog", i), {'n', 'o'});
  const ProgramResult result =
      pack("r", " --shard-mib 1 --leave-out-damaged --set data.resize=256 --set data.path=" + path("photos"));
  EXPECT_EQ(result.exit_code, exit_code::data) << result.output;
  EXPECT_TRUE(fs::exists(path("r.partial"))) << "packing began";
  EXPECT_EQ(count(result.output, "--leave-out-damaged"), 0) << result.output;
}

TEST_F(Records, InspectDescribesAndVerifies) {
  ASSERT_EQ(pack("r", kSynthetic).exit_code, 0);
  const ProgramResult told = inspect("r --sheet sheet.png");
  ASSERT_EQ(told.exit_code, 0) << told.output;
  expect_parts(told.output, {"20000", "16x16x3", "10 classes", "20500 images"});
  EXPECT_TRUE(text_of(path("sheet.png")).starts_with("\x89PNG"));
  const nlohmann::json json = description("r");
  EXPECT_EQ(json["train"]["samples"], 20000);
  EXPECT_EQ(json["test"]["samples"], 500);
  EXPECT_EQ(json["train"]["samples_of_class"], std::vector<int>(10, 2000));
  EXPECT_EQ(json["test"]["images"], "pixels");

  const std::string file = path("r/train-00000-of-00001.lsr");
  std::string bytes = text_of(file);
  bytes[128 + 7 * 16 * 16 * 3 + 5] ^= 1;
  std::ofstream(file, std::ios::binary) << bytes;
  expect_failure(inspect("r"), exit_code::data,
                 {"1 sample", "train-00000-of-00001.lsr", "record 7", "byte 5504"});
  EXPECT_EQ(inspect("r --quick").exit_code, 0);
  expect_failure(inspect("missing_records"), exit_code::io, {"missing_records", "No such file"});
}

// On a terminal a long operation shows a progress bar with its rate and removes it at the end. Elsewhere
// there is no bar, and JSON output never contains one.
TEST_F(Records, ProgressIsShownOnATerminalOnly) {
  const auto command = [&](const std::string& arguments) { return program("lockstep") + " " + arguments; };
  const std::string pack_it = command(fmt::format("pack cifar10_resnet18 {}{}", path("r"), kSynthetic));
  const std::string inspect_it = command("inspect " + path("r"));
  const ProgramResult packed = run_on_terminal(pack_it), inspected = run_on_terminal(inspect_it);
  EXPECT_TRUE(std::regex_search(packed.output, std::regex(R"(\[[#.]+\] +[\d,]+/20,500\b)"))) << packed.output;
  EXPECT_TRUE(std::regex_search(packed.output, std::regex(R"( images/s +\d+:\d\d)"))) << packed.output;
  EXPECT_EQ(last_line_of(packed.output), "  --set data.format=records --set data.path=" + path("r"));
  EXPECT_TRUE(std::regex_search(inspected.output, std::regex(R"(\[[#.]+\] +[\d,]+/20,000\b)")))
      << inspected.output;
  expect_parts(last_line_of(inspected.output), {"20500 images"});
  EXPECT_EQ(count(last_line_of(inspected.output), "["), 0) << inspected.output;
  EXPECT_LE(longest_line(packed.output), 80u);
  EXPECT_TRUE(nlohmann::json::accept(run_on_terminal(inspect_it + " --json").output));
  fs::remove_all(path("r"));
  for (const std::string& each : {pack_it, inspect_it}) {
    const ProgramResult piped = run_shell(each);
    EXPECT_EQ(piped.exit_code, 0) << piped.output;
    for (const char* part : {"[.", "[#", "\r", "\x1b"})
      EXPECT_EQ(count(piped.output, part), 0) << piped.output;
  }
}

// Waits until the folder has `files` files, or the process has ended.
void wait_for_files(const fs::path& folder, std::size_t files, pid_t process) {
  const auto there = [&] {
    std::error_code ignored;
    const fs::directory_iterator entries(folder, ignored);
    return static_cast<std::size_t>(std::distance(begin(entries), end(entries)));
  };
  while (there() < files && is_running(process)) std::this_thread::sleep_for(std::chrono::microseconds(200));
}

// SIGKILL ends the program while it writes one of its files. A program that ends before the signal counts
// only as a whole set, so a busy machine needs more turns.
TEST_F(Records, KilledPackLeavesNothingThatOpens) {
  const std::string small =
      std::string(kSynthetic) + " --set data.synthetic.train_samples=13000 --shard-mib 1 --threads 2";
  ASSERT_EQ(pack("whole", small).exit_code, 0);
  const std::map<std::string, std::string> whole = files_in("whole");
  ASSERT_GT(whole.size(), 10u);
  const std::string command = fmt::format("exec {} pack cifar10_resnet18 {}{} >/dev/null 2>&1",
                                          program("lockstep"), path("r"), small);
  std::mt19937 random(1);
  const int wanted = in_large_form() ? 50 : 15;
  int killed = 0, kept = 0;
  for (int turn = 0; killed < wanted || kept <= 5; ++turn) {
    const pid_t child = start_shell(command);
    wait_for_files(path("r.partial"), random() % whole.size(), child);
    kill(child, SIGKILL);
    int status = 0;
    waitpid(child, &status, 0);
    if (fs::exists(path("r"))) {  // finished before the signal
      EXPECT_EQ(files_in("r"), whole);
      fs::remove_all(path("r"));
      continue;
    }
    ASSERT_TRUE(WIFSIGNALED(status)) << status;
    ++killed;
    if (fs::exists(path("r.partial"))) {
      const std::size_t files = files_in("r.partial").size();
      if (files < whole.size()) {
        EXPECT_NE(inspect("r.partial").exit_code, 0);
      }
      kept += files > 0 ? 1 : 0;
    }
    // Most turns resume where the last one was killed.
    if (turn % 5 == 4) {
      EXPECT_EQ(pack("r", small).exit_code, 0);
      EXPECT_EQ(files_in("r"), whole) << "turn " << turn;
      EXPECT_FALSE(fs::exists(path("r.partial")));
      fs::remove_all(path("r"));
    }
  }
}

}  // namespace
}  // namespace lockstep
