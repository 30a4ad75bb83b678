// SPDX-License-Identifier: Apache-2.0
//
// A failure of one rank ends the whole job. The jobs of failing_rank would train for days; these tests expect
// them to end with that rank's code.
#include <filesystem>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "core/error.h"
#include "tests/launch/program.h"

namespace lockstep {
namespace {

ProgramResult run_failing(const std::string& kind, int rank) {
  return run_ranks(3, program("failing_rank") + " " + kind + " " + std::to_string(rank));
}

TEST(Failure, DataThatCannotBeReadOnAnyRankEndTheJob) {
  for (const int rank : {0, 2}) {
    expect_failure(run_failing("data", rank), exit_code::data,
                   {"rank " + std::to_string(rank) + " in step 26: sample is broken"});
  }
}

TEST(Failure, AnExceptionThatIsNoErrorEndsTheJob) {
  expect_failure(run_failing("exception", 1), exit_code::failed,
                 {"rank 1 in step 26: not an Error of Lockstep"});
}

TEST(Failure, MemoryThatRunsOutOnOneRankEndsTheJob) {
  expect_failure(run_failing("memory", 1), exit_code::io, {"rank 1 in step 26: the host is out of memory"});
}

TEST(Failure, AKilledRankEndsTheJob) {
  const ProgramResult result = run_failing("killed", 1);
  EXPECT_EQ(result.exit_code, 128 + 9) << result.output;
  EXPECT_NE(result.output.find("signal 9"), std::string::npos) << result.output;
}

// No watchdog: the peers detect the hang by timeout. They may detect it at the same instant, so one or both
// of them report it.
TEST(Failure, ARankThatHangsEndsTheJob) {
  const ProgramResult result = run_failing("stopped", 1);
  EXPECT_EQ(result.exit_code, exit_code::resumable) << result.output;
  for (const std::string part :
       {" s for the ranks of its node in all_reduce ", "(sum, bucket ", "comm.timeout_seconds"})
    EXPECT_NE(result.output.find(part), std::string::npos) << part << " in:\n" << result.output;
}

// The watchdog reports the stopped rank, what its peers wait for, and the steps of both.
TEST(Failure, ARankThatIsStoppedIsNamed) {
  for (const int stopped : {0, 2}) {
    const Workplace workplace("stopped");
    const ProgramResult result =
        run_ranks(3, workplace.train({"train.epochs=1000000", "comm.timeout_seconds=2"},
                                     fmt::format("--inject stop:rank={},step=20", stopped)));
    EXPECT_EQ(result.exit_code, exit_code::resumable) << result.output;
    for (const std::string& part :
         {fmt::format("\nrank {} (process ", stopped), std::string(" has not been heard of for "),
          std::string("; its last collective was "),
          fmt::format("what rank {}'s machine tells of it:", stopped),
          std::string(" stopped by a signal (T)"),
          fmt::format("where rank {} stands:", stopped == 0 ? 1 : 0)})
      EXPECT_EQ(count(result.output, part), 1) << part << ":\n" << result.output;
    for (const char* part :
         {" wait in all_reduce ", "lockstep::Trainer::step()", "lockstep::HostCommunicator::perform"})
      EXPECT_GE(count(result.output, part), 1) << part << ":\n" << result.output;
  }
}

// MPI waits for the rank without a limit, and no watchdog knows any rank yet.
TEST(Failure, ARankThatIsStoppedBeforeMpiStartsEndsTheJobAndIsNamed) {
  for (const int stopped : {0, 2}) {
    const Workplace workplace("never_starts");
    const std::string command =
        workplace.script(fmt::format("export LOCKSTEP_START_SECONDS=1\n"
                                     "[ $OMPI_COMM_WORLD_RANK != {} ] || kill -STOP $$\nexec {}",
                                     stopped, workplace.train({})));
    const ProgramResult result = run_ranks(3, command);
    EXPECT_EQ(result.exit_code, exit_code::resumable) << result.output;
    for (const std::string& part :
         {fmt::format("[rank {}] not all of the job's 3 processes have started MPI in 1 s",
                      stopped == 0 ? 1 : 0),
          fmt::format("\nrank {}: process ", stopped), std::string(" stopped by a signal (T)")})
      EXPECT_GE(count(result.output, part), 1) << part << ":\n" << result.output;
  }
}

TEST(Failure, ATimeToStartThatIsNoNumberIsRefused) {
  expect_failure(run_shell("LOCKSTEP_START_SECONDS=soon " + program("lockstep") + " train fashion_mnist_mlp"),
                 exit_code::config, {"LOCKSTEP_START_SECONDS is \"soon\""});
}

TEST(Failure, ParametersThatDifferInOneBitAreFoundAtTheEnd) {
  expect_failure(run_failing("parameter", 2), exit_code::failed, {"rank 2 ended with other parameters"});
}

// A separate file system of 64 KiB.
class FullDisk {
 public:
  explicit FullDisk(const std::filesystem::path& folder) : folder_(folder) {
    std::filesystem::create_directories(folder_);
    mounted_ = run_shell("mount -t tmpfs -o size=64k tmpfs " + folder_.string()).exit_code == 0;
  }
  ~FullDisk() {
    if (mounted_) run_shell("umount " + folder_.string());
  }
  FullDisk(const FullDisk&) = delete;
  FullDisk& operator=(const FullDisk&) = delete;
  bool mounted() const { return mounted_; }

 private:
  std::filesystem::path folder_;
  bool mounted_ = false;
};

// A small /dev/shm, as in containers. MPI's own messages use TCP, because they would not fit there either.
TEST(Failure, ASmallSharedMemoryIsDoneWithout) {
  const Workplace workplace("small");
  const std::string in_little_memory =
      "unshare -m sh -c 'mount -t tmpfs -o size=2m tmpfs /dev/shm && exec \"$@\"' sh ";
  if (run_shell(in_little_memory + "true").exit_code != 0)
    GTEST_SKIP() << "only root can mount a file system";
  const ProgramResult result =
      run_shell(in_little_memory + "env OMPI_MCA_btl=tcp,self mpirun --oversubscribe --bind-to none -np 2 " +
                workplace.train({"train.steps=2"}));
  EXPECT_EQ(result.exit_code, 0) << result.output;
  const std::size_t told = result.output.find("/dev/shm has no room");
  EXPECT_NE(told, std::string::npos) << result.output;
  EXPECT_EQ(result.output.find("/dev/shm has no room", told + 1), std::string::npos) << result.output;
}

TEST(Failure, AnExportToAFullDiskEndsTheJobWithTheReason) {
  const Workplace workplace("full");
  const FullDisk disk(workplace.path("disk"));
  if (!disk.mounted()) GTEST_SKIP() << "a file system can only be mounted by root";
  const auto file = workplace.path("disk") / "x.safetensors";
  expect_failure(run_ranks(3, workplace.train({"train.steps=1"}, "--export " + file.string())), exit_code::io,
                 {"No space left on device", file.string()});
  EXPECT_FALSE(std::filesystem::exists(file)) << "a file that is not whole";
}

}  // namespace
}  // namespace lockstep
