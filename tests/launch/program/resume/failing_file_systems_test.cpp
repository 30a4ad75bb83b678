// SPDX-License-Identifier: Apache-2.0
//
// Disks that fail while a training saves: full, broken, read-only or unmounted. According to
// run.checkpoint_errors, training continues with a warning or ends with code 74. No unfinished checkpoint
// stays, and saved ones can be resumed. The disks are real mounts in a mount namespace; strace injects the
// errors that no mount can produce.
#include <algorithm>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include "core/error.h"
#include "tests/launch/program/program.h"
#include "tests/matches_in.h"
#include "tests/message_of.h"

namespace lockstep {
namespace {

class FailingFileSystems : public testing::Test {
 protected:
  // A training of `steps` steps that saves every 5 steps.
  std::string training(int steps, const std::string& errors, const std::string& flags = "") const {
    return place_.train({"model.name=cnn", "train.epochs=100000", fmt::format("train.steps={}", steps),
                         "kernels.choose=direct", "schedule.name=constant", "run.checkpoint_every=5",
                         "run.keep=2", "run.checkpoint_errors=" + errors},
                        flags);
  }
  static std::string ranks(const std::string& command) { return on_ranks(2, command); }
  std::string run() const { return place_.path("run").string(); }
  // Waits for any checkpoint, not a certain one: each exists for only about 0.1 s.
  std::string wait_for_a_checkpoint() const {
    return wait_until(fmt::format("ls {}/checkpoints 2>/dev/null | grep -q '^step-[0-9]*$'", run()));
  }

  // Names of the finished or unfinished checkpoints anywhere under run.dir, sorted.
  std::vector<std::string> names(bool unfinished) const {
    std::vector<std::string> found;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(run())) {
      const std::string name = entry.path().filename();
      if ((name.find(".partial") != std::string::npos) == unfinished && name.starts_with("step-"))
        found.push_back(name);
    }
    std::ranges::sort(found);
    return found;
  }

  void expect_nothing_unfinished() const { EXPECT_EQ(names(true), std::vector<std::string>()); }

  // Resumes from the newest checkpoint, which must be sound: a training that starts over or from an older
  // checkpoint moves newer ones to checkpoints.1. The resumed run removes unfinished checkpoints.
  void expect_to_go_on() const {
    ASSERT_FALSE(names(false).empty());
    const int steps = std::stoi(names(false).back().substr(5)) + 3;
    const ProgramResult resumed =
        run_shell(ranks(training(steps, "stop", "--resume auto --resume-with train.steps")));
    EXPECT_EQ(resumed.exit_code, 0) << resumed.output;
    EXPECT_FALSE(std::filesystem::exists(run() + "/checkpoints.1")) << resumed.output;
    EXPECT_TRUE(names(false).back().starts_with(fmt::format("step-{:09}", steps))) << resumed.output;
    expect_nothing_unfinished();
  }

  // Runs shell lines in a mount namespace and prints the log at the end. The lines can use $log and $run_dir
  // and must set $run to the process of the run.
  ProgramResult in_namespace(const std::string& lines) const {
    const std::string log = place_.path("log").string();
    const ProgramResult result =
        run_shell("unshare -rm " +
                  place_.script(fmt::format(
                      "log={0}\nrun_dir={1}\nmkdir -p $run_dir/checkpoints\n{2}\nwait $run\ncode=$?\n{3}\n"
                      "cat $log\nexit $code",
                      log, run(), lines, kept_)));
    return result;
  }
  // The number of lines that name a step, a path of its checkpoint and the reason why it was not written.
  int failures_reported(const ProgramResult& result, const std::string& reason) const {
    const std::string lines = lines_naming(result.output, run() + "/checkpoints", reason);
    return static_cast<int>(matches_in(lines, R"([^\n]*\bstep \d+\b[^\n]*)"));
  }
  void expect_to_have_ended(const ProgramResult& result, const std::string& reason) const {
    EXPECT_EQ(result.exit_code, exit_code::io) << result.output;
    EXPECT_EQ(failures_reported(result, reason), 1) << result.output;
  }
  // Moves the copy of the namespace's run folder into the place of run.dir.
  void take_copy() const {
    std::filesystem::remove_all(run());
    std::filesystem::rename(place_.path("copy"), run());
    expect_nothing_unfinished();
  }
  static bool may_make_namespaces() {
    return run_shell("unshare -rm mount -t tmpfs none /mnt").exit_code == 0;
  }
  static bool may_trace() {
    return run_shell("strace -f -qq --seccomp-bpf -e trace=fsync true").exit_code == 0;
  }

