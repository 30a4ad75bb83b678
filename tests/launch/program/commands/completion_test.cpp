// SPDX-License-Identifier: Apache-2.0
//
// A real bash sources the script and returns its completions.
#include <array>
#include <cstdio>
#include <set>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include "core/error.h"
#include "launch/program/commands/command_line.h"
#include "tests/message_of.h"
#include "tests/temporary_folder.h"

namespace lockstep {
namespace {

std::string output_of(const std::string& command) {
  FILE* pipe = popen(command.c_str(), "r");
  CHECK(pipe != nullptr);
  std::string output;
  std::array<char, 4096> part;
  while (const std::size_t got = fread(part.data(), 1, part.size(), pipe)) output.append(part.data(), got);
  CHECK(pclose(pipe) == 0, "{}: {}", command, output);
  return output;
}

class Completion : public testing::Test {
 protected:
  Completion() {
    const char* words[] = {"lockstep", "completion", "bash"};
    const std::string script = parse_command_line(3, words).text;
    folder_.write("completion.bash", Bytes(script.begin(), script.end()));
    folder_.write("here/own.toml", {});
    folder_.write("here/two words.toml", {});
    folder_.write("here/weights.safetensors", {});
    folder_.write("here/flowers/train/x.jpg", {});
  }

  // The words that bash offers for the last word. bash splits a line at blanks and around '='.
  std::set<std::string> offered(const std::vector<std::string>& words) const {
    const std::string test = fmt::format(
        "set -u; source {}/completion.bash; cd {}/here; COMP_WORDS=(lockstep '{}'); COMP_CWORD={}; "
        "_lockstep; "
        "for i in \"${{!COMPREPLY[@]}}\"; do echo \"${{COMPREPLY[i]}}\"; done",
        folder_.path().string(), folder_.path().string(), fmt::join(words, "' '"), words.size());
    folder_.write("test.bash", Bytes(test.begin(), test.end()));
    const std::vector<std::string> lines =
        lines_of(output_of("bash " + (folder_.path() / "test.bash").string() + " 2>&1"));
    return {lines.begin(), lines.end()};
  }

  TemporaryFolder folder_;
};

using Words = std::set<std::string>;

TEST_F(Completion, OffersCommands) {
  EXPECT_EQ(offered({"p"}), (Words{"pack", "plan", "predict", "profile"}));
  EXPECT_EQ(offered({"r"}), Words{"report"});
  EXPECT_EQ(offered({"sw"}), Words{"sweep"});
  EXPECT_EQ(offered({"help", "tr"}), Words{"train"});
  EXPECT_EQ(offered({"completion", ""}), Words{"bash"});
  EXPECT_EQ(offered({"--v"}), Words{"--version"});
}

TEST_F(Completion, OffersFlagsOfTheCommand) {
  EXPECT_EQ(offered({"train", "--e"}), Words{"--export"});
  EXPECT_EQ(offered({"plan", "x", "--e"}), Words{});
  EXPECT_EQ(offered({"profile", "x", "--st"}), Words{"--steps"});
}

TEST_F(Completion, OffersPresetsConfigurationsAndFolders) {
  EXPECT_EQ(offered({"train", "fashion_mnist_c"}), Words{"fashion_mnist_cnn"});
  EXPECT_EQ(offered({"train", "o"}), Words{"own.toml"});
  EXPECT_EQ(offered({"train", "tw"}), Words{"two words.toml"});
  EXPECT_EQ(offered({"train", "w"}), Words{});
  EXPECT_EQ(offered({"train", "fl"}), Words{"flowers"}) << "the folder may contain a configuration";
  EXPECT_EQ(offered({"init", ""}), Words{"flowers"});
  EXPECT_EQ(offered({"report", "x", "f"}), Words{"flowers"});
  EXPECT_EQ(offered({"sweep", "o"}), Words{"own.toml"});
  EXPECT_EQ(offered({"predict", "w"}), Words{"weights.safetensors"});
  EXPECT_EQ(offered({"predict", "f"}), Words{"flowers"}) << "the folder may be that of a run";
}

TEST_F(Completion, OffersValuesOfFlags) {
  EXPECT_EQ(offered({"train", "--init", "w"}), Words{"weights.safetensors"});
  EXPECT_EQ(offered({"train", "--init", "=", "w"}), Words{"weights.safetensors"});
  EXPECT_EQ(offered({"train", "--device", ""}), (Words{"auto", "cpu", "cuda", "idle"}));
  EXPECT_EQ(offered({"train", "--device", "f"}), Words{}) << "a preset is no device";
  EXPECT_EQ(offered({"train", "--log-level", "w"}), Words{"warning"});
  EXPECT_EQ(offered({"train", "x", "--resume", ""}), (Words{"auto", "flowers", "never"}));
  EXPECT_EQ(offered({"predict", "x", "--config", "o"}), Words{"own.toml"});
  EXPECT_EQ(offered({"plan", "x", "--device-step", "w"}), Words{"weights.safetensors"});
  EXPECT_EQ(offered({"profile", "--steps", ""}), Words{});
  EXPECT_EQ(offered({"tune", "x", "--out", "f"}), Words{"flowers"});
  EXPECT_EQ(offered({"report", "x", "--out", "w"}), Words{"weights.safetensors"});
}

TEST_F(Completion, OffersKeysAndTheirValues) {
  EXPECT_EQ(offered({"train", "x", "--set", "train.b"}), Words{"train.batch="});
  for (const char* command : {"train", "eval"})
    EXPECT_EQ(offered({command, "x", "--resume-with", "train.b"}), Words{"train.batch"}) << command;
  EXPECT_EQ(offered({"train", "x", "--set", "optimizer.name", "="}), (Words{"adamw", "lars", "sgd"}));
  EXPECT_EQ(offered({"train", "x", "--set", "optimizer.name", "=", "a"}), Words{"adamw"});
  EXPECT_EQ(offered({"train", "x", "--set", "comm.overlap", "=", "t"}), Words{"true"});
  EXPECT_EQ(offered({"train", "x", "--set", "data.path", "=", "f"}), Words{"flowers"});
  EXPECT_EQ(offered({"train", "x", "--set", "data.path", "=", "w"}), Words{"weights.safetensors"})
      << "a table is a single file";
  EXPECT_EQ(offered({"train", "x", "--set", "run.dir", "=", "w"}), Words{});
  EXPECT_EQ(offered({"train", "x", "--set", "train.batch", "=", ""}), Words{});
}

}  // namespace
}  // namespace lockstep
