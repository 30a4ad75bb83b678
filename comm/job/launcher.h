// SPDX-License-Identifier: Apache-2.0
//
// Finds out from environment variables which launcher started this process. If MPI cannot talk to the
// launcher, each of its N processes becomes a world of one, and all train into the same files. Only the
// environment shows this.
#pragma once

#include <functional>
#include <string>

namespace lockstep {

// getenv's contract: null for a variable that is not set.
using Environment = std::function<const char*(const char* name)>;

enum class Launcher {
  none,            // started by hand, from a batch script, or by a launcher that gives no size
  mpirun,          // Open MPI's
  pmi,             // MPICH's mpiexec, or srun --mpi=pmi2
  srun,            // a Slurm step
  srun_of_mpirun,  // a later task of a Slurm step that started mpirun in every task
};

struct Launch {
  Launcher launcher = Launcher::none;
  int rank = 0;  // among all processes the launcher started
  int size = 1;  // number of these processes, if known
  // mpirun gave the size and runs in the first task of a Slurm step of several tasks: in the shell of an
  // interactive step, or under an srun that started several mpiruns.
  bool in_first_task = false;
};

// The size comes from the first of: mpirun's variables, PMI's, those of the Slurm step (PMIx gives only a
// rank). SLURM_NTASKS is ignored: it describes the allocation of a batch script, not what was started.
Launch find_launch(const Environment& environment);

// An error text with the remedy if MPI did not join all processes; else empty. mpi_size: the size of this
// world; mpi_version: the MPI library.
std::string describe_split_launch(const Launch& launch, int mpi_size, const std::string& mpi_version);

// A warning that srun may have started more jobs beside this one although MPI joined all processes; else
// empty.
std::string describe_first_task(const Launch& launch);

}  // namespace lockstep
