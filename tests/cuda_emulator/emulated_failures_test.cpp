// SPDX-License-Identifier: Apache-2.0
//
// lockstep-emulated on devices that fail or hang: the job ends and names the rank.
#include <regex>
#include <string>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "core/error.h"
#include "tests/cuda_emulator/emulated_run.h"
#include "tests/launch/program/fault_run.h"

namespace lockstep {
namespace {

TEST_F(EmulatedDigest, AFaultOfTheDeviceEndsTheJobAndNamesIt) {
  const EmulatedRun run{.machine = "LOCKSTEP_EMULATED_FAULTS=1/operation:300=700"};
  const ProgramResult result = run_ranks(2, command_of(workplace_, run, ""));
  EXPECT_EQ(result.exit_code, exit_code::failed) << result.output;
  EXPECT_GE(count(result.output, "illegal memory access"), 1) << result.output;
}

// The error of rank 1 after its 20th collective is ncclRemoteError. The last step is long enough for the
// communicator to notice the error, which it looks for every 100 ms.
TEST_F(EmulatedDigest, ALostPeerEndsTheJobWithTheResumableCode) {
  const EmulatedRun run{.settings = {"model.cnn.width=8", "train.steps=24"},
                        .machine = "LOCKSTEP_EMULATED_NCCL_ASYNC=1/20:6"};
  const ProgramResult result =
      run_ranks(2, command_of(workplace_, run, "--inject slow:rank=1,step=24,ms=1000"));
  EXPECT_EQ(result.exit_code, exit_code::resumable) << result.output;
}

// ncclSystemError. A new start would fail in the same way.
TEST_F(EmulatedDigest, ANetworkThatNcclCannotUseEndsTheJobForGood) {
  for (const char* function : {"ncclGetUniqueId", "ncclCommInitRankConfig"}) {
    const EmulatedRun run{.machine = fmt::format("LOCKSTEP_EMULATED_FAULTS=0/{}:1=2", function)};
    const ProgramResult result = run_ranks(2, command_of(workplace_, run, ""));
    EXPECT_EQ(result.exit_code, exit_code::failed) << result.output;
    EXPECT_GE(count(result.output, "NCCL cannot connect"), 1) << result.output;
  }
}

// cuDNN refuses a third of its plans when they are created, and another third when they are executed.
TEST_F(EmulatedDigest, PlansThatFailAreLeftOut) {
  for (const char* choose : {"direct", "time"}) {
    const EmulatedRun run{
        .settings = {"train.steps=1", fmt::format("kernels.choose={}", choose), "kernels.cache=none"},
        .machine = "LOCKSTEP_EMULATED_PLAN_FAILURES=33"};
    const ProgramResult result = run_ranks(2, command_of(workplace_, run, ""));
    EXPECT_EQ(result.exit_code, exit_code::done) << result.output;
    EXPECT_GE(count(result.output, "CUDNN_STATUS_EXECUTION_FAILED"), 1) << result.output;
  }
}

// Memory that cannot be a window on one rank is registered on all of them, and plain if that fails, too.
TEST_F(EmulatedDigest, MemoryThatNcclRefusesIsUsedInASimplerWay) {
  const Settings settings = {"model.name=mlp", "model.mlp.width=32", "train.steps=5"};
  const std::string expected = digest_of(workplace_, {.settings = settings});
  const auto with = [&](const std::string& faults) {
    const EmulatedRun run{.settings = settings, .machine = "LOCKSTEP_EMULATED_FAULTS=" + faults};
    const auto file = workplace_.path("digest");
    const ProgramResult result = run_ranks(2, command_of(workplace_, run, "--digest " + file.string()));
    EXPECT_EQ(result.exit_code, exit_code::done) << result.output;
    EXPECT_EQ(text_of(file), expected) << faults;
    return result.output;
  };
  const std::string window = "ncclCommWindowRegister:1=3";
  EXPECT_EQ(count(with(window), "which is registered instead"), 1);
  EXPECT_EQ(count(with(window + ",1/ncclCommRegister:1=3"), "cannot register the memory"), 1);
  EXPECT_EQ(count(with("1/ncclMemAlloc:1=2"), "cannot allocate the memory"), 1);
  EXPECT_EQ(count(with("1/ncclCommRegister:1=3 NCCL_WIN_ENABLE=0"), "cannot register the memory"), 1)
      << "NCCL 2.29 succeeds without a window";
}

// If recording fails on a GPU, all ranks stop recording and the job continues with the same bits.
TEST_F(EmulatedDigest, AStepThatOneRankCannotRecordIsEnqueuedByAll) {
  struct Refusal {
    const char* fault;
    const char* check;
    int rank;  // the first that cannot record
  };
  // One more step than until the second recording.
  const Settings settings = {"model.name=mlp", "model.mlp.width=32", "train.steps=5"};
  const std::string expected = digest_of(workplace_, {.settings = settings});
  for (const Refusal& refusal : {Refusal{"cudaGraphInstantiate:1=2", "plan", 0},
                                 {"1/cudaGraphInstantiate:2=2", "plan", 1},
                                 {"1/cudaStreamBeginCapture:1=900", "plan", 1},
                                 {"1/cudaStreamBeginCapture:1=900", "step", 1},
                                 {"1/cudaStreamBeginCapture:1=900", "collective", 1}}) {
    SCOPED_TRACE(fmt::format("{}, {}", refusal.fault, refusal.check));
    EmulatedRun run{.settings = settings,
                    .machine = fmt::format("LOCKSTEP_EMULATED_FAULTS={}", refusal.fault)};
    run.settings.push_back(fmt::format("comm.check={}", refusal.check));
    const auto file = workplace_.path("refused_digest");
    std::filesystem::remove(file);
    const ProgramResult result = run_ranks(2, command_of(workplace_, run, "--digest " + file.string()));
    EXPECT_EQ(result.exit_code, exit_code::done) << result.output;
    EXPECT_EQ(text_of(file), expected);
    EXPECT_EQ(count(result.output, "steps are enqueued one by one"), 1) << result.output;
    EXPECT_GE(count(result.output, fmt::format("warning [rank {}]", refusal.rank)), 1) << result.output;
    if (std::string(refusal.fault).ends_with("=2")) {
      EXPECT_EQ(count(result.output, "out of memory"), 1) << "expected CUDA's text for error 2:\n"
                                                          << result.output;
    }
  }
}

TEST_F(EmulatedDigest, IfAllPlansFailTheErrorNamesTheProblem) {
  const EmulatedRun run{.ranks = 1, .machine = "LOCKSTEP_EMULATED_PLAN_FAILURES=100"};
  const ProgramResult result = run_ranks(1, command_of(workplace_, run, ""));
  EXPECT_EQ(result.exit_code, exit_code::config) << result.output;
  EXPECT_GE(count(result.output, "convolution forward"), 1) << result.output;
}

// Ends a job with a hanging device: sends `signal` to "$job", its mpirun, or to "$hung", the process of the
// hanging rank. Reports the processes and shared files that remain.
ProgramResult end_hanging_job(const Workplace& workplace, const std::string& train,
                              const std::string& signal) {
  const std::string output = workplace.path("output").string();
  const std::string rank = workplace.script("echo \"process $$\"\nexec " + train);
  return run_shell(workplace.script(fmt::format(R"sh(
: >{output}  # or the loop may read the output of the previous job
mpirun --oversubscribe --bind-to none -np 2 {rank} >{output} 2>&1 &
job=$!
until hung=$(sed -n 's/.* hangs in process \([0-9]*\),.*/\1/p' {output} | grep .); do
  kill -0 $job || {{ cat {output}; exit 99; }}
  sleep 0.05
done
ranks=$(sed -n 's/^process //p' {output})
shared=$(for rank in $ranks; do grep -oE '/(dev/shm|tmp/ompi)[^ ]*' /proc/$rank/maps; done)
kill {signal}
wait $job
code=$?
for rank in $ranks; do
  while grep -q '^State:.[^ZX]' /proc/$rank/status 2>/dev/null; do sleep 0.05; done
done
for rank in $ranks; do
  for log in /dev/shm/lockstep.$rank.*; do [ ! -e $log ] || {{ echo "$log can be read"; rm $log; }}; done
done
# Files of dead ranks remain for lockstep monitor, which reports the deaths; the next training removes them.
rm -f $(for file in $shared; do case $file in /dev/shm/lockstep-rank.*) echo $file;; esac; done)
for file in $shared; do [ ! -e $file ] || echo "$file remains"; done
cat {output}
exit $code
)sh",
                                                fmt::arg("rank", rank), fmt::arg("output", output),
                                                fmt::arg("signal", signal))));
}

