// SPDX-License-Identifier: Apache-2.0
//
// Timeline: records spans of time from any thread into memory reserved beforehand, at the cost of two clock
// reads. Recording changes neither results nor order. PhaseClock: splits a rank's wall time into phases that
// add up to it. Reports and traces read both.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace lockstep {

// Monotonic, nanoseconds.
std::int64_t now_ns();
inline double seconds_between(std::int64_t begin_ns, std::int64_t end_ns) {
  return static_cast<double>(end_ns - begin_ns) * 1e-9;
}
inline double seconds_since(std::int64_t begin_ns) { return seconds_between(begin_ns, now_ns()); }
// From the system's clock, which can be adjusted.
double seconds_since_1970();

enum class Track : std::uint8_t { step, compute, communication, data };
std::string_view name_of(Track track);

struct Span {
  const char* name = "";  // a literal, or a string that outlives the timeline
  Track track = Track::step;
  std::int32_t index = -1;  // bucket, step or layer number; -1: none
  bool numbered = false;    // shown in a trace as "name index"
  std::int64_t begin_ns = 0;
  std::int64_t end_ns = 0;
};

// The path of a bucket's gradients: arrows from the compute track to the bucket's span on the communication
// track and back.
struct BucketFlow {
  std::int32_t bucket = 0;
  std::int64_t final_ns = 0;    // when its last gradient became final
  std::int64_t started_ns = 0;  // within the bucket's span
  std::int64_t met_ns = 0;      // when all ranks had arrived; 0: not known
  std::int64_t needed_ns = 0;  // when compute finished waiting for it, or asked for it if it was already done
  std::uint64_t sent_bytes = 0;
};

// Converts nanoseconds of a rank's clock to nanoseconds of the trace.
struct TraceClock {
  std::int64_t from_ns = 0;
  std::int64_t to_ns = 0;
  double rate = 1;

  std::int64_t operator()(std::int64_t ns) const {
    return to_ns + static_cast<std::int64_t>(static_cast<double>(ns - from_ns) * rate);
  }
};

class Timeline {
 public:
  // Keeps the first `capacity` spans after clear(), and `capacity` / 4 flows. dropped() counts the other
  // spans and flows.
  explicit Timeline(std::size_t capacity = std::size_t{1} << 16);

  // While false, record() does nothing, and callers can skip preparing spans. Default: true.
  void set_recording(bool recording) { recording_.store(recording, std::memory_order_relaxed); }
  bool recording() const { return recording_.load(std::memory_order_relaxed); }

  void record(const Span& span);
  // Call only while no thread records.
  std::span<const Span> spans() const;
  std::span<const BucketFlow> flows() const { return flows_; }
  std::size_t dropped() const;
  void clear();
  // Call from one thread.
  void record(const BucketFlow& flow);
  // JSON that describes the run: "otherData"."lockstep" of the trace.
  void describe(std::string about) { about_ = std::move(about); }
  const std::string& about() const { return about_; }

  // The elements of a Chrome trace's traceEvents, joined with commas: one process for the rank, one thread
  // per track, and the arrows of flows.
  std::string chrome_events(int rank, const TraceClock& clock) const;
  // Chrome trace JSON (chrome://tracing, Perfetto): one process for the rank, one thread per track. Written
  // as an AtomicFile; throws IoError.
  void write_chrome_trace(const std::filesystem::path& path, int rank) const;

 private:
  std::vector<Span> spans_;
  std::atomic<bool> recording_{true};
  std::atomic<std::size_t> next_{0};
  std::vector<BucketFlow> flows_;
  std::size_t dropped_flows_ = 0;
  std::string about_ = "null";
};

enum class Phase : std::uint8_t {
  data_wait,
  forward,
  backward,
  exposed_communication,
  optimizer,
  idle,         // a GPU had no work
  device_wait,  // the host waits for a GPU
  rest
};
inline constexpr std::size_t kPhases = static_cast<std::size_t>(Phase::rest) + 1;
std::string_view name_of(Phase phase);
// True for phases that only occur with GPUs.
inline bool is_of_gpus(Phase phase) { return phase == Phase::idle || phase == Phase::device_wait; }

// Seconds by phase.
struct StepAccount {
  std::array<double, kPhases> seconds = {};

  double& operator[](Phase phase) { return seconds[static_cast<std::size_t>(phase)]; }
  double operator[](Phase phase) const { return seconds[static_cast<std::size_t>(phase)]; }
  double total() const;
  StepAccount& operator+=(const StepAccount& other);
  friend StepAccount operator-(const StepAccount& a, const StepAccount& b);
};

// Adds time to the current phase until the next enter(). Starts in Phase::rest. For one thread.
class PhaseClock {
 public:
  PhaseClock() : since_(now_ns()) {}
  // Returns the moment at which the phase begins.
  std::int64_t enter(Phase phase);
  // Time since construction or the last take(), up to now. taken_ns: set to that moment.
  StepAccount take(std::int64_t* taken_ns = nullptr);
  // Time since construction, including what take() returned.
  StepAccount so_far();

 private:
  StepAccount account_;
  StepAccount taken_;
  Phase phase_ = Phase::rest;
  std::int64_t since_;
};

}  // namespace lockstep
