// SPDX-License-Identifier: Apache-2.0
#include "launch/train/trials/codec_trial.h"

#include <algorithm>
#include <utility>

#include <fmt/ranges.h>

#include "comm/agreement.h"
#include "comm/codecs/codec_speed.h"
#include "core/error.h"
#include "core/log.h"
#include "launch/train/clock/communication.h"
#include "launch/train/quantile.h"
#include "launch/train/trials/codec_choice.h"

namespace lockstep {
namespace {

constexpr const char* kDecided = "train.codec_decided";

// Fraction of the shortest step that a lossier codec must gain to be preferred.
constexpr double kNegligible = 0.01;
// Fraction of a core that messages take during backward on a CPU, which copies them. Measured with resnet18
// on 200 Mb/s, where 340 ms more of them, all hidden, made a step of two cores 64 ms longer.
constexpr double kMessagesTake = 0.2;

// Seconds per element of a codec whose measurement ran out of memory: too slow to be chosen.
constexpr double kNoRoom = 1;

// A step this many times as long as the median is not summed. A process was probably stopped in it.
constexpr double kFarAboveMedian = 3;

double ms(double seconds) { return 1e3 * seconds; }

bool is_dense(std::span<const int> by_bucket) {
  return std::ranges::all_of(by_bucket, [](int number) { return number == 0; });
}

// Identifies a codec in saved states: its position among all codecs, independent of the current limit.
std::int64_t place_of(const ExchangeChoice& choice) {
  const auto all = codecs_by_loss();
  return std::ranges::find(all, choice.kind) - all.begin();
}

double seconds_a_step(const LedgerSums& window, double seconds) {
  return seconds / static_cast<double>(std::max<std::int64_t>(1, window.steps));
}

// Collective. Returns the largest median over ranks of a step's exposed time.
double median_exposed(Communicator& host, std::span<const LedgerSums> windows) {
  std::vector<double> mine;
  for (const LedgerSums& window : windows)
    if (window.steps > 0) mine.push_back(seconds_a_step(window, window.exposed));
  return std::ranges::max(gather_values(host, median_of(mine)));
}

// Collective. Every rank omits the same windows: those that took far longer than the median on any rank.
LedgerSums sum_usual_steps(Communicator& host, std::span<const LedgerSums> windows) {
  std::vector<double> seconds;  // of the slowest rank; 0: the window has no steps
  for (const LedgerSums& window : windows) {
    const double mine = seconds_a_step(window, window.backward + window.exposed);
    seconds.push_back(std::ranges::max(gather_values(host, mine)));
  }
  std::vector<double> known = seconds;
  std::erase(known, 0.0);
  const double limit = kFarAboveMedian * median_of(known);
  LedgerSums sums;
  sums.buckets.resize(windows.front().buckets.size());
  for (std::size_t i = 0; i < windows.size(); ++i)
    if (seconds[i] <= limit) sums += windows[i];
  return sums;
}

}  // namespace

CodecTrial::CodecTrial(AutoExchange& exchange, std::span<const Bucket> buckets, Communicator& host,
                       Device device, std::int64_t settling_more, const CodecTrialOptions& options)
    : exchange_(exchange),
      buckets_(buckets),
      host_(host),
      device_(device),
      settling_more_(settling_more),
      options_(options) {}

void CodecTrial::start(bool decided) {
  decided_ = decided;
  steps_ = 0;
  seconds_.clear();
  windows_.clear();
}

CodecTrial::Choice CodecTrial::step_done(double seconds, Ledger& ledger) {
  if (decided_) return std::nullopt;
  const std::int64_t settling = options_.settling + settling_more_ + exchange_.warmup_steps();
  if (++steps_ > settling) {
    seconds_.push_back(seconds);
    windows_.push_back(ledger.window());
  }
  ledger.begin_window();
  if (std::ssize(seconds_) < options_.steps) return std::nullopt;
  const double slowest = std::ranges::max(gather_values(host_, median_of(seconds_)));
  const std::vector<LedgerSums> windows = std::move(windows_);
  start(false);
  return is_dense(exchange_.chosen()) ? begin_trial(slowest, windows) : judge(slowest);
}

CodecTrial::Choice CodecTrial::begin_trial(double seconds, std::span<const LedgerSums> windows) {
  dense_seconds_ = seconds;
  const std::vector<int> dense(buckets_.size(), 0);
  std::vector<double> bytes;
  const std::vector<double> none(exchange_.choices().size(), 0);
  for (const BucketTravel& each : exchange_.travel(dense, none)) bytes.push_back(each.bytes);
  const double exposed = median_exposed(host_, windows);
  const EpochCommunication epoch = gather_communication(host_, sum_usual_steps(host_, windows), bytes, 0);
  measured_ = fmt::format("{:.1f} ms a step with none, {:.1f} ms of them exposed on a wire of {:.1f} MB/s",
                          ms(seconds), ms(exposed), 1e-6 * epoch.wire_bytes_per_second());
  // The numbers are the same on every rank.
  if (exposed <= options_.least_gain * seconds || epoch.mine.steps == 0) {
    decide(fmt::format("none: {}, which is at most {:g} % of a step", measured_, 100 * options_.least_gain));
    return std::nullopt;
  }
  const std::vector<double> speeds = measure_codecs();
  ways_.clear();
  for (int number = 0; number < std::ssize(exchange_.choices()); ++number) {
    const std::vector<int> uniform(buckets_.size(), number);
    ways_.push_back(exchange_.travel(uniform, speeds));
  }
  const double waited = std::ranges::min(epoch.by_rank, {}, &RankCommunication::waited).waited;
  model_.emplace(epoch.mine, bytes, waited);
  if (is_host_memory(device_)) model_->take_from_compute(kMessagesTake);
  return try_next("");
}

// Seconds per element of each codec, on the slowest rank, while all ranks compute.
std::vector<double> CodecTrial::measure_codecs() {
  std::vector<double> seconds = {0};
  for (const ExchangeChoice& choice : exchange_.choices().subspan(1)) {
    double mine = kNoRoom;
    run_agreed(host_, [&] {
      try {
        mine = codec_seconds_per_element(choice, device_, exchange_.nodes());
      } catch (const MemoryError&) {  // then it is not chosen
      }
    });
    seconds.push_back(std::ranges::max(gather_values(host_, mine)));
  }
  return seconds;
}

// found: text about the previous choice and its time; empty: none was tried.
CodecTrial::Choice CodecTrial::try_next(std::string found) {
  CodecChoice choice{.by_bucket = std::vector<int>(buckets_.size(), 0)};
  double gain = 0;
  if (host_.rank() == 0 && ways_.size() > 1) {
    const OverlappedBackward dense = model_->with(ways_.front());
    const double all = dense.seconds + dense.exposed_seconds;
    const double shortest = dense_seconds_ - (all - choose_codecs(*model_, ways_, 0).seconds);
    choice = choose_codecs(*model_, ways_, kNegligible * shortest);
    gain = all - choice.seconds;
    if (gain < options_.least_gain * dense_seconds_) choice.by_bucket.assign(buckets_.size(), 0);
  }
  host_.complete({.kind = CollectiveKind::broadcast,
                  .dtype = DType::i32,
                  .recv = choice.by_bucket.data(),
                  .count = choice.by_bucket.size()});
  if (!is_dense(choice.by_bucket)) {
    expected_ = dense_seconds_ - gain;
    return choice.by_bucket;
  }
  if (found.empty()) {
    found = ways_.size() > 1 ? fmt::format("the best codec would save {:.1f} ms", ms(gain))
                             : "no codec is left to try";
  }
  decide(fmt::format("none: {}; {}", measured_, found));
  return is_dense(exchange_.chosen()) ? Choice() : choice.by_bucket;
}

CodecTrial::Choice CodecTrial::judge(double seconds) {
  const std::string names = names_of(exchange_.chosen());
  if (seconds <= (1 - options_.least_gain) * dense_seconds_) {
    decide(fmt::format("{}: {:.1f} ms a step ({:.1f} expected), against {}", names, ms(seconds),
                       ms(expected_), measured_));
    return std::nullopt;
  }
  const int lossiest = *std::ranges::max_element(exchange_.chosen());
  ways_.resize(static_cast<std::size_t>(lossiest));
  return try_next(fmt::format("{} took {:.1f} ms a step", names, ms(seconds)));
}

void CodecTrial::decide(const std::string& text) {
  start(true);
  model_.reset();
  ways_.clear();
  log::info("comm.codec = \"auto\": {}", text);
}

// "powersgd for all 3 buckets", "none for 1 of 3 buckets, powersgd for 2".
std::string CodecTrial::names_of(std::span<const int> by_bucket) const {
  std::vector<std::string> parts;
  for (int number = 0; number < std::ssize(exchange_.choices()); ++number) {
    const auto buckets = std::ranges::count(by_bucket, number);
    const std::string_view name = exchange_.choices()[static_cast<std::size_t>(number)].kind->name;
    if (buckets == std::ssize(by_bucket)) return fmt::format("{} for all buckets ({})", name, buckets);
    if (buckets == 0) continue;
    parts.push_back(parts.empty() ? fmt::format("{} for {} of {} buckets", name, buckets, by_bucket.size())
                                  : fmt::format("{} for {}", name, buckets));
  }
  return fmt::format("{}", fmt::join(parts, ", "));
}

CodecTrial::Choice CodecTrial::visit_state(StateVisitor& visitor, std::span<const Parameter> parameters,
                                           const BucketPlan& plan) {
  const std::span<const ExchangeChoice> choices = exchange_.choices();
  std::vector<int> by_bucket(buckets_.size(), static_cast<int>(choices.size()));
  std::int64_t decided = decided_ ? 1 : 0;
  // Saved where there was nothing to choose, such as on a single node.
  if (!visitor.has_value(kDecided, StateScope::replicated)) {
    start(false);
    return std::vector<int>(buckets_.size(), 0);
  }
  visitor.value(kDecided, StateScope::replicated, &decided);
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const std::size_t bucket = plan.bucket_of(i);
    std::int64_t place = place_of(choices[static_cast<std::size_t>(exchange_.chosen()[bucket])]);
    visitor.value(parameters[i].name + ".codec", StateScope::replicated, &place);
    const auto known = std::ranges::find(choices, place, place_of);
    if (known == choices.end()) decided = 0;  // a codec beyond the current limit
    // If buckets have changed, takes the least lossy codec of their parameters.
    by_bucket[bucket] = std::min(by_bucket[bucket], static_cast<int>(known - choices.begin()));
  }
  if (!visitor.writes()) return std::nullopt;
  start(decided != 0);
  if (decided == 0) by_bucket.assign(buckets_.size(), 0);
  return by_bucket;
}

}  // namespace lockstep
