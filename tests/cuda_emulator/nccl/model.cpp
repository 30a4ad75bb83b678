// SPDX-License-Identifier: Apache-2.0
#include "tests/cuda_emulator/nccl/model.h"

#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>

namespace lockstep::emulator {
namespace {

[[noreturn]] void refuse_variable(const char* variable, const char* text, const char* expected) {
  std::fprintf(stderr, "emulated NCCL: %s=%s: expected %s\n", variable, text, expected);
  std::_Exit(78);
}

// A number times what its unit stands for; 0 where the variable is not set.
double read_amount_of(const char* variable, const std::map<std::string, double>& units,
                      const char* expected) {
  const char* text = std::getenv(variable);
  if (text == nullptr || *text == '\0') return 0;
  char* end = nullptr;
  const double number = std::strtod(text, &end);
  const auto unit = units.find(end);
  if (end == text || unit == units.end() || !(number > 0)) refuse_variable(variable, text, expected);
  return number * unit->second;
}

}  // namespace

Link Link::from_environment() {
  const double seconds = read_amount_of("LOCKSTEP_EMULATED_NCCL_LATENCY",
                                        {{"us", 1e-6}, {"ms", 1e-3}, {"s", 1}}, "a time, as in 20us");
  const double bytes =
      read_amount_of("LOCKSTEP_EMULATED_NCCL_BANDWIDTH",
                     {{"KB/s", 1e3}, {"MB/s", 1e6}, {"GB/s", 1e9}, {"Mbit/s", 1e6 / 8}, {"Gbit/s", 1e9 / 8}},
                     "bytes in a second, as in 1GB/s");
  return {.latency = std::chrono::nanoseconds(static_cast<std::int64_t>(seconds * 1e9)),
          .bytes_per_second = bytes};
}

std::chrono::nanoseconds Link::least_time(const Call& call, int ranks) const {
  const double bytes = static_cast<double>(call.count) * static_cast<double>(size_of_type(call.type));
  const int others = ranks - 1;
  const int steps = call.kind == Kind::all_reduce ? 2 * others : others;
  double on_a_link = bytes;  // of a broadcast and a reduction, in pieces that follow one another
  if (call.kind == Kind::all_reduce) on_a_link = 2 * bytes * others / ranks;
  if (call.kind == Kind::reduce_scatter || call.kind == Kind::all_gather) on_a_link = bytes * others;
  if (ranks == 1 || bytes_per_second <= 0) on_a_link = 0;
  const double seconds = on_a_link == 0 ? 0 : on_a_link / bytes_per_second;
  return steps * latency + std::chrono::nanoseconds(static_cast<std::int64_t>(seconds * 1e9));
}

std::optional<AsyncFault> AsyncFault::from_environment(int rank) {
  constexpr const char* kVariable = "LOCKSTEP_EMULATED_NCCL_ASYNC";
  const char* text = std::getenv(kVariable);
  if (text == nullptr || *text == '\0') return {};
  const std::string whole = text;
  const std::size_t slash = whole.find('/');
  if (slash != std::string::npos && whole.substr(0, slash) != std::to_string(rank)) return {};
  const std::string mine = slash == std::string::npos ? whole : whole.substr(slash + 1);
  unsigned long long after = 0;
  int status = 0;
  int used = 0;
  const int read = std::sscanf(mine.c_str(), "%llu:%d%n", &after, &status, &used);
  if (read != 2 || static_cast<std::size_t>(used) != mine.size() || after == 0 || status <= 0 ||
      status >= ncclNumResults) {
    refuse_variable(kVariable, text, "COLLECTIVE:STATUS, perhaps behind RANK/");
  }
  return AsyncFault{.after = after, .status = static_cast<ncclResult_t>(status)};
}

}  // namespace lockstep::emulator
