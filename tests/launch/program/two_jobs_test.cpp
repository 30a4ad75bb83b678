// SPDX-License-Identifier: Apache-2.0
//
// Jobs that use the same folder at the same time, or one after the other.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "core/error.h"
#include "tests/launch/program/program.h"
#include "tests/message_of.h"

namespace lockstep {
namespace {

// The first job trains for days; the second starts when the first has finished an epoch.
TEST(TwoJobs, SecondJobInARunFolderEndsAndNamesTheFirst) {
  const Workplace workplace("two_jobs");
  const std::string metrics = workplace.path("run/metrics.jsonl").string();
  const std::string before = workplace.path("before").string();
  const std::string second = on_ranks(2, workplace.train({"train.steps=1"}));
  const ProgramResult result =
      run_shell(fmt::format("{} > /dev/null & first=$!\n"
                            "until [ -s {} ]; do kill -0 $first || exit 99; sleep 0.05; done\n"
                            "cp {} {}\n{}\n"
                            "code=$?\nkill $first\nwait $first\n"
                            "echo first=$first\nexit $code",
                            workplace.train({"train.epochs=1000000"}), metrics, metrics, before, second));
  expect_failure(result, exit_code::config, {"--set run.dir="});
  const std::string first = lines_naming(result.output, "first=");  // "first=PROCESS\n"
  EXPECT_EQ(count(result.output, "process " + first.substr(6, first.size() - 7)), 1) << result.output;
  const std::string kept = text_of(metrics);
  EXPECT_TRUE(kept.starts_with(text_of(before))) << "the second job changed the metrics of the first";

  // The killed job's lock is gone, but its metrics remain.
  const ProgramResult restart = run_shell(workplace.train({"train.steps=1"}));
  EXPECT_EQ(restart.exit_code, 0) << restart.output;
  EXPECT_EQ(count(restart.output, "metrics.1.jsonl"), 1) << restart.output;
  EXPECT_EQ(lines_naming(restart.output, "warning ", workplace.path("run").string()), "");
  EXPECT_EQ(text_of(workplace.path("run/metrics.1.jsonl")), kept);
  EXPECT_EQ(count(text_of(metrics), "\n"), 1);
}

}  // namespace
}  // namespace lockstep
