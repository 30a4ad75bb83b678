// SPDX-License-Identifier: Apache-2.0
//
// What the benchmarks share: their command line's end, medians, the machine's name and resident memory.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

namespace lockstep {

// Parses the command line and runs; what main() returns. An Error becomes its message and its exit code.
// A program of several ranks joins their world in run(): before it this process may start itself anew
// (bound_waiting), which one that has joined cannot.
int run_benchmark(CLI::App& app, int argc, char** argv, const std::function<int()>& run);

double median(std::vector<double> values);

struct Spread {
  double typical = 0;  // median
  double least = 0;
  double most = 0;
};
Spread spread_of(const std::vector<double>& values);

struct ResidentMemory {
  std::size_t now = 0;
  std::size_t peak = 0;  // since the process began
};
ResidentMemory resident_memory();

// Processor, cores, operating system, compiler, oneDNN, MPI: what a committed result must name.
nlohmann::json describe_machine();

// Writes to the path, if it is not empty. Throws IoError.
void write_json(const std::string& path, const nlohmann::json& document);

}  // namespace lockstep
