// SPDX-License-Identifier: Apache-2.0
//
// A new user's folder of images: `lockstep init`, and the defaults of a nearly empty configuration.
#include <algorithm>
#include <cmath>

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "tests/data/jpeg_files.h"
#include "tests/launch/program/program.h"
#include "tests/launch/program/run_json.h"
#include "tests/message_of.h"

namespace lockstep {
namespace {

using Json = nlohmann::json;

// Noisy images whose classes differ in colour.
class OwnImages {
 public:
  OwnImages(int classes, int images_per_class, std::int64_t side) {
    std::uint32_t seed = 0;
    for (const auto& [split, count] : {std::pair("train", images_per_class), std::pair("test", 2)}) {
      for (int label = 0; label < classes; ++label) {
        for (int i = 0; i < count; ++i) {
          const ImageShape shape{.height = side, .width = side, .channels = 3};
          Bytes pixels = noise(shape, ++seed);
          for (std::size_t at = 0; at < pixels.size(); ++at) {
            const std::size_t bit = at % 3;
            pixels[at] = static_cast<std::uint8_t>(pixels[at] / 2 + (label >> bit & 1) * 100);
          }
          folder_.write(fmt::format("flowers/{}/class{}/{}.jpg", split, label, i), encode(shape, pixels));
        }
      }
    }
  }

  std::filesystem::path path(const std::string& name) const { return folder_.path() / name; }
  void write(const std::string& name, const std::string& text) const {
    folder_.write(name, Bytes(text.begin(), text.end()));
  }
  // A command that runs in the folder.
  std::string here(const std::string& arguments) const {
    return fmt::format("cd {} && {} {}", folder_.path().string(), program("lockstep"), arguments);
  }

  std::vector<Json> metrics(const std::string& run) const { return metrics_of(path(run)); }

