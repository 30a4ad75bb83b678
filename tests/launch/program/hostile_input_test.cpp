// SPDX-License-Identifier: Apache-2.0
//
// Malicious files: the program refuses them by name, does not touch what they point to, and sends none of
// their escape sequences to the terminal.
#include <fstream>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "core/error.h"
#include "tests/launch/program/program.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

void replace_text(const fs::path& path, const std::string& text) {
  std::ofstream(path, std::ios::binary | std::ios::trunc) << text;
}

// The output is no terminal here, so the program itself writes no escape sequences.
void expect_refusal(const ProgramResult& result, int exit_code, const std::vector<std::string>& parts) {
  expect_failure(result, exit_code, parts);
  for (const char* order : {"\x1b", "\x07", "\xc2\x9b"})
    EXPECT_EQ(count(result.output, order), 0) << result.output;
}

// checkpoint_test.cpp has the other wrong manifests.
TEST(HostileInput, CheckpointCannotPointOutsideItsFolder) {
  const Workplace place("hostile");
  const std::vector<std::string> settings = {"train.steps=4", "run.checkpoint_every=4",
                                             "kernels.choose=direct"};
  ASSERT_EQ(run_ranks(1, place.train(settings)).exit_code, 0);
  const fs::path folder = place.path("run/checkpoints/step-000000004"), elsewhere = place.path("elsewhere");
  const fs::path manifest = folder / "manifest.json", shard = folder / "rank-00000.safetensors";
  const std::string sound = text_of(manifest);
  const auto refused = [&](const std::string& text, const std::vector<std::string>& parts) {
    replace_text(manifest, text);
    expect_refusal(run_ranks(1, place.train(settings, "--resume " + folder.string())), exit_code::data,
                   parts);
  };
  const auto edited = [&](const std::string& from, const std::string& to) {
    std::string text = sound;
    const std::size_t at = text.find(from);
    CHECK(at != std::string::npos, "{}", from);
    return text.replace(at, from.size(), to);
  };
  refused(edited("rank-00000.safetensors", "../../../elsewhere"),
          {"manifest.json", "rank-00000.safetensors"});
  refused(edited("\"cpu\"", "\"\\u001b[2J\""), {"manifest.json", "\"device\""});
  refused(edited("\"cpu\"", "\"\x1b[2J\""),
          {"manifest.json", "json.exception.parse_error"});  // a text of the JSON library

  replace_text(manifest, sound);
  fs::rename(shard, elsewhere);
  const std::string kept = text_of(elsewhere);
  fs::create_symlink(elsewhere, shard);
  refused(sound, {shard.string()});
  fs::remove(shard);
  fs::create_symlink("/dev/zero", shard);
  refused(sound, {shard.string()});
  fs::remove(shard);
  fs::rename(elsewhere, shard);
  fs::rename(manifest, elsewhere);
  fs::create_symlink(elsewhere, manifest);
  expect_refusal(run_ranks(1, place.train(settings, "--resume " + folder.string())), exit_code::data,
                 {manifest.string()});
  EXPECT_EQ(text_of(elsewhere), sound);
  EXPECT_EQ(text_of(shard), kept);
}

TEST(HostileInput, EscapeSequencesAreNotPrinted) {
  const Workplace place("orders");
  std::ofstream(place.path("config.toml"), std::ios::app) << "\"\\u001b]0;title\\u0007\" = \"\\u001b[2J\"\n";
  expect_refusal(run_ranks(1, place.train({})), exit_code::config, {"config.toml:", "title"});
  std::ofstream(place.path("config.toml"), std::ios::app) << "\x1b[2J = 1\n";
  const ProgramResult several = run_ranks(1, place.train({}));
  expect_refusal(several, exit_code::config, {"title"});
  EXPECT_GE(count(several.output, "config.toml:"), 2) << several.output;

  const Workplace other("others");
  const std::string header = R"({"fc1.weight": {"dtype": "\u001b[2J", "shape": [], "data_offsets": [0, 4]}})";
  const std::uint64_t bytes = header.size();
  const std::string size(reinterpret_cast<const char*>(&bytes), sizeof(bytes));
  replace_text(other.path("weights"), size + header + "data");
  expect_refusal(run_ranks(1, other.train({}, "--init " + other.path("weights").string())), exit_code::data,
                 {"fc1.weight", "\"\\x1b[2J\""});
}

TEST(HostileInput, LinksInARunFolderAreNotFollowed) {
  const Workplace place("links");
  fs::create_directories(place.path("run"));
  replace_text(place.path("precious"), "");
  for (const char* name : {"config.toml", "run.json", "metrics.jsonl", "steps.jsonl", "monitor.csv"})
    fs::create_symlink(place.path("precious"), place.path("run") / name);
  const ProgramResult result = run_ranks(1, place.train({"train.steps=4", "kernels.choose=direct"}));
  EXPECT_EQ(result.exit_code, 0) << result.output;
  EXPECT_EQ(text_of(place.path("precious")), "");
  EXPECT_EQ(count(text_of(place.path("run/metrics.jsonl")), "\"epoch\":1"), 1);

  fs::create_symlink(place.path("precious"), place.path("run/last_good.safetensors"));
  const ProgramResult failed =
      run_ranks(1, place.train({"train.steps=4", "kernels.choose=direct"}, "--inject nan:rank=0,step=3"));
  EXPECT_EQ(failed.exit_code, exit_code::failed) << failed.output;
  EXPECT_EQ(text_of(place.path("precious")), "");
  EXPECT_TRUE(fs::is_regular_file(fs::symlink_status(place.path("run/last_good.safetensors"))));
}

// config_errors_test.cpp proves that such a file cannot set the command.
TEST(HostileInput, RunFolderDoesNotShowTheCommand) {
  const Workplace place("command");
  const std::string mark = place.path("mark").string();
  std::string told = "--set run.event_command='touch " + mark + "; exit 0'";
  const ProgramResult result = run_ranks(1, place.train({"train.steps=4", "kernels.choose=direct"}, told));
  ASSERT_EQ(result.exit_code, 0) << result.output;
  for (const char* name : {"config.toml", "run.json"})
    EXPECT_EQ(count(text_of(place.path("run") / name), mark), 0) << name;
}
}  // namespace
}  // namespace lockstep
