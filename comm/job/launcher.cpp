// SPDX-License-Identifier: Apache-2.0
#include "comm/job/launcher.h"

#include <optional>
#include <string_view>

#include <fmt/format.h>

#include "core/text/text.h"

namespace lockstep {
namespace {

std::optional<int> read_count(const Environment& environment, const char* name) {
  const char* text = environment(name);
  const auto count = text == nullptr ? std::nullopt : number_from<int>(text);
  return count && *count >= 0 ? count : std::nullopt;
}

// True if mpirun itself started this process, and not one of its daemons on other nodes, which run as a
// separate Slurm step. A PMIx server's address begins with its name; mpirun's server is number 0 of its job.
bool is_child_of_mpirun(const Environment& environment) {
  const char* text = environment("PMIX_SERVER_URI2");
  if (text == nullptr) return false;
  const std::string_view address(text);
  const std::string_view server = address.substr(0, address.find(';'));
  return server.ends_with(".0");
}

}  // namespace

Launch find_launch(const Environment& environment) {
  const auto count = [&](const char* name) { return read_count(environment, name); };
  Launch launch;
  for (const char* name : {"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID"}) {
    const auto rank = count(name);
    if (!rank) continue;
    launch.rank = *rank;
    break;
  }
  const int tasks = count("SLURM_STEP_NUM_TASKS").value_or(1);
  if (const auto size = count("OMPI_COMM_WORLD_SIZE")) {
    launch.launcher = Launcher::mpirun;
    launch.size = *size;
    const bool in_step = tasks > 1 && is_child_of_mpirun(environment);
    const int task = count("SLURM_PROCID").value_or(0);
    launch.in_first_task = in_step && task == 0;
    if (in_step && task > 0) {
      launch.launcher = Launcher::srun_of_mpirun;
      launch.rank += task * *size;
      launch.size *= tasks;
    }
  } else if (const auto pmi_size = count("PMI_SIZE")) {
    launch.launcher = Launcher::pmi;
    launch.size = *pmi_size;
  } else if (tasks > 1) {
    launch.launcher = Launcher::srun;
    launch.size = tasks;
  }
  return launch;
}

std::string describe_split_launch(const Launch& launch, int mpi_size, const std::string& mpi_version) {
  if (launch.size <= mpi_size) return {};
  const int worlds = (launch.size + mpi_size - 1) / mpi_size;
  const std::string harm = fmt::format("{} separate trainings would overwrite each other's files", worlds);
  const std::string join = fmt::format("{} joined only {} of them", mpi_version, mpi_size);
  switch (launch.launcher) {
    case Launcher::mpirun:
      return fmt::format(
          "mpirun started {} ranks, but {}: {}; use the mpirun of the MPI library that lockstep was built "
          "with",
          launch.size, join, harm);
    case Launcher::srun_of_mpirun:
      return fmt::format(
          "srun started mpirun {} times, and each started a separate job: {}; run mpirun -np {} once, from "
          "the batch script or under salloc without srun, or start the ranks with srun: srun --mpi=pmix -n "
          "{} lockstep ...",
          worlds, harm, launch.size, launch.size);
    default:
      return fmt::format(
          "{0} is {1}, so {1} ranks were started, but {2}: {3}; start them with srun --mpi=pmix (srun "
          "--mpi=list shows the types), or with mpirun from the batch script; if this is a single process in "
          "the shell of an interactive step: unset {0}",
          launch.launcher == Launcher::pmi ? "PMI_SIZE" : "SLURM_STEP_NUM_TASKS", launch.size, join, harm);
  }
}

std::string describe_first_task(const Launch& launch) {
  if (!launch.in_first_task) return {};
  return fmt::format(
      "SLURM_STEP_NUM_TASKS is set: if srun started mpirun, each of its tasks is a separate job of {}; run "
      "mpirun once, or srun --mpi=pmix without mpirun. In the shell of an interactive step this is harmless; "
      "unset SLURM_STEP_NUM_TASKS avoids the warning",
      counted(launch.size, "rank"));
}

}  // namespace lockstep
