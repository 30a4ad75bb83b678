// SPDX-License-Identifier: Apache-2.0
//
// Variables as seen on Debian 12 with Slurm 22.05 and Open MPI 4.1, by launcher.
#include "comm/job/launcher.h"

#include <map>

#include <gtest/gtest.h>

#include "tests/message_of.h"

namespace lockstep {
namespace {

using Variables = std::map<std::string, std::string>;

Launch launch_of(const Variables& variables) {
  return find_launch([&](const char* name) -> const char* {
    const auto found = variables.find(name);
    return found == variables.end() ? nullptr : found->second.c_str();
  });
}

void expect_launch(const Variables& variables, const Launch& expected) {
  const Launch launch = launch_of(variables);
  EXPECT_EQ(launch.launcher, expected.launcher);
  EXPECT_EQ(launch.rank, expected.rank);
  EXPECT_EQ(launch.size, expected.size);
}

Variables with(Variables variables, const Variables& more) {
  for (const auto& [name, value] : more) variables[name] = value;
  return variables;
}

Variables of_mpirun(int rank, int size) {
  return {{"OMPI_COMM_WORLD_RANK", std::to_string(rank)},
          {"OMPI_COMM_WORLD_SIZE", std::to_string(size)},
          {"PMIX_RANK", std::to_string(rank)},
          {"PMIX_SERVER_URI2", "573112320.0;tcp4://127.0.0.1:54715"}};
}

// The variables that srun gives each task, and those of the batch script in an allocation of two.
Variables of_task(int task, int tasks) {
  return {{"SLURM_STEP_ID", "0"},
          {"SLURM_STEP_NUM_TASKS", std::to_string(tasks)},
          {"SLURM_NTASKS", std::to_string(tasks)},
          {"SLURM_PROCID", std::to_string(task)}};
}
const Variables kBatchScript = {{"SLURM_NTASKS", "2"}, {"SLURM_NPROCS", "2"}, {"SLURM_PROCID", "0"}};

TEST(Launch, WithoutALauncherThereIsOneProcess) {
  expect_launch({}, {Launcher::none, 0, 1});
  expect_launch(kBatchScript, {Launcher::none, 0, 1});
  expect_launch(of_task(0, 1), {Launcher::none, 0, 1});
}

TEST(Launch, MpirunSetsRankAndSizeAlsoInsideAnAllocation) {
  expect_launch(of_mpirun(1, 3), {Launcher::mpirun, 1, 3});
  expect_launch(with(of_mpirun(0, 1), kBatchScript), {Launcher::mpirun, 0, 1});
  expect_launch(with(of_mpirun(1, 2), kBatchScript), {Launcher::mpirun, 1, 2});
  expect_launch(with(of_mpirun(1, 2), of_task(0, 1)), {Launcher::mpirun, 1, 2});
}

// On each other node mpirun starts a daemon as a separate Slurm step, and the daemon starts ranks.
TEST(Launch, RanksOfAnMpirunDaemonAreNotTasksOfItsSlurmStep) {
  for (const char* daemon : {"1020919808.1;tcp4://127.0.0.1:48149", "prterun-n1-77@0.10;tcp4://10.0.0.1:4"}) {
    const Variables remote = with(of_task(0, 2), {{"PMIX_SERVER_URI2", daemon}});
    expect_launch(with(of_mpirun(0, 1), remote), {Launcher::mpirun, 0, 1});
    expect_launch(with(of_mpirun(1, 2), remote), {Launcher::mpirun, 1, 2});
  }
}

TEST(Launch, SrunOfMpirunMultipliesTheRanks) {
  expect_launch(with(of_mpirun(0, 1), of_task(1, 2)), {Launcher::srun_of_mpirun, 1, 2});
  expect_launch(with(of_mpirun(1, 2), of_task(2, 3)), {Launcher::srun_of_mpirun, 5, 6});
}

// `srun -n 4 --pty bash` with mpirun inside. The variables equal those of the first task of `srun mpirun`.
TEST(Launch, MpirunInTheFirstTaskOfAStepIsOneJobWithAWarning) {
  const Variables variables = with(of_mpirun(1, 2), of_task(0, 4));
  expect_launch(variables, {Launcher::mpirun, 1, 2});
  expect_parts(describe_first_task(launch_of(variables)),
               {"SLURM_STEP_NUM_TASKS", "mpirun", "srun --mpi=pmix", "2 ranks"});
  for (const Variables& without : {of_mpirun(1, 2), with(of_mpirun(1, 2), of_task(1, 4)), of_task(0, 4)})
    EXPECT_EQ(describe_first_task(launch_of(without)), "");
}

TEST(Launch, SlurmStepsSetRankAndSizeWithAndWithoutPmi) {
  expect_launch(with(of_task(1, 2), {{"PMIX_RANK", "1"}}), {Launcher::srun, 1, 2});
  expect_launch(of_task(1, 2), {Launcher::srun, 1, 2});
  expect_launch(with(of_task(1, 2), {{"PMI_RANK", "1"}, {"PMI_SIZE", "2"}}), {Launcher::pmi, 1, 2});
  expect_launch({{"PMI_RANK", "3"}, {"PMI_SIZE", "4"}}, {Launcher::pmi, 3, 4});
  expect_launch({{"PMIX_RANK", "3"}}, {Launcher::none, 3, 1});
}

TEST(Launch, ValuesThatAreNotNumbersAreIgnored) {
  for (const char* text : {"", "x", "3x", "-1", "99999999999"}) {
    expect_launch({{"OMPI_COMM_WORLD_SIZE", text}, {"PMI_SIZE", text}, {"SLURM_STEP_NUM_TASKS", text}}, {});
  }
}

TEST(SplitLaunch, IsReportedWhenMpiJoinsFewerRanksThanWereStarted) {
  EXPECT_EQ(describe_split_launch({}, 1, "Open MPI"), "");
  EXPECT_EQ(describe_split_launch({Launcher::mpirun, 0, 2}, 2, "Open MPI"), "");
  // Variables of an outer mpirun that a launcher left unchanged.
  EXPECT_EQ(describe_split_launch({Launcher::mpirun, 0, 1}, 4, "MPICH"), "");
  const auto described = [](const Launch& launch) { return describe_split_launch(launch, 1, "MPICH 4.0"); };
  const std::string of_mpirun_alone = described({Launcher::mpirun, 0, 4});
  expect_parts(of_mpirun_alone, {"mpirun", "4 ranks", "MPICH 4.0"});
  EXPECT_EQ(of_mpirun_alone.find("srun"), std::string::npos) << of_mpirun_alone;
  expect_parts(described({Launcher::srun_of_mpirun, 0, 2}), {"mpirun -np 2", "srun --mpi=pmix -n 2"});
  expect_parts(described({Launcher::srun, 0, 3}),
               {"3 ranks", "MPICH 4.0", "srun --mpi=pmix", "SLURM_STEP_NUM_TASKS"});
  // 112 ranks in worlds of 16 are 7 trainings.
  expect_parts(describe_split_launch({Launcher::pmi, 0, 112}, 16, "MPICH 4.0"),
               {"112 ranks", "16", "7", "MPICH 4.0", "srun --mpi=pmix", "PMI_SIZE"});
}

}  // namespace
}  // namespace lockstep
