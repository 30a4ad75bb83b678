// SPDX-License-Identifier: Apache-2.0
//
// What started this process, told from environment variables. A launcher that MPI cannot talk to starts N
// processes, each of which MPI takes for a world of one: they would train N times, into the same files. Only
// the environment shows it.
#pragma once

#include <functional>
#include <string>

namespace lockstep {

// getenv's contract: null for a variable that is not set.
using Environment = std::function<const char*(const char* name)>;

enum class Launcher {
  none,            // started by hand or from a batch script, or by what tells no size
  mpirun,          // Open MPI's
  pmi,             // MPICH's mpiexec, or srun --mpi=pmi2
  srun,            // a Slurm step
  srun_of_mpirun,  // a further task of a Slurm step, each of which is an mpirun of its own
};

struct Launch {
  Launcher launcher = Launcher::none;
  int rank = 0;  // among all processes the launcher started
  int size = 1;  // their number, as far as it is told
  // mpirun says the number, and the first task of a Slurm step of several tasks started it: an interactive
  // step's shell, or srun, which started further ones.
  bool in_first_task = false;
};

// The size is told by the first of: mpirun's variables, PMI's, those of Slurm's step (PMIx tells only a
// rank). A batch script's SLURM_NTASKS counts for nothing: it is the allocation's, whatever was started.
Launch find_launch(const Environment& environment);

// What to do about processes that MPI did not join; empty where it joined them all. mpi_size: the processes
// of this world, mpi_version: of which library.
std::string describe_split_launch(const Launch& launch, int mpi_size, const std::string& mpi_version);

// A warning where MPI joined all processes, and srun may have started further jobs beside this one; else
// empty.
std::string describe_first_task(const Launch& launch);

}  // namespace lockstep
