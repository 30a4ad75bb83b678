// SPDX-License-Identifier: Apache-2.0
//
// TuneSearch: which settings of a configuration make its steps fastest, found by measurements that somebody
// else makes. It goes through the settings one dimension after the other, each on top of the best so far, and
// halves each dimension's field again and again: the better half is measured twice as often. Every
// measurement of a setting is taken in turns with the configuration as it is, and only the ratio of the two
// counts: so what else the machine does at the time falls out, and the default is in the field to the end.
// The winner has to show its gain once more, in measurements that did not choose it. Pure: the same
// measurements give the same decisions, on every rank.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

namespace lockstep {

// Keys and values in TOML that change; none: the configuration as it is.
using TuneSettings = std::map<std::string, std::string>;

// "comm.overlap=false, train.threads=1"; "as configured".
std::string describe(const TuneSettings& settings);

// Of a stretch of steps: the mean of a step, of the slowest rank.
struct TuneBlock {
  double step_seconds = 0;
  double exposed_seconds = 0;  // the largest of any rank's
};

struct TuneRequest {
  TuneSettings settings;
  int pairs = 1;          // at least 1
  bool confirms = false;  // apart from the measurements that choose
};

// What was measured on one occasion.
struct TuneVisit {
  std::vector<TuneBlock> blocks =
      {};                    // default, candidate, default, ..., default: one more than twice the pairs
  double seconds = 0;        // that all of it took, with what had to be built
  double steps = 0;          // of training, those of warm-up included
  std::string problem = {};  // why it cannot be run with these settings; there are no blocks then
};

// Of each pair the default's step time, the mean of the blocks before and behind, over the candidate's: how
// much faster that is.
std::vector<double> ratios_of(const TuneVisit& visit);

// The median of such ratios, and an interval that holds it in at least 95 of 100 cases (order statistics).
// Fewer than six have none that is so sure: theirs is from the lowest to the highest. 0 of none.
struct TuneFigure {
  double ratio = 0;
  double low = 0;
  double high = 0;
  int pairs = 0;
};
TuneFigure figure_of(std::vector<double> ratios);
// "1.08x (1.05 to 1.11)"
std::string describe(const TuneFigure& figure);

// One dimension. Names say what it is: "bucket size".
struct TuneStage {
  std::string name;
  double weight = 1;  // its share of the budget against the others'
  // Those that are worth a try where this is the best so far, the likeliest first.
  std::function<std::vector<TuneSettings>(const TuneSettings& best)> field;
};

struct TuneCandidate {
  TuneSettings settings;
  std::string stage;
  std::vector<double> ratios = {};     // that chose; empty: the budget was at its end before
  std::vector<TuneBlock> blocks = {};  // its own of those pairs
  std::string problem = {};

  TuneFigure figure() const { return figure_of(ratios); }
};

struct TuneOutcome {
  std::vector<TuneCandidate> candidates;  // in the order of the field
  std::vector<TuneBlock> default_blocks;
  TuneSettings chosen;               // the best of them
  std::vector<double> confirmation;  // ratios; empty where nothing was chosen
  std::vector<TuneBlock> confirmed_blocks;
  TuneSettings winner;  // chosen, or none
  std::string reason;   // in a sentence
  double spent = 0;
};

enum class TuneUnit { seconds, steps };

struct TuneBudget {
  TuneUnit unit = TuneUnit::seconds;
  double total = 0;
  double pair_cost = 0;  // about; more than 0
  double spent = 0;      // before the search

  double cost_of(const TuneVisit& visit) const {
    return unit == TuneUnit::seconds ? visit.seconds : visit.steps;
  }
};

class TuneSearch {
 public:
  static constexpr int kConfirmingPairs = 6;  // at least, whatever the budget; so many can be 95 % sure

  using Measure = std::function<TuneVisit(const TuneRequest& request)>;
  TuneSearch(const TuneBudget& budget, Measure measure);

  // Confirmation gets a quarter of the budget, and where its least needs more, more.
  TuneOutcome run(const std::vector<TuneStage>& stages);

 private:
  void run_stage(const TuneStage& stage, double share);
  std::vector<std::size_t> halve(std::vector<std::size_t> alive, double share);
  bool worth_going_on(const std::vector<std::size_t>& alive) const;
  void visit(TuneCandidate& candidate, int pairs);
  int first_pairs(std::size_t candidates, double share) const;
  std::string why_none_was_chosen() const;
  void confirm();

  TuneBudget budget_;
  Measure measure_;
  TuneOutcome outcome_;
  double best_ratio_ = 1;
};

}  // namespace lockstep
