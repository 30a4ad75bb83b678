// SPDX-License-Identifier: Apache-2.0
//
// The shipped preset for a folder of JPEG files, in the real program.
#include <cmath>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "tests/data/jpeg_files.h"
#include "tests/launch/program/program.h"
#include "tests/launch/program/run_json.h"
#include "tests/message_of.h"

namespace lockstep {
namespace {

constexpr ImageShape kImage{.height = 32, .width = 32, .channels = 3};
constexpr int kClasses = 10;

// Noise around a colour that encodes the class.
Bytes image_of(int label, std::uint32_t seed) {
  Bytes pixels = noise(kImage, seed);
  for (std::size_t i = 0; i < pixels.size(); ++i) {
    const int colour = 20 + 25 * (label + (i % 3 == 1 ? 3 : i % 3 == 2 ? 6 : 0)) % 200;
    pixels[i] = static_cast<std::uint8_t>(colour + pixels[i] % 32);
  }
  return encode(kImage, pixels);
}

// Ten training images and two test images of each class.
class Photos {
 public:
  Photos() {
    for (int label = 0; label < kClasses; ++label) {
      for (int i = 0; i < 12; ++i) {
        folder_.write(fmt::format("{}/class{}/{:02}.jpg", i < 10 ? "train" : "test", label, i),
                      image_of(label, static_cast<std::uint32_t>(100 * label + i)));
      }
    }
  }
  const TemporaryFolder& folder() const { return folder_; }
  std::string path(const std::string& name) const { return (folder_.path() / name).string(); }

  // The preset's network, precision and augmentation, with steps that take a CPU a moment.
  std::string train(const std::vector<std::string>& settings) const {
    std::string command = program("lockstep") + " train cifar10_resnet18";
    for (const std::string& setting :
         {"data.path=" + folder_.path().string(), "run.dir=" + path("run"), std::string("world.device=cpu"),
          std::string("train.batch=5"), std::string("train.threads=1"), std::string("kernels.choose=direct"),
          std::string("run.measure_peak=false")}) {
      command += " --set '" + setting + "'";
    }
    for (const std::string& setting : settings) command += " --set '" + setting + "'";
    return command;
  }
  nlohmann::json last_line() const { return last_metrics_of(path("run")); }

 private:
  TemporaryFolder folder_;
};

TEST(JpegProgram, PresetTrainsOnTenImagesPerClass) {
  const Photos photos;
  const ProgramResult result = run_shell(photos.train({"train.epochs=1", "train.steps=2"}));
  ASSERT_EQ(result.exit_code, 0) << result.output;
  EXPECT_NE(result.output.find("resnet18"), std::string::npos) << result.output;
  const nlohmann::json line = photos.last_line();
  EXPECT_EQ(line["steps"], 2);
  EXPECT_EQ(run_record(photos.path("run")).at("dataset").at("training"), 100);
  EXPECT_TRUE(std::isfinite(line["train_loss"].get<double>()));
  EXPECT_NEAR(line["test_accuracy"].get<double>() * 20, std::round(line["test_accuracy"].get<double>() * 20),
              1e-6);
}

TEST(JpegProgram, DamagedImagesCauseOneWarning) {
  const Photos photos;
  const Bytes sound = image_of(3, 7);
  Bytes stray = sound;
  stray.insert(stray.end() - 2, 20, 1);
  photos.folder().write("train/class3/00.jpg", stray);
  photos.folder().write("train/class3/01.jpg", {sound.begin(), sound.begin() + 800});
  const Bytes inks(static_cast<std::size_t>(4 * 32 * 32), 120);
  photos.folder().write("train/class3/02.jpg", encode(kImage, inks, {.format = TJPF_CMYK}));
  const ProgramResult result = run_ranks(
      1, photos.train({"model.name=cnn", "train.precision=fp32", "data.verify=all", "train.epochs=2"}));
  ASSERT_EQ(result.exit_code, 0) << result.output;
  expect_parts(lines_naming(result.output, "warning"), {"class3/00.jpg", "class3/01.jpg", "2 samples"});
  EXPECT_EQ(result.output.find("class3/02.jpg"), std::string::npos) << "CMYK is no damage:\n"
                                                                    << result.output;
}

TEST(JpegProgram, RefusesUnreadableImagesAtTheStart) {
  const Photos photos;
  photos.folder().write("train/class7/05.jpg", {'G', 'I', 'F', '8'});
  const ProgramResult result = run_ranks(2, photos.train({}));
  EXPECT_EQ(result.exit_code, exit_code::data) << result.output;
  expect_parts(result.output, {"1 sample", "train/class7/05.jpg", "data.verify",
                               "starts with 0x47 0x49"});  // a text of libjpeg
  EXPECT_FALSE(std::filesystem::exists(photos.path("run/metrics.jsonl")));
}

}  // namespace
}  // namespace lockstep
