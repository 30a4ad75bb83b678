// SPDX-License-Identifier: Apache-2.0
#include "benchmarks/measure.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <limits>
#include <thread>
#include <utility>

#include <CLI/CLI.hpp>
#include <sys/utsname.h>
#include <unistd.h>

#include "comm/world.h"
#include "core/error.h"
#include "core/text/text.h"
#include "kernels/backend.h"
#include "launch/program/commands/command_line.h"
#include "launch/train/quantile.h"
#include "launch/train/watch/waiting.h"

namespace lockstep {
namespace {

// The value beside a name in a file of lines NAME: VALUE or NAME="VALUE".
std::string value_in(const char* path, const std::string& name) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with(name))
      return std::string(trimmed(line.substr(std::min(line.size(), line.find_first_of(":=") + 1)), " \t\""));
  }
  return "";
}

std::size_t kibibytes(const std::string& name) {
  return std::stoul(fmt::format("0{}", value_in("/proc/self/status", name))) * 1024;
}

}  // namespace

BenchProgram::BenchProgram(const std::string& name, const std::string& description)
    : app_(std::make_unique<CLI::App>(description, name)) {}
BenchProgram::~BenchProgram() = default;

template <typename T>
void BenchProgram::positive(const std::string& option, T& value, const std::string& help) {
  constexpr double kMost = std::numeric_limits<double>::max();
  // PositiveNumber accepts NaN.
  app_->add_option(option, value, help)->check(CLI::PositiveNumber)->check(number_between(0, kMost));
}
template void BenchProgram::positive(const std::string&, int&, const std::string&);
template void BenchProgram::positive(const std::string&, std::int64_t&, const std::string&);
template void BenchProgram::positive(const std::string&, double&, const std::string&);
template void BenchProgram::positive(const std::string&, std::vector<int>&, const std::string&);
template void BenchProgram::positive(const std::string&, std::vector<std::int64_t>&, const std::string&);

void BenchProgram::not_negative(const std::string& option, int& value, const std::string& help) {
  app_->add_option(option, value, help)->check(CLI::NonNegativeNumber);
}

void BenchProgram::within(const std::string& option, std::vector<int>& values, int least, int most,
                          const std::string& help) {
  app_->add_option(option, values, help)->check(CLI::Range(least, most));
}

template <typename T>
void BenchProgram::one_of(const std::string& option, T& value, const std::vector<std::string>& allowed,
                          const std::string& help) {
  app_->add_option(option, value, help)->check(CLI::IsMember(allowed));
}
template void BenchProgram::one_of(const std::string&, std::string&, const std::vector<std::string>&,
                                   const std::string&);
template void BenchProgram::one_of(const std::string&, std::vector<std::string>&,
                                   const std::vector<std::string>&, const std::string&);

void BenchProgram::text(const std::string& option, std::string& value, const std::string& help) {
  app_->add_option(option, value, help);
}

void BenchProgram::flag(const std::string& option, bool& value, const std::string& help) {
  app_->add_flag(option, value, help);
}

void BenchProgram::configuration(std::string& config, const std::string& help,
                                 std::vector<std::string>& overrides) {
  app_->add_option("CONFIG", config, help)->required();
  app_->add_option("--set", overrides, "override a key of the configuration; repeatable")
      ->type_name("KEY=VALUE")
      ->allow_extra_args(false);
}

void BenchProgram::json(std::string& path) { text("--json", path, "also write the result to this file"); }

int BenchProgram::run(int argc, char** argv, const std::function<int()>& work) {
  try {
    app_->parse(argc, argv);
  } catch (const CLI::ParseError& error) {  // also thrown for --help
    return app_->exit(error) == 0 ? exit_code::done : exit_code::usage;
  }
  bound_waiting(argv);  // as in lockstep
  try {
    return work();
  } catch (const Error& error) {
    fmt::print(stderr, "{}: {}\n", app_->get_name(), error.what());
    return error.exit_code();
  }
}

double median(std::vector<double> values) {
  CHECK(!values.empty());
  return median_of(std::move(values));
}

Spread spread_of(const std::vector<double>& values) {
  return {median(values), *std::ranges::min_element(values), *std::ranges::max_element(values)};
}

std::optional<std::size_t> first_wrong(std::span<const float> found, std::span<const float> expected) {
  CHECK(found.size() == expected.size());
  double largest = 0;
  for (const float value : expected) largest = std::max(largest, std::abs(static_cast<double>(value)));
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const auto right = static_cast<double>(expected[i]);
    const double limit = 1e-2 * std::max(std::min(1.0, largest), std::abs(right));
    if (!(std::abs(static_cast<double>(found[i]) - right) <= limit)) return i;  // also if it is not a number
  }
  return std::nullopt;
}

ResidentMemory resident_memory() { return {.now = kibibytes("VmRSS"), .peak = kibibytes("VmHWM")}; }

nlohmann::json describe_machine() {
  utsname system{};
  uname(&system);
  return {{"processor", value_in("/proc/cpuinfo", "model name")},
          {"cores", std::thread::hardware_concurrency()},
          {"system", value_in("/etc/os-release", "PRETTY_NAME")},
          {"kernel", system.release},
          {"compiler", fmt::format("g++ {}", __VERSION__)},
          {"kernels", backend_for(Device{}).describe()},
          {"mpi", mpi_version()}};
}

void write_json(const std::string& path, const nlohmann::json& document) {
  if (path.empty()) return;
  std::ofstream stream(path);
  stream << document.dump(2) << "\n";
  if (!stream.flush()) throw IoError(fmt::format("{}: cannot be written", path));
}

}  // namespace lockstep
