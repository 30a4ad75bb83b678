// SPDX-License-Identifier: Apache-2.0
//
// SweepSearch: which training comes next, for as many at once as there are slots. A rung is a number of
// epochs at which trials are compared; grid and random have one rung, the whole training. Halving is
// asynchronous successive halving (Li et al., "A System for Massively Parallel Hyperparameter Tuning", 2020,
// algorithm 2): a trial goes on to the next rung as soon as it is among the best 1/eta of those that have
// come to its own, and a slot never waits for a rung to fill. Where trials are finite in number a slot would
// still be idle at the end, and so there are two more rules, in this order:
//
// - Where nothing else is left to start, the best that waits goes on, as long as its rung stays within its
//   share of all trials, or within the slots.
// - Beyond that share, as long as it is expected to be done before a training that is under way anyway.
//
// And where early, noisy comparisons have filled a rung's share, only the best of those before it still goes
// on to it: so a search takes few more epochs than shares say.
//
// Pure: it starts nothing, and has no clock but the one it is shown.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "launch/sweep/ranking.h"

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
  double eta = 3;
  std::int64_t slots = 1;
};

// Rungs of successive halving: all epochs, and fewer by a factor of eta each, down to min_epochs at least.
std::vector<std::int64_t> halving_rungs(std::int64_t epochs, std::int64_t min_epochs, double eta);

class SweepSearch {
 public:
  struct Trial {
    std::vector<SweepMeasure> measures = {};  // of each rung that it has come to
    std::string problem = {};                 // why it failed; empty: it did not

    bool failed() const { return !problem.empty(); }
  };

  explicit SweepSearch(SweepRules rules);

  // What a free slot starts at this moment, in seconds of any clock; nothing: it has to wait for what runs,
  // and where nothing runs the search is over. started() follows.
  std::optional<SweepJob> next(double now) const;
  void started(const SweepJob& job, double now);
  // seconds: that the job took.
  void finished(const SweepJob& job, const SweepMeasure& measure, double seconds);
  void failed(const SweepJob& job, const std::string& problem);
  // It ended before it was done, and is to be started again.
  void interrupted(const SweepJob& job);

  const SweepRules& rules() const { return rules_; }
  const std::vector<Trial>& trials() const { return trials_; }
  bool runs_any() const { return !running_.empty(); }
  // Epochs that this search takes, about, without those beyond the shares of rungs.
  std::int64_t expected_epochs() const;
  // Epochs that jobs have taken: of trials that failed those up to their last rung.
  std::int64_t epochs_done() const;
  std::int64_t epochs_of(const Trial& trial) const;
  // Trials that did not fail, the best first: those that were trained longer come first.
  std::vector<std::int64_t> ranking() const;

 private:
  struct Running {
    double since = 0;
    double expected_seconds = 0;  // 0: not known
    bool extra = false;           // it was started beyond its rung's share
  };

  std::int64_t epochs_in(const SweepJob& job) const;
  double expected_seconds(const SweepJob& job) const;
  std::int64_t share_of(std::size_t rung) const;
  // Those that have come to a rung, the best first, and whether each may go on.
  std::vector<std::int64_t> ranked_in(std::size_t rung) const;
  bool waits_in(std::int64_t trial, std::size_t rung) const;
  std::optional<SweepJob> best_waiting(std::size_t rung, std::size_t among) const;
  std::optional<SweepJob> promoted() const;
  std::optional<SweepJob> within_share() const;
  std::optional<SweepJob> beside_the_last(double now) const;

  SweepRules rules_;
  std::vector<Trial> trials_;
  std::vector<std::size_t> begun_;        // rungs that each trial was started for
  std::vector<std::int64_t> started_in_;  // trials that were started for each rung
  std::deque<SweepJob> to_repeat_;
  std::map<std::int64_t, Running> running_;  // by trial
  std::vector<double> epoch_seconds_;        // of each trial; 0: not known
  std::int64_t fresh_ = 0;                   // trials that were started at all
};

}  // namespace lockstep
