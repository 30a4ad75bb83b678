// SPDX-License-Identifier: Apache-2.0
#include "launch/program/sweep/search.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "core/error.h"

namespace lockstep {

std::vector<std::int64_t> halving_rungs(std::int64_t epochs, std::int64_t min_epochs, double eta) {
  std::vector<std::int64_t> rungs;
  for (double at = static_cast<double>(epochs); std::floor(at) >= static_cast<double>(min_epochs); at /= eta)
    if (const auto whole = static_cast<std::int64_t>(at); rungs.empty() || rungs.back() != whole)
      rungs.push_back(whole);
  if (rungs.empty()) rungs.push_back(epochs);
  std::ranges::reverse(rungs);
  return rungs;
}

SweepSearch::SweepSearch(SweepRules rules)
    : rules_(std::move(rules)),
      trials_(static_cast<std::size_t>(rules_.trials)),
      begun_(trials_.size()),
      extra_(trials_.size()),
      started_in_(rules_.rungs.size()),
      epoch_seconds_(trials_.size()) {
  CHECK(!rules_.rungs.empty() && rules_.slots >= 1 && rules_.eta > 1,
        "invalid rules of a sweep: {} rungs, {} slots, eta {}", rules_.rungs.size(), rules_.slots,
        rules_.eta);
}

std::int64_t SweepSearch::epochs_in(const SweepJob& job) const {
  return rules_.rungs[job.rung] - (job.rung == 0 ? 0 : rules_.rungs[job.rung - 1]);
}

// Estimates from the trial's last job, or else from the mean of all trials; 0: not known.
double SweepSearch::expected_seconds(const SweepJob& job) const {
  double seconds = epoch_seconds_[static_cast<std::size_t>(job.trial)];
  if (seconds == 0) {
    double sum = 0, known = 0;
    for (const double each : epoch_seconds_) {
      sum += each;
      known += each > 0 ? 1 : 0;
    }
    seconds = known > 0 ? sum / known : 0;
  }
  return seconds * static_cast<double>(epochs_in(job));
}

std::int64_t SweepSearch::share_of(std::size_t rung) const {
  const double share = static_cast<double>(rules_.trials) / std::pow(rules_.eta, static_cast<double>(rung));
  const auto whole = static_cast<std::int64_t>(share + 1e-9);  // 27 / 3^3 must give 1
  return std::max(whole, std::min(rules_.slots, rules_.trials));
}

std::vector<std::int64_t> SweepSearch::ranked_in(std::size_t rung) const {
  std::vector<std::int64_t> here, failed;
  std::vector<SweepMeasure> measures;
  for (std::size_t trial = 0; trial < trials_.size(); ++trial) {
    const Trial& each = trials_[trial];
    if (each.measures.size() > rung) {
      here.push_back(static_cast<std::int64_t>(trial));
      measures.push_back(each.measures[rung]);
    } else if (each.failed() && each.measures.size() == rung) {
      failed.push_back(static_cast<std::int64_t>(trial));
    }
  }
  std::vector<std::int64_t> order;
  for (const std::size_t place : ranked(rules_.objective, measures)) order.push_back(here[place]);
  order.insert(order.end(), failed.begin(), failed.end());  // failed trials count as reached, and rank last
  return order;
}

bool SweepSearch::waits_in(std::int64_t trial, std::size_t rung) const {
  const auto index = static_cast<std::size_t>(trial);
  return !trials_[index].failed() && begun_[index] == rung + 1 && trials_[index].measures.size() == rung + 1;
}

std::optional<SweepJob> SweepSearch::best_waiting(std::size_t rung, std::size_t among) const {
  const std::vector<std::int64_t> order = ranked_in(rung);
  for (std::size_t place = 0; place < std::min(among, order.size()); ++place)
    if (waits_in(order[place], rung)) return SweepJob{.trial = order[place], .rung = rung + 1};
  return std::nullopt;
}

std::optional<SweepJob> SweepSearch::promoted() const {
  for (std::size_t rung = rules_.rungs.size() - 1; rung-- > 0;) {
    // The two rules below may bring more trials than the rung's share: these must not promote further ones.
    const std::int64_t counted = std::min<std::int64_t>(std::ssize(ranked_in(rung)), share_of(rung));
    auto best = static_cast<std::size_t>(static_cast<double>(counted) / rules_.eta + 1e-9);
    if (started_in_[rung + 1] >= share_of(rung + 1)) best = std::min<std::size_t>(best, 1);
    if (const auto job = best_waiting(rung, best)) return job;
  }
  return std::nullopt;
}

std::optional<SweepJob> SweepSearch::within_share() const {
  for (std::size_t rung = 0; rung + 1 < rules_.rungs.size(); ++rung) {
    if (started_in_[rung + 1] >= share_of(rung + 1)) continue;
    if (const auto job = best_waiting(rung, trials_.size())) return job;
  }
  return std::nullopt;
}

// Ignores extra jobs: otherwise each extra job would justify the next one, without end.
std::optional<SweepJob> SweepSearch::beside_the_last(double now) const {
  double longest = 0;
  for (const auto& [trial, running] : running_)
    if (!extra_[static_cast<std::size_t>(trial)])
      longest = std::max(longest, running.since + running.expected_seconds - now);
  for (std::size_t rung = rules_.rungs.size() - 1; longest > 0 && rung-- > 0;) {
    for (const std::int64_t trial : ranked_in(rung)) {
      const SweepJob job{.trial = trial, .rung = rung + 1};
      if (waits_in(trial, rung) && expected_seconds(job) > 0 && expected_seconds(job) <= longest) return job;
    }
  }
  return std::nullopt;
}

std::optional<SweepJob> SweepSearch::next(double now) const {
  if (!to_repeat_.empty()) return to_repeat_.front();
  if (const auto job = promoted()) return job;
  if (fresh_ < rules_.trials) return SweepJob{.trial = fresh_, .rung = 0};
  if (const auto job = within_share()) return job;
  return beside_the_last(now);
}

void SweepSearch::started(const SweepJob& job, double now) {
  std::erase(to_repeat_, job);
  const auto trial = static_cast<std::size_t>(job.trial);
  if (begun_[trial] == job.rung) {  // not a job that is repeated
    extra_[trial] = job.rung > 0 && promoted() != job && within_share() != job;
    begun_[trial] = job.rung + 1;
    ++started_in_[job.rung];
  }
  fresh_ = std::max(fresh_, job.trial + 1);
  running_[job.trial] = {.since = now, .expected_seconds = expected_seconds(job)};
}

void SweepSearch::finished(const SweepJob& job, const SweepMeasure& measure, double seconds) {
  running_.erase(job.trial);
  const auto trial = static_cast<std::size_t>(job.trial);
  trials_[trial].measures.resize(job.rung);
  trials_[trial].measures.push_back(measure);
  epoch_seconds_[trial] = seconds / static_cast<double>(epochs_in(job));
}

void SweepSearch::failed(const SweepJob& job, const std::string& problem) {
  running_.erase(job.trial);
  trials_[static_cast<std::size_t>(job.trial)].problem = problem;
}

void SweepSearch::interrupted(const SweepJob& job) {
  running_.erase(job.trial);
  to_repeat_.push_back(job);
}

std::int64_t SweepSearch::expected_epochs() const {
  std::int64_t epochs = 0;
  for (std::size_t trial = 0; trial < trials_.size(); ++trial)
    if (!trials_[trial].failed() || !trials_[trial].measures.empty())
      epochs += rules_.own_epochs.empty() ? rules_.rungs.front() : rules_.own_epochs[trial];
  for (std::size_t rung = 1; rung < rules_.rungs.size(); ++rung)
    epochs += std::max(share_of(rung), started_in_[rung]) * epochs_in({.rung = rung});
  return epochs;
}

std::vector<std::int64_t> SweepSearch::ranking() const {
  std::vector<std::int64_t> order;
  for (std::size_t rung = rules_.rungs.size(); rung-- > 0;)
    for (const std::int64_t trial : ranked_in(rung)) {
      const Trial& each = trials_[static_cast<std::size_t>(trial)];
      if (!each.failed() && each.measures.size() == rung + 1) order.push_back(trial);
    }
  return order;
}

}  // namespace lockstep
