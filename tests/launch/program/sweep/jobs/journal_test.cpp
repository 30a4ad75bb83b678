// SPDX-License-Identifier: Apache-2.0
#include "launch/program/sweep/jobs/journal.h"

#include <fstream>

#include <gtest/gtest.h>

#include "core/error.h"
#include "tests/message_of.h"
#include "tests/temporary_folder.h"

namespace lockstep {
namespace {

// The error of a journal with a valid first line, whose second line is `line`.
std::string error_of_second_line(const std::string& line) {
  const TemporaryFolder folder("sweep_journal");
  const std::filesystem::path path = folder.path() / "sweep.jsonl";
  static_cast<void>(SweepJournal(path, "", ""));
  std::ofstream(path, std::ios::app) << line << '\n';
  return message_of<DataError>([&] { static_cast<void>(SweepJournal(path, "", "")); });
}

TEST(SweepJournal, ErrorNamesTheLine) {
  for (const char* line : {"no JSON", "{}", R"({"event":"start"})", R"({"event":"end","trial":0,"rung":0})",
                           R"({"event":"interrupted","trial":0,"rung":0})"})
    expect_parts(error_of_second_line(line), {"sweep.jsonl:2 "});
}

TEST(SweepJournal, ErrorNamesTheFirstLineOfAnotherFile) {
  const TemporaryFolder folder("sweep_journal");
  folder.write("sweep.jsonl", {'{', '}', '\n'});
  expect_parts(
      message_of<DataError>([&] { static_cast<void>(SweepJournal(folder.path() / "sweep.jsonl", "", "")); }),
      {"sweep.jsonl:1 "});
}

// The error for the journal of a sweep over `before` if it is opened for a sweep over `after`.
std::string error_of_other_keys(const std::string& before, const std::string& after) {
  const TemporaryFolder folder("sweep_journal");
  const std::filesystem::path path = folder.path() / "sweep.jsonl";
  static_cast<void>(SweepJournal(path, "", "[keys]\n" + before));
  return message_of<ConfigError>([&] { static_cast<void>(SweepJournal(path, "", "[keys]\n" + after)); });
}

TEST(SweepJournal, ErrorNamesTheKeyThatWasAddedOrRemoved) {
  const std::string first = "train.batch = [8]\n", added = "optimizer.momentum = [0, 0.9]\n",
                    last = "train.seed = [1, 2]\n";
  for (const std::string& message : {error_of_other_keys(first + last, first + added + last),
                                     error_of_other_keys(first + added + last, first + last)}) {
    expect_parts(message, {"keys.optimizer.momentum", "[0, 0.9]"});
    EXPECT_EQ(message.find("train.seed"), std::string::npos) << message;
  }
}

// The order of the keys decides which settings trial 1 has.
TEST(SweepJournal, KeysInAnotherOrderAreAnotherSweep) {
  const std::string batch = "train.batch = [8, 16]\n", seed = "train.seed = [1, 2]\n";
  expect_parts(error_of_other_keys(batch + seed, seed + batch), {"keys.train.batch", "keys.train.seed"});
}

}  // namespace
}  // namespace lockstep
