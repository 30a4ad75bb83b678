// SPDX-License-Identifier: Apache-2.0
#include "launch/train/clock/ledger.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "core/error.h"

namespace lockstep {
namespace {

double seconds_of(std::int64_t ns) { return static_cast<double>(ns) * 1e-9; }

std::int64_t overlap_of(std::int64_t begin, std::int64_t end, std::int64_t from, std::int64_t to) {
  return std::max<std::int64_t>(0, std::min(end, to) - std::max(begin, from));
}

// All fields of type double.
constexpr double LedgerSums::*kStepSums[] = {&LedgerSums::backward,        &LedgerSums::exposed,
                                             &LedgerSums::exposed_starved, &LedgerSums::exposed_late,
                                             &LedgerSums::exposed_wire,    &LedgerSums::exposed_rest,
                                             &LedgerSums::hidden};
constexpr double BucketSums::*kBucketSums[] = {
    &BucketSums::lead,    &BucketSums::starved, &BucketSums::late,      &BucketSums::wire,
    &BucketSums::exposed, &BucketSums::hidden,  &BucketSums::sent_bytes};

}  // namespace

Ledger::Ledger(std::size_t buckets, const CollectiveLog* log, bool keeps_steps)
    : under_way_(buckets), ended_(buckets), finished_(buckets), keeps_steps_(keeps_steps) {
  waits_.reserve(buckets);
  std::iota(finished_.begin(), finished_.end(), std::size_t{0});
  for (LedgerSums* sums : {&step_, &sums_, &window_}) sums->buckets.resize(buckets);
  if (log != nullptr) read_also(*log);
}

void Ledger::read_also(const CollectiveLog& log) { sources_.push_back({.log = &log, .read = log.newest()}); }

void Ledger::add(std::size_t bucket, const CollectiveMoments& moments, std::uint64_t sent_bytes,
                 const CollectiveMoments& other) {
  CHECK(bucket < under_way_.size(), "bucket {} of {}", bucket, under_way_.size());
  BucketPassage& passage = under_way_[bucket];
  if (passage.started_ns == 0 || moments.started_ns < passage.started_ns) {
    passage.final_ns = moments.final_ns;
    passage.enqueued_ns = moments.enqueued_ns;
    passage.started_ns = moments.started_ns;
    passage.met_ns = moments.met_ns;
    passage.other = other;
  }
  passage.finished_ns = std::max(passage.finished_ns, moments.finished_ns);
  if (moments.met_ns > 0) passage.late_ns += moments.met_ns - moments.started_ns;
  passage.sent_bytes += sent_bytes;
}

void Ledger::read_log() {
  for (Source& source : sources_) read(source);
}

void Ledger::read(Source& source) {
  const std::uint64_t newest = source.log->newest();
  const std::uint64_t kept = newest > CollectiveLog::kRecords ? newest - CollectiveLog::kRecords : 0;
  CollectiveMoments other;
  for (std::uint64_t sequence = std::max(source.read, kept) + 1; sequence <= newest; ++sequence) {
    const auto record = source.log->find_record(sequence);
    if (!record) continue;
    if (const std::int32_t bucket = record->collective.purpose.bucket; bucket >= 0) {
      add(static_cast<std::size_t>(bucket), record->moments, record->sent_bytes, other);
      other = {};
    } else {
      const std::int64_t first_ns = other.started_ns;
      other = record->moments;
      if (first_ns > 0) other.started_ns = first_ns;
    }
  }
  source.read = newest;
}

std::int64_t Ledger::waited_within(std::int64_t begin, std::int64_t end) const {
  std::int64_t waited = overlap_of(begin, end, compute_.waited_ns, compute_.resumed_ns);
  for (const BucketWait& wait : waits_) waited += overlap_of(begin, end, wait.begin_ns, wait.end_ns);
  return waited;
}

// before_ns: when the bucket before it finished.
void Ledger::account(const BucketPassage& passage, std::int64_t before_ns, BucketSums& sums) {
  const std::int64_t asked_ns = std::max(passage.enqueued_ns, passage.final_ns);
  const std::int64_t possible_ns = std::clamp(before_ns, asked_ns, std::max(asked_ns, passage.started_ns));
  const std::int64_t met_ns = passage.started_ns + passage.late_ns;
  // While the bucket was ready, its thread may have waited for peers in another collective.
  const auto while_ready = [&](std::int64_t ns) {
    return std::clamp(ns, possible_ns, std::max(possible_ns, passage.started_ns));
  };
  const CollectiveMoments& other = passage.other;
  const std::int64_t other_begin = while_ready(other.started_ns);
  const std::int64_t other_met = while_ready(std::max(other.started_ns, other.met_ns));
  const std::int64_t other_end = while_ready(std::max(other.met_ns, other.finished_ns));
  const std::int64_t starved =
      waited_within(possible_ns, passage.started_ns) - waited_within(other_begin, other_end);
  const std::int64_t late = waited_within(other_begin, other_met) + waited_within(passage.started_ns, met_ns);
  const std::int64_t wire = waited_within(other_met, other_end) + waited_within(met_ns, passage.finished_ns);
  const std::int64_t all_late = other_met - other_begin + passage.late_ns;
  const std::int64_t all_wire = other_end - other_met + passage.finished_ns - met_ns;
  sums.lead += seconds_of(compute_.waited_ns - passage.final_ns);
  sums.starved += seconds_of(passage.started_ns - possible_ns - (other_end - other_begin));
  sums.late += seconds_of(all_late);
  sums.wire += seconds_of(all_wire);
  sums.exposed += seconds_of(starved + late + wire);
  sums.hidden += seconds_of(all_late + all_wire - late - wire);
  sums.sent_bytes += static_cast<double>(passage.sent_bytes);
  step_.exposed_starved += seconds_of(starved);
  step_.exposed_late += seconds_of(late);
  step_.exposed_wire += seconds_of(wire);
  step_.exposed_rest -= seconds_of(starved + late + wire);
  step_.hidden += seconds_of(all_late + all_wire - late - wire);
}

void Ledger::end_step(const ComputeMoments& compute) {
  compute_ = compute;
  waits_.assign(compute.waits.begin(), compute.waits.end());
  compute_.waits = waits_;
  std::swap(under_way_, ended_);
  std::ranges::fill(under_way_, BucketPassage{});
  if (keeps_steps_) keep_step();
  sum_step();
  sums_ += step_;
  window_ += step_;
}

// sums_.steps does not count this step yet.
void Ledger::keep_step() {
  if (sums_.steps % kept_every_ != 0) return;
  kept_.push_back({.compute = compute_, .waits = waits_, .buckets = ended_});
  if (kept_.size() < kMostKept) return;
  for (std::size_t i = 1; i < kMostKept / 2; ++i) kept_[i] = std::move(kept_[2 * i]);
  kept_.resize(kMostKept / 2);
  kept_every_ *= 2;
}

void Ledger::sum_step() {
  const ComputeMoments& compute = compute_;
  double waited = seconds_of(compute.resumed_ns - compute.waited_ns);
  for (const BucketWait& wait : waits_) waited += seconds_of(wait.end_ns - wait.begin_ns);
  clear(step_);
  step_.steps = 1;
  step_.backward = seconds_of(compute.waited_ns - compute.backward_ns);
  step_.exposed = waited;
  step_.exposed_rest = waited;
  if (std::ranges::all_of(ended_, [](const BucketPassage& bucket) { return bucket.finished_ns == 0; }))
    step_.without_exchange = 1;
  std::int64_t before_ns = 0;
  std::ranges::sort(finished_, {}, [&](std::size_t bucket) { return ended_[bucket].finished_ns; });
  for (const std::size_t bucket : finished_) {
    if (ended_[bucket].finished_ns == 0) continue;
    account(ended_[bucket], before_ns, step_.buckets[bucket]);
    before_ns = ended_[bucket].finished_ns;
  }
}

void Ledger::clear(LedgerSums& sums) {
  std::vector<BucketSums> buckets = std::move(sums.buckets);
  std::ranges::fill(buckets, BucketSums{});
  sums = {};
  sums.buckets = std::move(buckets);
}

LedgerSums& LedgerSums::operator+=(const LedgerSums& more) {
  steps += more.steps;
  without_exchange += more.without_exchange;
  for (const auto sum : kStepSums) this->*sum += more.*sum;
  for (std::size_t i = 0; i < buckets.size(); ++i)
    for (const auto sum : kBucketSums) buckets[i].*sum += more.buckets[i].*sum;
  return *this;
}

void LedgerSums::scale_to(std::int64_t all) {
  if (steps == 0) {
    steps = all;
    return;
  }
  const double factor = static_cast<double>(all) / static_cast<double>(steps);
  without_exchange = std::llround(factor * static_cast<double>(without_exchange));
  steps = all;
  for (const auto sum : kStepSums) this->*sum *= factor;
  for (BucketSums& bucket : buckets)
    for (const auto sum : kBucketSums) bucket.*sum *= factor;
}

std::vector<float> Ledger::durations() const {
  std::vector<float> seconds;
  for (const KeptStep& step : kept_)
    for (const BucketPassage& bucket : step.buckets)
      seconds.push_back(static_cast<float>(seconds_of(bucket.finished_ns - bucket.started_ns)));
  return seconds;
}

void Ledger::sum_again(std::span<const float> least) {
  const std::int64_t steps = sums_.steps;
  clear(sums_);
  for (const KeptStep& step : kept_) {
    compute_ = step.compute;
    waits_ = step.waits;
    compute_.waits = waits_;
    ended_ = step.buckets;
    for (BucketPassage& bucket : ended_) {
      const auto sum_ns = static_cast<std::int64_t>(1e9 * static_cast<double>(least.front()));
      bucket.late_ns = std::max<std::int64_t>(0, bucket.finished_ns - bucket.started_ns - sum_ns);
      least = least.subspan(1);
    }
    sum_step();
    sums_ += step_;
  }
  sums_.scale_to(steps);
}

LedgerSums Ledger::take(std::span<const float> least) {
  CHECK(least.empty() || least.size() == kept_.size() * ended_.size(), "{} durations of {} steps",
        least.size(), kept_.size());
  if (!least.empty()) sum_again(least);
  kept_.clear();
  kept_every_ = 1;
  LedgerSums sums = sums_;
  if (skipped_ > 0) sums.scale_to(sums.steps + std::exchange(skipped_, 0));
  sums_ = {};
  sums_.buckets.resize(sums.buckets.size());
  return sums;
}

void record_flows(const Ledger& ledger, Timeline& timeline) {
  const ComputeMoments& compute = ledger.compute();
  for (std::size_t bucket = 0; bucket < ledger.passages().size(); ++bucket) {
    const BucketPassage& passage = ledger.passages()[bucket];
    if (passage.finished_ns == 0) continue;
    std::int64_t needed_ns = std::clamp(passage.finished_ns, compute.waited_ns, compute.resumed_ns);
    for (const BucketWait& wait : compute.waits)
      if (wait.bucket == bucket) needed_ns = wait.end_ns;
    timeline.record(
        BucketFlow{.bucket = static_cast<std::int32_t>(bucket),
                   .final_ns = std::clamp(passage.final_ns, compute.backward_ns, compute.resumed_ns),
                   .started_ns = passage.started_ns,
                   .met_ns = passage.met_ns,
                   .needed_ns = needed_ns,
                   .sent_bytes = passage.sent_bytes});
  }
}

}  // namespace lockstep
