// SPDX-License-Identifier: Apache-2.0
#include "benchmarks/measure.h"

#include <algorithm>
#include <fstream>
#include <thread>
#include <utility>

#include <sys/utsname.h>
#include <unistd.h>

#include "comm/world.h"
#include "core/error.h"
#include "core/text/text.h"
#include "kernels/backend.h"
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

int run_benchmark(CLI::App& app, int argc, char** argv, const std::function<int()>& run) {
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {  // also thrown for --help
    return app.exit(error) == 0 ? exit_code::done : exit_code::usage;
  }
  bound_waiting(argv);  // as in lockstep
  try {
    return run();
  } catch (const Error& error) {
    fmt::print(stderr, "{}: {}\n", app.get_name(), error.what());
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
