// SPDX-License-Identifier: Apache-2.0
//
// TuneSearch: finds the settings of a configuration with the fastest steps, from measurements by a callback.
// It tries one dimension after the other, each on top of the best settings so far, and halves the candidates
// of a dimension repeatedly: the better half is measured twice as often. Each measurement of a candidate
// alternates with the given configuration (the default), and only the ratio of the two counts, so other
// load on the machine cancels out. The best settings must show their gain again in separate measurements.
// Pure: the same measurements give the same decisions on every rank.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "launch/program/setup/bench_block.h"

namespace lockstep {

// Changed keys and their values in TOML; empty: the given configuration.
using TuneSettings = std::map<std::string, std::string>;

// "comm.overlap=false, train.threads=1"; "as configured" for empty settings.
std::string describe(const TuneSettings& settings);

struct TuneRequest {
  TuneSettings settings;
  int pairs = 1;          // at least 1
  bool confirms = false;  // for the confirmation, not for the choice
};

// The measurements of one request. Times are those of the slowest rank.
struct TuneVisit {
  std::vector<BenchBlock> blocks = {};  // default, candidate, default, ..., default: 2 * pairs + 1
  double seconds = 0;                   // of the whole visit, including construction
  double steps = 0;                     // trained, including warm-up
  std::string problem = {};             // reason why the settings cannot run; blocks is then empty
};

// The speedup of each pair: the default's step time, as the mean of the blocks before and after, over the
// candidate's.
std::vector<double> ratios_of(const TuneVisit& visit);

// The median of ratios and its confidence interval of at least 95 % (order statistics). Fewer than six ratios
// have no such interval: low and high are then the extremes. All 0 without ratios.
struct TuneFigure {
  double ratio = 0;
  double low = 0;
  double high = 0;
  int pairs = 0;
};
TuneFigure figure_of(std::vector<double> ratios);
// "1.080x (1.050 to 1.110)"
std::string describe(const TuneFigure& figure);

// One dimension of the search. name: such as "bucket size".
struct TuneStage {
  std::string name;
  double weight = 1;  // relative share of the budget
  // Returns the settings to try on top of the best so far, the most promising first.
  std::function<std::vector<TuneSettings>(const TuneSettings& best)> field;
};

struct TuneCandidate {
  TuneSettings settings;
  std::string stage;
  std::vector<double> ratios = {};      // without the confirmation; empty: not measured
  std::vector<BenchBlock> blocks = {};  // of the candidate, without the default's
  std::string problem = {};

  TuneFigure figure() const { return figure_of(ratios); }
};

struct TuneOutcome {
  std::vector<TuneCandidate> candidates;  // in the order of stages and fields
  std::vector<BenchBlock> default_blocks;
  TuneSettings chosen;               // the best of the candidates; empty: the default
  std::vector<double> confirmation;  // ratios of chosen; empty: not measured
  std::vector<BenchBlock> confirmed_blocks;
  TuneSettings winner;  // chosen if confirmed, else empty
  std::string reason;   // of the decision, for people
  double spent = 0;     // in units of the budget
};

enum class TuneUnit { seconds, steps };

struct TuneBudget {
  TuneUnit unit = TuneUnit::seconds;
  double total = 0;
  double pair_cost = 0;  // estimate; above 0
  double spent = 0;      // before the search

  double cost_of(const TuneVisit& visit) const {
    return unit == TuneUnit::seconds ? visit.seconds : visit.steps;
  }
};

class TuneSearch {
 public:
  static constexpr int kConfirmingPairs = 6;  // minimum for any budget: the fewest with a 95 % interval

  using Measure = std::function<TuneVisit(const TuneRequest& request)>;
  TuneSearch(const TuneBudget& budget, Measure measure);

  // Reserves a quarter of the budget for the confirmation, which takes more if kConfirmingPairs need more.
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
