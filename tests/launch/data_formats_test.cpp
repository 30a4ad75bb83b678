// SPDX-License-Identifier: Apache-2.0
//
// Formats of data through the real program under mpirun: from what data.path holds to a network that learned
// it.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include "core/error.h"
#include "tests/data/temporary_folder.h"
#include "tests/launch/program.h"

namespace lockstep {
namespace {

std::string train(const TemporaryFolder& folder, const std::vector<std::string>& settings) {
  return fmt::format("{} train cifar10_resnet18 --set 'run.dir={}' --set '{}'", program("lockstep"),
                     (folder.path() / "run").string(), fmt::join(settings, "' --set '"));
}

// A network that learns in seconds, and no augmentation that hides what is learned.
const std::vector<std::string> kSmall = {
    "model.name=mlp",           "train.precision=fp32",        "world.device=cpu",
    "train.batch=20",           "schedule.name=constant",      "train.threads=1",
    "train.epochs=3",           "data.horizontal_flip=false",  "data.crop_padding=0",
    "schedule.warmup_epochs=0", "optimizer.learning_rate=0.01"};

std::vector<std::string> operator+(std::vector<std::string> a, const std::vector<std::string>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

TEST(DataFormats, SyntheticImagesAreLearnedWithoutFiles) {
  const TemporaryFolder folder;
  const ProgramResult result = run_ranks(
      2,
      train(folder, kSmall + std::vector<std::string>{
                                 "data.format=synthetic", "data.synthetic.height=9", "data.synthetic.width=7",
                                 "data.synthetic.train_samples=1000", "data.synthetic.test_samples=100"}));
  ASSERT_EQ(result.exit_code, 0) << result.output;
  EXPECT_GE(count(result.output, "test accuracy 100.00 %"), 1) << result.output;
}

// A bright stretch of pixels tells the class, in files as the archive has them.
TEST(DataFormats, CifarBinaryIsLearned) {
  const TemporaryFolder folder;
  const auto write = [&](const std::string& name, int images) {
    Bytes bytes;
    for (int i = 0; i < images; ++i) {
      const int label = i % 10;
      bytes.push_back(static_cast<std::uint8_t>(label));
      for (int at = 0; at < 3072; ++at)
        bytes.push_back(static_cast<std::uint8_t>((at / 300 == label ? 200 : 20) + (at * 7 + i) % 10));
    }
    folder.write(name, bytes);
  };
  for (int batch = 1; batch <= 5; ++batch) write(fmt::format("data_batch_{}.bin", batch), 100);
  write("test_batch.bin", 40);
  const std::string command =
      train(folder, kSmall + std::vector<std::string>{"data.format=cifar_binary", "train.epochs=8",
                                                      "data.path=" + folder.path().string()});
  const ProgramResult result = run_ranks(2, command);
  ASSERT_EQ(result.exit_code, 0) << result.output;
  EXPECT_GE(count(result.output, "test accuracy 100.00 %"), 1) << result.output;

  folder.remove("data_batch_5.bin");
  expect_failure(run_ranks(2, command), exit_code::io, {"data_batch_5.bin: cannot be read: No such file"});
}

}  // namespace
}  // namespace lockstep
