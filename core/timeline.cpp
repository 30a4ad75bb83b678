// SPDX-License-Identifier: Apache-2.0
#include "core/timeline.h"

#include <algorithm>
#include <chrono>
#include <iterator>
#include <numeric>
#include <string>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "core/files/atomic_file.h"
#include "core/text/json_text.h"

namespace lockstep {
namespace {

std::string trace_name(const Span& span) {
  return span.numbered ? fmt::format("{} {}", span.name, span.index) : span.name;
}

void append_names(std::string& text, int rank) {
  const auto out = std::back_inserter(text);
  fmt::format_to(out, R"({{"name":"process_name","ph":"M","pid":{0},"tid":0,"args":{{"name":"rank {0}"}}}})",
                 rank);
  for (const Track track : {Track::step, Track::compute, Track::communication, Track::data}) {
    fmt::format_to(out,
                   ",\n"
                   R"({{"name":"thread_name","ph":"M","pid":{},"tid":{},"args":{{"name":"{}"}}}})",
                   rank, static_cast<int>(track), name_of(track));
  }
}

// Appends the arrows of a bucket: from the span in which its last gradient became final, through the bucket's
// span, to the span that waits for it. If the rank waited for its peers, adds a "meet" span within the
// bucket's.
void append_arrows(std::string& text, int rank, std::uint64_t id, const BucketFlow& flow,
                   const TraceClock& clock) {
  const auto out = std::back_inserter(text);
  const auto at = [&](std::int64_t ns) { return static_cast<double>(clock(ns)) * 1e-3; };
  const auto arrow = [&](const char* phase, Track track, std::int64_t ns, const char* binding) {
    fmt::format_to(
        out,
        ",\n"
        R"({{"name":"gradients","cat":"gradients","ph":"{}","id":{},"pid":{},"tid":{},"ts":{:.3f}{},)"
        R"("args":{{"bucket":{},"bytes":{}}}}})",
        phase, id, rank, static_cast<int>(track), at(ns), binding, flow.bucket, flow.sent_bytes);
  };
  arrow("s", Track::compute, flow.final_ns, "");
  arrow("t", Track::communication, flow.started_ns, "");
  arrow("f", Track::compute, flow.needed_ns, R"(,"bp":"e")");
  if (flow.met_ns <= flow.started_ns) return;
  fmt::format_to(
      out,
      ",\n"
      R"({{"name":"meet","cat":"communication","ph":"X","pid":{},"tid":{},"ts":{:.3f},"dur":{:.3f},)"
      R"("cname":"bad","args":{{"bucket":{},"bytes":{}}}}})",
      rank, static_cast<int>(Track::communication), at(flow.started_ns),
      at(flow.met_ns) - at(flow.started_ns), flow.bucket, flow.sent_bytes);
}

}  // namespace

std::int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

double seconds_since_1970() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

std::string_view name_of(Track track) {
  constexpr std::string_view kNames[] = {"step", "compute", "communication", "data"};
  static_assert(std::size(kNames) == static_cast<std::size_t>(Track::data) + 1);
  return kNames[static_cast<std::size_t>(track)];
}

std::string_view name_of(Phase phase) {
  constexpr std::string_view kNames[] = {"data_wait", "forward", "backward",    "exposed_communication",
                                         "optimizer", "idle",    "device_wait", "rest"};
  static_assert(std::size(kNames) == kPhases);
  return kNames[static_cast<std::size_t>(phase)];
}

Timeline::Timeline(std::size_t capacity) : spans_(capacity) { flows_.reserve(capacity / 4); }

void Timeline::record(const Span& span) {
  if (!recording()) return;
  const std::size_t place = next_.fetch_add(1, std::memory_order_relaxed);
  if (place < spans_.size()) spans_[place] = span;
}

std::span<const Span> Timeline::spans() const {
  return {spans_.data(), std::min(next_.load(), spans_.size())};
}

std::size_t Timeline::dropped() const {
  const std::size_t recorded = next_.load();
  return dropped_flows_ + (recorded > spans_.size() ? recorded - spans_.size() : 0);
}

void Timeline::clear() {
  next_ = 0;
  flows_.clear();
  dropped_flows_ = 0;
}

void Timeline::record(const BucketFlow& flow) {
  if (!recording()) return;
  if (flows_.size() < flows_.capacity())
    flows_.push_back(flow);
  else
    ++dropped_flows_;
}

std::string Timeline::chrome_events(int rank, const TraceClock& clock) const {
  std::string text;
  append_names(text, rank);
  const auto microseconds = [&](std::int64_t ns) { return static_cast<double>(clock(ns)) * 1e-3; };
  for (const Span& span : spans()) {
    fmt::format_to(
        std::back_inserter(text),
        ",\n"
        R"({{"name":{},"cat":"{}","ph":"X","pid":{},"tid":{},"ts":{:.3f},"dur":{:.3f},"args":{{"index":{}}}}})",
        dumped(nlohmann::json(trace_name(span))), name_of(span.track), rank, static_cast<int>(span.track),
        microseconds(span.begin_ns), microseconds(span.end_ns) - microseconds(span.begin_ns), span.index);
  }
  for (std::size_t i = 0; i < flows_.size(); ++i) {
    const BucketFlow& flow = flows_[i];
    append_arrows(text, rank, (static_cast<std::uint64_t>(rank) << 32) + i, flow, clock);
  }
  return text;
}

void Timeline::write_chrome_trace(const std::filesystem::path& path, int rank) const {
  const std::span<const Span> kept = spans();
  const auto first = std::ranges::min_element(kept, {}, &Span::begin_ns);
  const std::int64_t origin = first == kept.end() ? 0 : first->begin_ns;
  write_atomically(
      path,
      fmt::format(
          R"({{"displayTimeUnit":"ms","droppedSpans":{},"otherData":{{"lockstep":{}}},"traceEvents":[{}]}})"
          "\n",
          dropped(), about_, chrome_events(rank, {.from_ns = origin})));
}

double StepAccount::total() const { return std::accumulate(seconds.begin(), seconds.end(), 0.0); }

StepAccount& StepAccount::operator+=(const StepAccount& other) {
  for (std::size_t phase = 0; phase < kPhases; ++phase) seconds[phase] += other.seconds[phase];
  return *this;
}

StepAccount operator-(const StepAccount& a, const StepAccount& b) {
  StepAccount difference;
  for (std::size_t phase = 0; phase < kPhases; ++phase)
    difference.seconds[phase] = a.seconds[phase] - b.seconds[phase];
  return difference;
}

std::int64_t PhaseClock::enter(Phase phase) {
  const std::int64_t now = now_ns();
  account_[phase_] += seconds_between(since_, now);
  phase_ = phase;
  since_ = now;
  return now;
}

StepAccount PhaseClock::take(std::int64_t* taken_ns) {
  const std::int64_t now = enter(phase_);
  if (taken_ns != nullptr) *taken_ns = now;
  taken_ += account_;
  return std::exchange(account_, {});
}

StepAccount PhaseClock::so_far() {
  enter(phase_);
  StepAccount all = taken_;
  return all += account_;
}

}  // namespace lockstep