  const Workplace place_{"failing"};
  // Copies the run folder out of the namespace for later checks.
  const std::string kept_ = fmt::format("cp -r $run_dir {}", place_.path("copy").string());
};

#define SKIP_WITHOUT_NAMESPACES() \
  if (!may_make_namespaces()) GTEST_SKIP() << "this user may not create a mount namespace"
#define SKIP_WITHOUT_STRACE() \
  if (!may_trace()) GTEST_SKIP() << "strace is not installed, or may not trace here"

TEST_F(FailingFileSystems, FullDiskCausesAWarning) {
  SKIP_WITHOUT_NAMESPACES();
  // One checkpoint fits, and no second one.
  const ProgramResult result = in_namespace("mount -t tmpfs -o size=1M none $run_dir\n" +
                                            ranks(training(30, "warn")) + " >$log 2>&1 & run=$!");
  EXPECT_EQ(result.exit_code, 0) << result.output;
  EXPECT_GE(failures_reported(result, "No space left on device"), 1) << result.output;
  take_copy();
  EXPECT_EQ(names(false), std::vector<std::string>{"step-000000005"});
  expect_to_go_on();
}

TEST_F(FailingFileSystems, FullDiskEndsATrainingThatMustSave) {
  SKIP_WITHOUT_NAMESPACES();
  const ProgramResult result = in_namespace("mount -t tmpfs -o size=1M none $run_dir\n" +
                                            ranks(training(30, "stop")) + " >$log 2>&1 & run=$!");
  expect_failure(result, exit_code::io, {"step 10", "No space left on device"});
  take_copy();
  expect_to_go_on();
}

TEST_F(FailingFileSystems, ReadOnlyDiskIsUsedAgainOnceWritable) {
  SKIP_WITHOUT_NAMESPACES();
  // A file open for writing keeps the mount from becoming read-only.
  const std::string lines = fmt::format(
      "mount --bind $run_dir/checkpoints $run_dir/checkpoints\n{} >$log 2>&1 & run=$!\n{}{}{}ls "
      "$run_dir/checkpoints\n"
      "mount -o remount,bind,rw $run_dir/checkpoints\nbefore=$(ls $run_dir/checkpoints)\n{}kill -USR1 $run",
      ranks(training(0, "warn")), wait_for_a_checkpoint(),
      wait_until("mount -o remount,bind,ro $run_dir/checkpoints 2>/dev/null"),
      wait_until("grep -q 'Read-only file system' $log"),
      wait_until("[ \"$before\" != \"$(ls $run_dir/checkpoints | grep -v partial)\" ]"));
  const ProgramResult result = in_namespace(lines);
  EXPECT_EQ(result.exit_code, exit_code::resumable) << result.output;
  expect_nothing_unfinished();
  expect_to_go_on();
}

TEST_F(FailingFileSystems, ReadOnlyDiskEndsATrainingThatMustSave) {
  SKIP_WITHOUT_NAMESPACES();
  const std::string lines =
      fmt::format("mount --bind $run_dir/checkpoints $run_dir/checkpoints\n{} >$log 2>&1 & run=$!\n{}{}",
                  ranks(training(0, "stop")), wait_for_a_checkpoint(),
                  wait_until("mount -o remount,bind,ro $run_dir/checkpoints 2>/dev/null"));
  expect_to_have_ended(in_namespace(lines), "Read-only file system");
  expect_to_go_on();
}

// Moves the folder away: to the job this looks like an unmounted disk.
TEST_F(FailingFileSystems, UnmountedDiskIsUsedAgainOnceMounted) {
  const std::string log = place_.path("log").string();
  const ProgramResult result = run_shell(fmt::format(
      "{0} >{1} 2>&1 & run=$!\n{2}mv {3} {3}.away\n{4}[ ! -e {3} ] || echo made again\nmv {3}.away {3}\n"
      "before=$(ls {3}/checkpoints)\n{5}kill -USR1 $run\nwait $run\ncode=$?\ncat {1}\nexit $code",
      ranks(training(0, "warn")), log, wait_for_a_checkpoint(), run(),
      wait_until("grep -q 'run[.]dir' " + log),
      wait_until(fmt::format("[ \"$before\" != \"$(ls {}/checkpoints | grep -v partial)\" ]", run()))));
  EXPECT_EQ(result.exit_code, exit_code::resumable) << result.output;
  EXPECT_EQ(count(result.output, "made again"), 0) << "nothing is saved in the place of a removed disk";
  expect_to_go_on();
}

TEST_F(FailingFileSystems, UnmountedDiskEndsATrainingThatMustSave) {
  const ProgramResult result =
      run_shell(fmt::format("{0} 2>&1 & run=$!\n{1}mv {2} {2}.away\nwait $run", ranks(training(0, "stop")),
                            wait_for_a_checkpoint(), run()));
  expect_to_have_ended(result, "checkpoints");
  EXPECT_FALSE(std::filesystem::exists(run())) << "created in the place of a removed disk";
  std::filesystem::rename(run() + ".away", run());
  expect_to_go_on();
}

// A user removes all checkpoints; the next ones are saved as usual.
TEST_F(FailingFileSystems, RemovedCheckpointsDoNotPreventLaterOnes) {
  const ProgramResult result = run_shell(fmt::format(
      "{0} 2>&1 & run=$!\n{1}mv {2}/checkpoints {2}/removed\nrm -r {2}/removed\n{3}kill -USR1 $run\nwait "
      "$run",
      ranks(training(0, "warn")), wait_for_a_checkpoint(), run(), wait_for_a_checkpoint()));
  EXPECT_EQ(result.exit_code, exit_code::resumable) << result.output;
  expect_nothing_unfinished();
  expect_to_go_on();
}

// A system call that answers EIO, on one rank.
struct BrokenCall {
  const char* name;
  int rank;
  const char* call;
  // The number of the call within a thread, from 1; each checkpoint starts new threads. With `path`, only
  // calls on that path in run.dir count.
  int when = 1;
  const char* path = nullptr;
};

void PrintTo(const BrokenCall& call, std::ostream* out) { *out << call.name; }

class BrokenDisks : public FailingFileSystems, public testing::WithParamInterface<BrokenCall> {
 protected:
  // Trains on the broken disk. The first 10 steps use a sound one if the first checkpoint would already fail.
  ProgramResult train_on(const std::string& errors) const {
    const BrokenCall& broken = GetParam();
    const std::string path = broken.path != nullptr ? broken.path : "";
    std::string flags;
    if (!path.ends_with("step-000000015.partial")) {
      const ProgramResult sound = run_shell(ranks(training(10, "stop")));
      EXPECT_EQ(sound.exit_code, 0) << sound.output;
      flags = "--resume auto --resume-with train.steps";
    }
    const std::string command = training(30, errors, flags);
    return run_shell(ranks(place_.script(
        fmt::format("[ $OMPI_COMM_WORLD_RANK = {0} ] || exec {1}\n"
                    "exec strace -f -qq --seccomp-bpf -o {2} {3} -e trace={4} -e "
                    "inject={4}:error=EIO:when={5} {1}",
                    broken.rank, command, place_.path("trace").string(),
                    path.empty() ? "" : fmt::format("-P {}/{}", run(), path), broken.call, broken.when))));
  }
};

TEST_P(BrokenDisks, EndATrainingThatMustSave) {
  SKIP_WITHOUT_STRACE();
  expect_failure(train_on("stop"), exit_code::io, {"step 15", "Input/output error"});
  expect_nothing_unfinished();
  expect_to_go_on();
}

constexpr const char* kPartial = "checkpoints/step-000000015.partial";
INSTANTIATE_TEST_SUITE_P(, BrokenDisks,
                         testing::Values(BrokenCall{"bytes_of_a_file", 1, "fsync", 1},
                                         BrokenCall{"name_of_a_file", 1, "rename", 1},
                                         BrokenCall{"folder_of_a_file", 1, "fsync", 2},
                                         BrokenCall{"new_folder", 1, "mkdir", 1, kPartial},
                                         BrokenCall{"whole_folder", 0, "fsync", 1, kPartial},
                                         BrokenCall{"name_of_the_folder", 0, "rename", 1, kPartial},
                                         BrokenCall{"folder_around", 0, "fsync", 1, "checkpoints"}),
                         [](const auto& each) { return std::string(each.param.name); });

class BrokenDisksTolerated : public BrokenDisks {};

TEST_P(BrokenDisksTolerated, CauseAWarning) {
  SKIP_WITHOUT_STRACE();
  const ProgramResult result = train_on("warn");
  EXPECT_EQ(result.exit_code, 0) << result.output;
  EXPECT_GE(failures_reported(result, "Input/output error"), 1) << result.output;
  expect_nothing_unfinished();
  expect_to_go_on();
}

INSTANTIATE_TEST_SUITE_P(, BrokenDisksTolerated,
                         testing::Values(BrokenCall{"bytes_of_a_file", 1, "fsync", 1},
                                         BrokenCall{"name_of_the_folder", 0, "rename", 1, kPartial}),
                         [](const auto& each) { return std::string(each.param.name); });

// Network file systems may report a full disk only when a file is closed. The third time that steps.jsonl is
// closed is after its second line.
TEST_F(FailingFileSystems, LineThatFailsWhenItsFileIsClosedIsRemoved) {
  SKIP_WITHOUT_STRACE();
  const ProgramResult result = run_shell(
      fmt::format("strace -f -qq --seccomp-bpf -o {} -P {}/steps.jsonl -e trace=close -e "
                  "inject=close:error=ENOSPC:when=3 {}",
                  place_.path("trace").string(), run(), place_.train({"train.steps=5", "run.log_every=1"})));
  EXPECT_EQ(result.exit_code, exit_code::io) << result.output;
  EXPECT_NE(lines_naming(result.output, {"steps.jsonl", "1 line", "No space left on device"}), "")
      << result.output;
  const std::string steps = text_of(run() + "/steps.jsonl");
  EXPECT_EQ(count(steps, "\n"), 4) << steps;
  for (int step = 1; step <= 5; ++step)
    EXPECT_EQ(count(steps, fmt::format("\"step\":{},", step)), step == 2 ? 0 : 1) << steps;
}

// fsync(2) is useful only in this order: a file's bytes, its name, then the folder's names. The lines up to
// the checkpoint come before its name, because a resumed training does not write them again.
TEST_F(FailingFileSystems, FilesAreSyncedBeforeTheirNamesAndTheCheckpointsName) {
  SKIP_WITHOUT_STRACE();
  const auto trace = place_.path("trace");
  const ProgramResult result =
      run_shell(fmt::format("strace -f -y -qq --seccomp-bpf -o {} -e trace=fsync,rename {}", trace.string(),
                            training(5, "stop", "--set run.metrics_every=2")));
  ASSERT_EQ(result.exit_code, 0) << result.output;
  const std::vector<std::string> lines = lines_of(lines_naming(text_of(trace), run()));
  const auto first = [&](const std::vector<std::string>& parts, std::size_t from) {
    for (std::size_t i = from; i < lines.size(); ++i)
      if (std::ranges::all_of(
              parts, [&](const std::string& part) { return lines[i].find(part) != std::string::npos; }))
        return i;
    ADD_FAILURE() << fmt::format("no {} in:\n{}", fmt::join(parts, " .. "), fmt::join(lines, "\n"));
    return lines.size();
  };
  const std::string whole = run() + "/checkpoints/step-000000005", partial = whole + ".partial";
  const std::size_t named = first({"rename(\"" + partial + "\", \"" + whole + "\")"}, 0);
  for (const char* name : {"shared.safetensors", "rank-00000.safetensors", "manifest.json"}) {
    const std::size_t renamed = first({"rename(", partial + "/" + name + "\""}, 0);
    ASSERT_LT(renamed, lines.size());
    // The call before, of the same thread. strace shows no name of a file that was created without one.
    const std::string thread = lines[renamed].substr(0, lines[renamed].find(' ') + 1);
    std::size_t after = renamed;
    while (after > 0 && !lines[after - 1].starts_with(thread)) --after;
    ASSERT_GT(after, 0u) << name;
    expect_parts(lines[after - 1], {"fsync(", partial + "/"});
    EXPECT_LT(first({"fsync(", partial + ">"}, renamed), named) << name;
  }
  for (const char* lines_up_to_it :
       {"metrics.jsonl", "steps.jsonl", "evaluations.jsonl", "tensorboard/events.out"})
    EXPECT_LT(first({"fsync(", run() + "/" + lines_up_to_it}, 0), named) << lines_up_to_it;
  for (const std::string& around : {run() + "/checkpoints>", run() + ">"})
    EXPECT_LT(first({"fsync(", around}, named), lines.size()) << around;
}

}  // namespace
}  // namespace lockstep
