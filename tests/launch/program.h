// SPDX-License-Identifier: Apache-2.0
//
// Runs the real program under mpirun, as a user would, on a small dataset made on the fly.
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "tests/temporary_folder.h"

namespace lockstep {

struct ProgramResult {
  int exit_code = -1;
  std::string output;  // standard output and standard error
};

// How often `part` is in `text`.
int count(const std::string& text, const std::string& part);
// A run must have failed with this code, and said each part once, not once per rank. What mpirun calls the
// processes counts as nothing.
void expect_failure(const ProgramResult& result, int exit_code, const std::vector<std::string>& parts);

ProgramResult run_shell(const std::string& command);
// Lines of sh that go on when a condition holds, or the process $run has ended, or two minutes are over, when
// they end it and say so.
std::string wait_until(const std::string& condition);
// mpirun -np ranks COMMAND
ProgramResult run_ranks(int ranks, const std::string& command);
// As run_shell, on a terminal of 80 columns; without what terminals are told beside the text: colours, and to
// draw a line again.
ProgramResult run_on_terminal(const std::string& command);
// In bytes.
std::size_t longest_line(const std::string& text);
// The share of the next 0.3 s for which threads, one for each core, had none: other programs took it.
double share_without_cores();
// First in a test that judges times. Such tests have the label "timing": they run alone, up to three times.
#define NEEDS_QUIET_CORES()                                    \
  if (const double share = share_without_cores(); share > 0.2) \
  GTEST_SKIP() << "other programs take " << 100 * share << " % of the cores' time"

// The build folder, or the unpacked bundle, that this program lies in.
std::filesystem::path build_folder();
// The path of the built program NAME.
std::string program(const std::string& name);
// Who trains on GPUs in tests: "lockstep-emulated", or "lockstep" in a test program for a GPU.
std::string device_program();

// A folder for one test, removed at its end; with a dataset in IDX format and a configuration for it.
class Workplace {
 public:
  // The dataset's images have side x side pixels.
  explicit Workplace(const std::string& name, const std::string& program = "lockstep", int side = 12);

  std::filesystem::path path(const std::string& name) const { return folder_.path() / name; }
  // "lockstep train <config> --set ..." with one --set for each setting; of the program that was named.
  std::string train(const std::vector<std::string>& settings, const std::string& flags = "") const;
  // A command that runs these lines of sh, which may tell ranks apart by $OMPI_COMM_WORLD_RANK. (Open
  // MPI 5.0.7 crashes where mpirun's colons do that.)
  std::string script(const std::string& lines) const;

 private:
  TemporaryFolder folder_;
  std::string program_;
};

// Of what so many ranks end with, trained at these settings.
std::string digest_of(const Workplace& workplace, int ranks, const std::vector<std::string>& settings);

// Every tensor of a safetensors file.
std::map<std::string, std::vector<float>> tensors_of(const std::filesystem::path& path);

// A copy of a safetensors file in which one number of a tensor is another.
void write_poisoned(const std::filesystem::path& from, const std::filesystem::path& to,
                    const std::string& tensor, float poison);

std::string text_of(const std::filesystem::path& path);

}  // namespace lockstep
