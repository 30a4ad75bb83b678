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

}  // namespace
}  // namespace lockstep
