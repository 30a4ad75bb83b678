// SPDX-License-Identifier: Apache-2.0
//
// Ranks on nodes that see different files. Each rank has a separate working directory and gets paths relative
// to it.
#include <fstream>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include "core/error.h"
#include "tests/launch/program/program.h"
#include "tests/matches_in.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

// Runs the command on rank 1 in the folder "other", on its peers in "usual".
std::string in_folders(const Workplace& workplace, const std::string& command) {
  return workplace.script(fmt::format("case $OMPI_COMM_WORLD_RANK in 1) cd {} ;; *) cd {} ;; esac\nexec {}",
                                      workplace.path("other").string(), workplace.path("usual").string(),
                                      command));
}

void make_folders(const Workplace& workplace) {
  for (const char* name : {"usual", "other"}) {
    fs::create_directories(workplace.path(name));
    fs::copy(workplace.path("data"), workplace.path(name) / "data");
  }
}

TEST(Replicas, RankWithOtherDataIsNamed) {
  const Workplace workplace("other_data");
  make_folders(workplace);
  std::fstream labels(workplace.path("other") / "data" / "train-labels-idx1-ubyte");
  labels.seekp(8 + 300);
  labels.put(labels.peek() == 0 ? 1 : 0);
  labels.close();
  const ProgramResult result =
      run_ranks(3, in_folders(workplace, workplace.train({"data.path=data", "train.steps=2"})));
  EXPECT_EQ(result.exit_code, exit_code::data) << result.output;
  // The message has the hashes of the data. "[rank 1] " is only the prefix of a line.
  EXPECT_EQ(matches_in(result.output, R"([^\[]rank 1\b[^\n]*[0-9a-f]{16})"), 1) << result.output;
  EXPECT_EQ(count(result.output, "ranks 1, 2"), 0) << result.output;
}

std::string digest_of(const Workplace& workplace, const std::string& command) {
  const std::string file = workplace.path("digest").string();
  const ProgramResult result = run_ranks(2, in_folders(workplace, command + " --digest " + file));
  EXPECT_EQ(result.exit_code, 0) << result.output;
  return text_of(file);
}

TEST(Replicas, EveryRankStartsFromTheFileOfRankZero) {
  const Workplace workplace("other_init");
  make_folders(workplace);
  for (const auto& [folder, seed] : {std::pair{"usual", "1"}, std::pair{"other", "2"}}) {
    const fs::path file = workplace.path(folder) / "start.safetensors";
    ASSERT_EQ(run_shell(workplace.train({"train.steps=1", std::string("train.seed=") + seed},
                                        "--export " + file.string()))
                  .exit_code,
              0);
  }
  const std::string command = workplace.train({"train.steps=2"}, "--init start.safetensors");
  const std::string digest = digest_of(workplace, command);
  const fs::path other = workplace.path("other") / "start.safetensors";
  fs::remove(other);
  EXPECT_EQ(digest_of(workplace, command), digest) << "only rank 0's node has the file";
  fs::copy(workplace.path("usual") / "start.safetensors", other);
  EXPECT_EQ(digest_of(workplace, command), digest) << "all nodes have the same file";
}

TEST(Replicas, RankWithAnotherInitFlagIsNamed) {
  const Workplace workplace("init_flag");
  const std::string script =
      workplace.script("[ $OMPI_COMM_WORLD_RANK = 1 ] && init='--init x.safetensors'\nexec " +
                       workplace.train({"train.steps=1"}, "$init"));
  expect_failure(run_ranks(2, script), exit_code::config, {"rank 1", "--init \"x.safetensors\""});
}

// Every job of several ranks ends with a comparison of their digests, and with code 70 if they differ (see
// Failure.OneDifferingBitIsFoundAtTheEnd).
TEST(Replicas, StayEqualThroughEveryKindOfTraining) {
  const Workplace workplace("kinds");
  const std::vector<std::vector<std::string>> kinds = {
      {"model.name=cnn", "optimizer.name=adamw", "train.precision=bf16", "train.accumulation=2"},
      {"model.name=resnet20", "optimizer.nesterov=true", "train.recompute=true", "kernels.choose=time"},
      // Overflows at first, so steps are skipped.
      {"model.name=cnn", "optimizer.name=lars", "comm.overlap=false", "data.tail=carry", "train.epochs=2",
       "train.precision=fp16", "train.loss_scale=1e7", "model.dropout=0.5", "data.crop_padding=2",
       "data.horizontal_flip=true", "train.label_smoothing=0.1"},
  };
  for (std::vector<std::string> settings : kinds) {
    settings.emplace_back("train.steps=24");
    const ProgramResult result = run_ranks(3, workplace.train(settings));
    EXPECT_EQ(result.exit_code, 0) << fmt::format("{}", fmt::join(settings, " ")) << ":\n" << result.output;
  }
}

}  // namespace
}  // namespace lockstep
