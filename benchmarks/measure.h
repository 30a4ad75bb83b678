// SPDX-License-Identifier: Apache-2.0
//
// Shared by the benchmarks: their command line, medians, comparison of results, the machine's description and
// resident memory.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

namespace CLI {
class App;
}

namespace lockstep {

// The command line of a benchmark. Hides CLI11, which takes seconds to compile: only sources with unusual
// options include it.
class BenchProgram {
 public:
  BenchProgram(const std::string& name, const std::string& description);
  ~BenchProgram();

  // Each function binds an option to a variable, which keeps its value if the option is not given.
  template <typename T>  // int, std::int64_t, double, or a vector of integers
  void positive(const std::string& option, T& value, const std::string& help);
  void not_negative(const std::string& option, int& value, const std::string& help);
  void within(const std::string& option, std::vector<int>& values, int least, int most,
              const std::string& help);
  template <typename T>  // std::string, or a vector of them
  void one_of(const std::string& option, T& value, const std::vector<std::string>& allowed,
              const std::string& help);
  void text(const std::string& option, std::string& value, const std::string& help);
  void flag(const std::string& option, bool& value, const std::string& help);
  // The argument CONFIG and --set KEY=VALUE, which may be repeated.
  void configuration(std::string& config, const std::string& help, std::vector<std::string>& overrides);
  void json(std::string& path);  // --json, for write_json()
  CLI::App& app() { return *app_; }

  // Parses the command line, calls work(), and returns the exit code of main(). Prints the message of an
  // Error and returns its exit code. Programs of several ranks must join their world inside work(), because
  // this function may restart the process before it (bound_waiting).
  int run(int argc, char** argv, const std::function<int()>& work);

 private:
  std::unique_ptr<CLI::App> app_;
};

double median(std::vector<double> values);  // at least one

struct Spread {
  double typical = 0;  // median
  double least = 0;
  double most = 0;
};
Spread spread_of(const std::vector<double>& values);

// The first element whose error exceeds both 1 % of its expected value and 1 % of min(1, the largest expected
// value): results such as a softmax are far below 1. Both spans have the same size.
std::optional<std::size_t> first_wrong(std::span<const float> found, std::span<const float> expected);

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