 private:
  TemporaryFolder folder_;
};

constexpr const char* kQuick = " --set train.threads=1 --set kernels.choose=direct --device cpu";

// Expects a loss that is never much worse than guessing, and better at the end.
void expect_learning(const std::vector<Json>& metrics, std::size_t epochs, int classes) {
  ASSERT_EQ(metrics.size(), epochs);
  const double guessing = std::log(classes);
  for (const Json& line : metrics) EXPECT_LT(line["train_loss"].get<double>(), 2 * guessing) << line;
  EXPECT_LT(metrics.back()["train_loss"].get<double>(), 0.75 * guessing);
  EXPECT_LT(metrics.back()["train_loss"], metrics.front()["train_loss"]);
  EXPECT_TRUE(std::isfinite(metrics.back()["test_loss"].get<double>()));
}

TEST(OwnImages, InitWritesAConfigurationThatTrains) {
  const OwnImages images(2, 40, 16);
  const ProgramResult written = run_shell(images.here("init flowers"));
  ASSERT_EQ(written.exit_code, 0) << written.output;
  std::string told = written.output;
  std::ranges::replace(told, '\n', ' ');  // lines are wrapped
  expect_parts(told, {"flowers.toml", "80 training", "4 test", "2 classes", "16 x 16"});
  const ProgramResult trained = run_shell(images.here("train flowers.toml --set train.epochs=4") + kQuick);
  ASSERT_EQ(trained.exit_code, 0) << trained.output;
  expect_learning(images.metrics("runs/flowers"), 4, 2);
}

TEST(OwnImages, PrintedCommandsAreQuoted) {
  const OwnImages images(2, 1, 16);
  std::filesystem::rename(images.path("flowers"), images.path("my flowers"));
  const ProgramResult written = run_shell(images.here("init 'my flowers'"));
  ASSERT_EQ(written.exit_code, 0) << written.output;
  std::string command = lines_naming(written.output, " train 'my flowers.toml' --ranks 2");
  ASSERT_NE(command, "") << written.output;
  command.pop_back();  // the line feed
  const ProgramResult printed =
      run_shell(fmt::format("cd {} && {} --print-config", images.path("").string(), command));
  EXPECT_EQ(printed.exit_code, 0) << printed.output;
  expect_parts(printed.output, {"dir = \"runs/my flowers\""});
  const ProgramResult packed = run_shell(images.here("pack 'my flowers.toml' 'my records'"));
  EXPECT_EQ(packed.exit_code, 0) << packed.output;
  expect_parts(packed.output, {"--set 'data.path=my records'"});
}

TEST(OwnImages, InitOfOneImageSuggestsOneRank) {
  const OwnImages images(1, 1, 16);
  const ProgramResult written = run_shell(images.here("init flowers"));
  ASSERT_EQ(written.exit_code, 0) << written.output;
  expect_parts(written.output, {" train flowers.toml\n"});
}

TEST(OwnImages, InitWithoutTestImagesTestsWithSomeOfTheOthers) {
  const OwnImages images(2, 40, 16);
  std::filesystem::remove_all(images.path("flowers/test"));
  const ProgramResult written = run_shell(images.here("init flowers"));
  ASSERT_EQ(written.exit_code, 0) << written.output;
  expect_parts(text_of(images.path("flowers.toml")), {"validation_share = 0.1"});
  const ProgramResult planned = run_shell(images.here("plan flowers.toml") + kQuick);
  EXPECT_EQ(planned.exit_code, 0) << planned.output;
}

// Images of different sizes are opened twice.
TEST(OwnImages, InitWarnsOnce) {
  const OwnImages images(2, 1, 16);
  const ImageShape shape{.height = 40, .width = 40, .channels = 1};
  const Bytes gray = encode(shape, noise(shape, 1));
  images.write("flowers/train/class0/gray.jpg", std::string(gray.begin(), gray.end()));
  const ProgramResult written = run_shell(images.here("init flowers"));
  ASSERT_EQ(written.exit_code, 0) << written.output;
  expect_parts(text_of(images.path("flowers.toml")), {"resize = "});
  EXPECT_EQ(count(written.output, "grayscale"), 1) << written.output;
}

TEST(OwnImages, InitNamesSeveralDamagedImages) {
  const OwnImages images(2, 2, 16);
  for (int i = 0; i < 7; ++i) images.write(fmt::format("flowers/train/class1/bad{}.jpg", i), "no image");
  expect_failure(run_shell(images.here("init flowers")), exit_code::data,
                 {"7 samples", "bad0.jpg", "bad4.jpg", "and 2 more", "repair or remove"});
  EXPECT_FALSE(std::filesystem::exists(images.path("flowers.toml")));
}

TEST(OwnImages, InitWarnsOfImagesThatCannotBeDecoded) {
  const OwnImages images(2, 2, 16);
  const ImageShape shape{.height = 16, .width = 16, .channels = 3};
  const Bytes damaged = with_sound_header_only(encode(shape, noise(shape, 1)));
  for (const char* name : {"bad0.jpg", "bad1.jpg"})
    images.write(fmt::format("flowers/train/class0/{}", name), std::string(damaged.begin(), damaged.end()));
  const ProgramResult written = run_shell(images.here("init flowers"));
  ASSERT_EQ(written.exit_code, 0) << written.output;
  for (const char* name : {"bad0.jpg", "bad1.jpg"})
    EXPECT_EQ(count(written.output, name), 1) << written.output;
  EXPECT_TRUE(std::filesystem::exists(images.path("flowers.toml")));
}

TEST(OwnImages, InitRefusesAFolderThatTomlCannotName) {
  const OwnImages images(2, 1, 16);
  std::filesystem::rename(images.path("flowers"), images.path("caf\xe9"));
  expect_failure(run_shell(images.here("init 'caf\xe9'")), exit_code::config, {"UTF-8", "rename the folder"});
  EXPECT_FALSE(std::filesystem::exists(images.path("caf\xe9.toml")));
}

TEST(OwnImages, InitNeverOverwrites) {
  const OwnImages images(2, 1, 16);
  images.write("flowers.toml", "precious");
  const ProgramResult refused = run_shell(images.here("init flowers/"));
  EXPECT_EQ(refused.exit_code, exit_code::io);
  expect_parts(refused.output, {"flowers.toml", "--output"});
  EXPECT_EQ(text_of(images.path("flowers.toml")), "precious");
  EXPECT_EQ(run_shell(images.here("init flowers --output other.toml")).exit_code, 0);
  EXPECT_EQ(run_shell(images.here("plan other.toml") + kQuick).exit_code, 0);
}

TEST(OwnImages, InitNamesTheMissingPath) {
  const OwnImages images(2, 1, 16);
  const ProgramResult nothing = run_shell(images.here("init nowhere"));
  EXPECT_EQ(nothing.exit_code, exit_code::io);
  EXPECT_NE(nothing.output.find("train/CLASS/*.jpg"), std::string::npos) << nothing.output;
  EXPECT_FALSE(std::filesystem::exists(images.path("nowhere.toml")));
  const ProgramResult unwritable = run_shell(images.here("init flowers --output missing/own.toml"));
  EXPECT_EQ(unwritable.exit_code, exit_code::io);
  expect_parts(unwritable.output, {"missing/own.toml", "No such file or directory"});
}

// With a rate of 0.1 and no warm-up, the loss would be many times that of guessing for several epochs.
TEST(OwnImages, DefaultsTrainResNet18OnFewImages) {
  const OwnImages images(2, 16, 8);
  images.write("own.toml",
               "[model]\nname = \"resnet18\"\n[data]\nformat = \"image_folder\"\npath = \"flowers\"\n"
               "[train]\nbatch = 8\nepochs = 4\n[run]\ndir = \"run\"\n");
  const ProgramResult trained = run_shell(images.here("train own.toml") + kQuick);
  ASSERT_EQ(trained.exit_code, 0) << trained.output;
  expect_learning(images.metrics("run"), 4, 2);
}

}  // namespace
}  // namespace lockstep
