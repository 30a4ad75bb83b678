// SPDX-License-Identifier: Apache-2.0
#include "launch/program/plan/step_trace.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <iterator>
#include <map>
#include <numeric>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/files/file_text.h"
#include "core/text/enum_words.h"
#include "core/text/json_text.h"
#include "launch/train/whole_number.h"

namespace lockstep {
namespace {

using Json = nlohmann::json;

constexpr const char* kHowTo = "make one with lockstep train CONFIG --trace FILE --set train.steps=40";
constexpr std::size_t kFirstSteps = 2;
constexpr std::int64_t kMost = std::int64_t{1} << 52;  // of steps, samples and bytes
constexpr std::int64_t kMostRanks = 1 << 20;           // also of nodes, threads and cores

// A step while its spans are read.
struct Moments {
  StepTrace::Step step;
  double begin_us = 1e300;
  double last_backward_us = -1;
  bool ended = false;  // has an optimizer span
};

struct TracedSum {
  std::size_t bucket = 0;
  double begin_us = 0;
  double end_us = 0;
  bool meets = false;  // a "meet" span, the wait for all ranks at the begin of the sum
};

// Reads a number that a trace may omit: 0 where it is absent.
int count_of(const Json& about, const char* name) {
  return about.contains(name) ? static_cast<int>(whole_number(about, name, 0, kMostRanks)) : 0;
}

std::vector<std::size_t> bytes_of(const Json& buckets) {
  std::vector<std::size_t> bytes;
  for (const Json& each : buckets)
    bytes.push_back(static_cast<std::size_t>(as_whole_number(each, "bucket_bytes", 1, kMost)));
  return bytes;
}

TracedRun run_of(const Json& trace) {
  const Json& about = trace.at("otherData").at("lockstep");
  return {.network = about.at("network"),
          .batch = whole_number(about, "batch", 1, kMost),
          .accumulation = whole_number(about, "accumulation", 1, kMost),
          .ranks = static_cast<int>(whole_number(about, "ranks", 1, kMostRanks)),
          .nodes = static_cast<int>(whole_number(about, "nodes", 1, kMostRanks)),
          .overlap = about.at("overlap"),
          // Older traces do not record the way.
          .between_nodes =
              value_of<AllReduceWay>(about.value("between_nodes", "")).value_or(AllReduceWay::automatic),
          .threads = count_of(about, "threads"),
          .node_cores = count_of(about, "node_cores"),
          .bucket_bytes = bytes_of(about.at("bucket_bytes"))};
}

void add_phase(Moments& moments, const std::string& name, double begin_us, double seconds) {
  StepTrace::Step& step = moments.step;
  moments.begin_us = std::min(moments.begin_us, begin_us);
  if (name == "data") step.data += seconds;
  if (name == "forward") step.forward += seconds;
  if (name == "exchange") step.exchange += seconds;
  if (name == "optimizer") {
    step.optimizer += seconds;
    moments.ended = true;
  }
  if (name != "backward") return;
  step.backward += seconds;
  if (begin_us < moments.last_backward_us) return;
  moments.last_backward_us = begin_us;
  step.last_backward = seconds;
}

bool is_phase(const std::string& name) {
  constexpr const char* kPhaseSpans[] = {"data", "forward", "backward", "exchange", "optimizer"};
  return std::ranges::find(kPhaseSpans, name) != std::end(kPhaseSpans);
}

// Adds each sum to the step with the latest last backward that begins before the sum.
void deal_sums(std::map<std::int64_t, Moments>& steps, const std::vector<TracedSum>& sums,
               std::size_t buckets) {
  std::map<double, Moments*> by_backward;
  for (auto& [number, moments] : steps) {
    moments.step.sums.resize(buckets, {.begin = -1, .end = -1, .met = -1});
    by_backward[moments.last_backward_us] = &moments;
  }
  for (const TracedSum& sum : sums) {
    const auto after = by_backward.upper_bound(sum.begin_us);
    if (after == by_backward.begin() || sum.bucket >= buckets) continue;
    const auto& [backward_us, moments] = *std::prev(after);
    StepTrace::Sum& of_step = moments->step.sums[sum.bucket];
    const double begin = (sum.begin_us - backward_us) * 1e-6, end = (sum.end_us - backward_us) * 1e-6;
    if (sum.meets)
      of_step.met = std::max(of_step.met, end);
    else
      of_step = {.begin = begin, .end = end, .met = std::max(of_step.met, begin)};
  }
}

bool is_whole(const Moments& moments) {
  return moments.ended && moments.last_backward_us >= 0 &&
         std::ranges::all_of(moments.step.sums,
                             [](const StepTrace::Sum& sum) { return sum.end >= sum.begin && sum.end >= 0; });
}

std::vector<StepTrace::Step> complete_steps(std::map<std::int64_t, Moments>& steps) {
  std::vector<StepTrace::Step> complete;
  std::size_t place = 0;
  for (auto it = steps.begin(); it != steps.end(); ++it, ++place) {
    const auto next = std::next(it);
    if (next == steps.end() || next->first != it->first + 1) continue;  // its duration is not known
    if (place < kFirstSteps || !is_whole(it->second)) continue;
    it->second.step.seconds = (next->second.begin_us - it->second.begin_us) * 1e-6;
    complete.push_back(it->second.step);
  }
  return complete;
}

StepTrace parse(const Json& trace) {
  StepTrace result;
  result.run = run_of(trace);
  std::map<std::int64_t, Moments> steps;
  std::vector<TracedSum> sums;
  for (const Json& event : trace.at("traceEvents")) {
    if (event.at("ph") != "X" || event.at("pid") != 0) continue;
    const std::string name = event.at("name");
    const double begin_us = event.at("ts"), duration_us = event.at("dur");
    if (is_phase(name)) {
      add_phase(steps[whole_number(event.at("args"), "index", 0, kMost)], name, begin_us, duration_us * 1e-6);
    } else if (const bool meets = name == "meet"; meets || name.starts_with("bucket ")) {
      result.tells_meetings |= meets;
      const std::int64_t bucket = whole_number(event.at("args"), meets ? "bucket" : "index", 0, kMost);
      sums.push_back({.bucket = static_cast<std::size_t>(bucket),
                      .begin_us = begin_us,
                      .end_us = begin_us + duration_us,
                      .meets = meets});
    }
  }
  deal_sums(steps, sums, result.run.bucket_bytes.size());
  result.steps = complete_steps(steps);
  return result;
}

}  // namespace

std::size_t TracedRun::gradient_bytes() const {
  return std::accumulate(bucket_bytes.begin(), bucket_bytes.end(), std::size_t{0});
}

std::string to_json(const TracedRun& run) {
  return dumped(nlohmann::ordered_json{{"network", run.network},
                                       {"batch", run.batch},
                                       {"accumulation", run.accumulation},
                                       {"ranks", run.ranks},
                                       {"nodes", run.nodes},
                                       {"overlap", run.overlap},
                                       {"between_nodes", word_of(run.between_nodes)},
                                       {"threads", run.threads},
                                       {"node_cores", run.node_cores},
                                       {"bucket_bytes", run.bucket_bytes}});
}

StepTrace parse_step_trace(std::string_view text, const std::string& name) {
  StepTrace trace;
  try {
    trace = parse(Json::parse(text));
  } catch (const std::exception& error) {  // from the JSON library, or for a number out of range
    throw DataError(fmt::format("{} is not a trace of lockstep train ({}); {}", name, error.what(), kHowTo));
  }
  if (trace.steps.empty()) {
    throw DataError(fmt::format("{} has no complete step after the first {}, which allocate memory; {}", name,
                                kFirstSteps, kHowTo));
  }
  return trace;
}

StepTrace read_step_trace(const std::filesystem::path& path) {
  errno = 0;
  const std::string text = file_text(path);
  const int error = errno;
  if (text.empty() && error != 0)
    throw IoError(fmt::format("cannot read the trace {}: {}", path.string(), std::strerror(error)));
  return parse_step_trace(text, path.string());
}

}  // namespace lockstep