// A separate folder for each job: on a busy machine, processes of the previous job may still use theirs.
std::string run_dir_of(const Workplace& workplace, int job) {
  return fmt::format("run.dir={}", workplace.path(fmt::format("run{}", job)).string());
}

// True if a line of the watchdog's report names this rank, with or without its process, and the step and
// backward pass where its device is.
bool tells_device(const std::string& report, int rank, bool with_process) {
  const std::string process = with_process ? R"( \(\w+ \d+[^\n]*)" : R"(\b[^(\n]*)";
  return std::regex_search(report,
                           std::regex(fmt::format("rank {}{}step \\d+[^\\n]*backward", rank, process)));
}

// The watchdog blames the rank whose device is behind the devices of its peers, whether steps are enqueued
// one by one (operation 180) or replayed. It names the process of the blamed rank only.
TEST_F(EmulatedDigest, ADeviceThatHangsEndsTheJob) {
  struct Hang {
    int ranks, rank, operation;
  };
  int jobs = 0;
  for (const Hang& hang : {Hang{1, 0, 180}, Hang{2, 1, 700}}) {
    const ProgramResult result = run_until_fault(" hangs in process ", [&](const std::string& limit) {
      // Without the norm of gradients, so that the operation is one that the other rank's device waits for.
      const EmulatedRun run{
          .ranks = hang.ranks,
          .settings = {limit, "run.log_every=0", run_dir_of(workplace_, ++jobs)},
          .machine = fmt::format("LOCKSTEP_EMULATED_FAULTS={}/operation:{}=hang", hang.rank, hang.operation)};
      return run_ranks(hang.ranks, command_of(workplace_, run, ""));
    });
    EXPECT_EQ(result.exit_code, exit_code::resumable) << result.output;
    EXPECT_EQ(count(result.output, "--resume auto"), 1) << result.output;
    EXPECT_GE(count(result.output, "lockstep::Trainer::"), 1) << result.output;
    EXPECT_TRUE(tells_device(result.output, hang.rank, true)) << result.output;
    EXPECT_FALSE(tells_device(result.output, 1 - hang.rank, true)) << result.output;
    EXPECT_EQ(tells_device(result.output, 1 - hang.rank, false), hang.ranks == 2) << result.output;
  }
}

// Before the watchdog ends the job, the ranks wait for each other. A signal to mpirun or to the process of
// the hanging rank ends all processes. The collective logs of the ranks remain readable.
TEST_F(EmulatedDigest, AJobWithAHangingDeviceCanBeEndedFromOutside) {
  for (const std::string signal : {"-TERM $job", "-KILL $hung"}) {
    const EmulatedRun run{.settings = {run_dir_of(workplace_, signal == "-TERM $job" ? 1 : 2)},
                          .machine = "LOCKSTEP_EMULATED_FAULTS=1/operation:180=hang"};
    const ProgramResult result = end_hanging_job(workplace_, command_of(workplace_, run, ""), signal);
    EXPECT_NE(result.exit_code, 0) << result.output;
    EXPECT_EQ(count(result.output, " hangs in process "), 1) << result.output;
    EXPECT_EQ(count(result.output, " remains"), 0) << result.output;
    EXPECT_GE(count(result.output, " can be read"), 2) << result.output;
  }
}

}  // namespace
}  // namespace lockstep
