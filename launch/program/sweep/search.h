// SPDX-License-Identifier: Apache-2.0
//
// SweepSearch: chooses the next job for a free slot. A rung is a number of epochs at which trials are
// compared; grid and random have one rung, the whole training. Halving is asynchronous successive halving (Li
// et al., "A System for Massively Parallel Hyperparameter Tuning", 2020, algorithm 2): a trial is promoted to
// the next rung as soon as it is among the best 1/eta of the trials that have reached its rung, and a slot
// never waits for a rung to fill. With a finite number of trials slots would still be idle at the end. Two
// more rules prevent this, in this order:
//
// - If no other job can start, the best waiting trial is promoted, as long as the next rung stays within its
//   share of all trials, or within the number of slots.
// - Beyond that share, a waiting trial is promoted if it should end before a job that is under way anyway.
//
// If early, noisy comparisons have filled the share of a rung, only the best trial of the rung before is
// still promoted to it. So a search takes few more epochs than the shares.
//
// Pure: it starts no process and reads no clock.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "launch/program/sweep/ranking.h"

namespace lockstep {

struct SweepJob {
  std::int64_t trial = 0;  // from 0
  std::size_t rung = 0;

  bool operator==(const SweepJob&) const = default;
};

struct SweepRules {
  SweepObjective objective = SweepObjective::accuracy;
  std::int64_t trials = 1;
  std::vector<std::int64_t> rungs = {1};  // epochs, ascending; the last is the whole training
  // With one rung: epochs of each trial's whole training. Empty: those of the rung.
  std::vector<std::int64_t> own_epochs = {};
  double eta = 3;
  std::int64_t slots = 1;
};

// Rungs of successive halving, ascending: epochs, epochs / eta, and so on, not below min_epochs.
std::vector<std::int64_t> halving_rungs(std::int64_t epochs, std::int64_t min_epochs, double eta);

class SweepSearch {
 public:
  struct Trial {
    std::vector<SweepMeasure> measures = {};  // of each rung that it has reached
    std::string problem = {};                 // reason of a failure; empty: none

    bool failed() const { return !problem.empty(); }
  };

  explicit SweepSearch(SweepRules rules);

  // The job that a free slot starts now; the caller then calls started(). nullopt: wait for a running job,
  // or, where none runs, the search is over. now: seconds of any clock.
  std::optional<SweepJob> next(double now) const;
  void started(const SweepJob& job, double now);
  // seconds: duration of the job.
  void finished(const SweepJob& job, const SweepMeasure& measure, double seconds);
  void failed(const SweepJob& job, const std::string& problem);
  // The job ended early; next() returns it again.
  void interrupted(const SweepJob& job);

  const SweepRules& rules() const { return rules_; }
  const std::vector<Trial>& trials() const { return trials_; }
  // Estimated epochs of the whole search: of all trials but those that failed before the first rung, then by
  // the share of each further rung, or the trials started for it if more.
  std::int64_t expected_epochs() const;
  // Trials with a measure that did not fail: those of the highest rung first, within a rung the best first.
  std::vector<std::int64_t> ranking() const;

 private:
  struct Running {
    double since = 0;
    double expected_seconds = 0;  // 0: not known
  };

  std::int64_t epochs_in(const SweepJob& job) const;
  double expected_seconds(const SweepJob& job) const;
  std::int64_t share_of(std::size_t rung) const;
  // Trials that have reached a rung, the best first; last, trials that failed on the way to it.
  std::vector<std::int64_t> ranked_in(std::size_t rung) const;
  bool waits_in(std::int64_t trial, std::size_t rung) const;
  std::optional<SweepJob> best_waiting(std::size_t rung, std::size_t among) const;
  std::optional<SweepJob> promoted() const;
  std::optional<SweepJob> within_share() const;
  std::optional<SweepJob> beside_the_last(double now) const;

  SweepRules rules_;
  std::vector<Trial> trials_;
  std::vector<std::size_t> begun_;        // number of rungs that each trial was started for
  std::vector<bool> extra_;               // the trial's last job began beyond the share of its rung
  std::vector<std::int64_t> started_in_;  // number of trials started for each rung
  std::deque<SweepJob> to_repeat_;
  std::map<std::int64_t, Running> running_;  // by trial
  std::vector<double> epoch_seconds_;        // of each trial; 0: not known
  std::int64_t fresh_ = 0;                   // number of trials that were started
};

}  // namespace lockstep
