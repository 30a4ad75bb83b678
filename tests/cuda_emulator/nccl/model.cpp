// SPDX-License-Identifier: Apache-2.0
#include "tests/cuda_emulator/nccl/model.h"

#include <algorithm>
#include <cmath>
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

// A number times the value of its unit; 0 if the variable is not set.
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

std::chrono::nanoseconds nanoseconds(double seconds) {
  return std::chrono::nanoseconds(std::llround(seconds * 1e9));
}

Link read_link(const std::string& prefix, const Link& otherwise) {
  const double seconds = read_amount_of((prefix + "LATENCY").c_str(), {{"us", 1e-6}, {"ms", 1e-3}, {"s", 1}},
                                        "a time, as in 20us");
  const double bytes =
      read_amount_of((prefix + "BANDWIDTH").c_str(),
                     {{"KB/s", 1e3}, {"MB/s", 1e6}, {"GB/s", 1e9}, {"Mbit/s", 1e6 / 8}, {"Gbit/s", 1e9 / 8}},
                     "bytes per second, as in 1GB/s");
  return {.latency = seconds > 0 ? nanoseconds(seconds) : otherwise.latency,
          .bytes_per_second = bytes > 0 ? bytes : otherwise.bytes_per_second};
}

// The number of times that each piece of a collective travels around the ring, except for one link.
int rounds(Kind kind) { return kind == Kind::all_reduce ? 2 : 1; }

// The bytes on the busiest link of a ring.
double bytes_on_a_link(const Call& call, int ranks) {
  const double bytes = static_cast<double>(call.count) * static_cast<double>(size_of_type(call.type));
  const int others = ranks - 1;
  switch (call.kind) {
    case Kind::all_reduce:
      return 2 * bytes * others / ranks;
    case Kind::reduce_scatter:
    case Kind::all_gather:
      return bytes * others;
    default:  // a pipelined broadcast or reduction
      return ranks > 1 ? bytes : 0;
  }
}

double seconds_on(const Link& link, double bytes) {
  return link.bytes_per_second > 0 ? bytes / link.bytes_per_second : 0;
}

}  // namespace

Ring Ring::from_environment(int ranks, int nodes) {
  const Link within = read_link("LOCKSTEP_EMULATED_NCCL_", {});
  return {.ranks = ranks,
          .nodes = nodes,
          .within = within,
          .between = read_link("LOCKSTEP_EMULATED_NCCL_NODE_", within)};
}

std::chrono::nanoseconds Ring::least_time(const Call& call) const {
  const auto latency = rounds(call.kind) * ((nodes - 1) * between.latency + (ranks - nodes) * within.latency);
  const double bytes = bytes_on_a_link(call, ranks);
  const double inside = ranks > nodes ? seconds_on(within, bytes) : 0;
  const double outside = nodes > 1 ? seconds_on(between, bytes) : 0;
  return latency + nanoseconds(std::max(inside, outside));
}

std::chrono::nanoseconds Ring::least_time_of_transfers(double bytes) const {
  if (ranks == 1) return std::chrono::nanoseconds(0);
  const Link& link = nodes > 1 ? between : within;
  return link.latency + nanoseconds(seconds_on(link, bytes));
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
    refuse_variable(kVariable, text, "COLLECTIVE:STATUS, optionally after RANK/");
  }
  return AsyncFault{.after = after, .status = static_cast<ncclResult_t>(status)};
}

}  // namespace lockstep::emulator
