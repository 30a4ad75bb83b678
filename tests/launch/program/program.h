// SPDX-License-Identifier: Apache-2.0
//
// Runs the real program as a user does, several ranks under mpirun, on a small generated dataset.
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include <sys/types.h>

#include "tests/temporary_folder.h"

namespace lockstep {

struct ProgramResult {
  int exit_code = -1;
  std::string output;  // standard output and standard error
};

// The number of occurrences of `part` in `text`.
int count(const std::string& text, const std::string& part);
// Expects a run to fail with this exit code and to print each part exactly once, not once per rank. Ignores
// mpirun's process names.
void expect_failure(const ProgramResult& result, int exit_code, const std::vector<std::string>& parts);

ProgramResult run_shell(const std::string& command);
// Starts the command after an earlier run_shell(), which sets the environment. The caller waits for the
// process.
pid_t start_shell(const std::string& command);
// False once the process, a child, has ended; the caller must still wait for it.
bool is_running(pid_t process);
// Shell lines that wait until the condition holds or the process $run ends. After two minutes they print a
// message and kill $run.
std::string wait_until(const std::string& condition);
// "mpirun -np RANKS COMMAND"; one rank needs no mpirun.
std::string on_ranks(int ranks, const std::string& command);
ProgramResult run_ranks(int ranks, const std::string& command);
// The start of a command, which limits it to one core that this process may use.
std::string on_one_core();
// Like run_shell, on a terminal of 80 columns. Colours are removed; carriage returns become line feeds.
ProgramResult run_on_terminal(const std::string& command);
// The share of the cores' time that other programs use, measured over 0.3 s with one thread for each core
// that this process may use. A CPU quota counts as fewer cores.
double share_without_cores();
// Goes first in a test that checks times. Such tests have the label "timing": they run alone, up to three
// times. Another test may use it where other programs can hide what it expects.
#define NEEDS_QUIET_CORES()                                    \
  if (const double share = share_without_cores(); share > 0.2) \
  GTEST_SKIP() << "other programs take " << 100 * share << " % of the cores' time"

// The build folder, or the unpacked bundle, that contains this program.
std::filesystem::path build_folder();
// The path of the built program NAME, as a word of the shell.
std::string program(const std::string& name);
// The program that trains on GPUs in tests: "lockstep-emulated", or "lockstep" in a test program for a GPU.
std::string device_program();

// A folder for one test, removed at its end. It contains a dataset in IDX format and a configuration for it.
class Workplace {
 public:
  // The dataset's images are side x side pixels.
  explicit Workplace(const std::string& name, const std::string& program = "lockstep", int side = 12);

  std::filesystem::path path(const std::string& name) const { return folder_.path() / name; }
  // "lockstep train <config> --set ..." with one --set for each setting. Runs the program given to the
  // constructor.
  std::string train(const std::vector<std::string>& settings, const std::string& flags = "") const;
  // A command that runs these shell lines. They can select a rank by $OMPI_COMM_WORLD_RANK. (mpirun's colon
  // syntax crashes Open MPI 5.0.7.)
  std::string script(const std::string& lines) const;

 private:
  TemporaryFolder folder_;
  std::string program_;
};

// The digest after a training with these settings on this number of ranks.
std::string digest_of(const Workplace& workplace, int ranks, const std::vector<std::string>& settings);

// Every tensor of a safetensors file.
std::map<std::string, std::vector<float>> tensors_of(const std::filesystem::path& path);

// Copies a safetensors file and replaces the last number of a tensor by `poison`.
void write_poisoned(const std::filesystem::path& from, const std::filesystem::path& to,
                    const std::string& tensor, float poison);

std::string text_of(const std::filesystem::path& path);

}  // namespace lockstep
