// SPDX-License-Identifier: Apache-2.0
//
// Shared by the benchmarks: command line handling, medians, the machine's description and resident memory.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

namespace lockstep {

// Parses the command line, calls run(), and returns the exit code of main(). Prints the message of an Error
// and returns its exit code. Programs of several ranks must join their world inside run(), because this
// function may restart the process before it (bound_waiting).
int run_benchmark(CLI::App& app, int argc, char** argv, const std::function<int()>& run);

double median(std::vector<double> values);  // at least one

struct Spread {
  double typical = 0;  // median
  double least = 0;
  double most = 0;
};
Spread spread_of(const std::vector<double>& values);

struct ResidentMemory {
  std::size_t now = 0;
  std::size_t peak = 0;  // since the process started
};
ResidentMemory resident_memory();

// Processor, cores, operating system, compiler, oneDNN and MPI: required in every committed result.
nlohmann::json describe_machine();

// Writes to the path, if it is not empty. Throws IoError.
void write_json(const std::string& path, const nlohmann::json& document);

}  // namespace lockstep
