// SPDX-License-Identifier: Apache-2.0
//
// KernelChoices: which of several kernels that compute the same thing is used, by a key that says what is
// computed (operation, direction, shape, layout). A kernel that was never asked for is chosen when it is
// planned: by a contest of all candidates, or, where that is not wanted, by taking the first.
//
// Candidates differ in rounding, so all ranks must use the same choices: one rank plans first, the others
// get its text. Kept in a file they also make a second start immediate, and its results the same bits.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>

namespace lockstep {

enum class ChooseBy {
  name,  // the candidate of a given name where there is one, else the first: the most accurate, there for all
  time,  // the fastest on this machine, now
};

struct KernelChoice {
  std::string candidate;
  double microseconds = 0;  // of one call; 0: not timed
  // The fraction of the contest that a thread waited for a processor, because others were busy on it: then
  // the times say little.
  double waited = 0;
  int contests = 1;  // that were held for it, each at another start

  // Whether it is good for all later starts. One that was made on a busy machine is to be made again, but not
  // for ever: where it is always busy, times at busy times are the right ones.
  bool settled() const { return waited <= 0.2 || contests >= 5; }
};

class KernelChoices {
 public:
  explicit KernelChoices(ChooseBy by = ChooseBy::name, std::string name = "")
      : by_(by), name_(std::move(name)) {}
  // A copy for planning alone, where no kernel runs: a key without a choice uses the first candidate.
  static KernelChoices without_contests(const KernelChoices& choices);
  bool plans_only() const { return plans_only_; }

  struct Candidates {
    std::span<const std::string> names;       // at least one; the first is the default
    std::function<bool(std::size_t)> usable;  // null: all are
    std::function<KernelChoice()> contest;    // names the fastest that is usable; null: the first is
  };
  // The index of the candidate to use; nothing when none is usable. A kept choice wins if it is still usable;
  // otherwise, when choosing by time, the contest is held, and what it finds is kept.
  std::optional<std::size_t> choose(const std::string& key, const Candidates& candidates);

  const std::map<std::string, KernelChoice>& kept() const { return kept_; }
  void keep(const std::string& key, const KernelChoice& choice) { kept_[key] = choice; }
  // One of an earlier start, which did not settle: made again when it is asked for. The less disturbed of the
  // two stays.
  void keep_in_doubt(const std::string& key, const KernelChoice& choice) { in_doubt_[key] = choice; }
  ChooseBy by() const { return by_; }

  // How far a plan's contests are. `expected` is right after Network::planned_memory counted them.
  struct Progress {
    std::size_t held = 0;
    std::size_t expected = 0;
  };
  const Progress& progress() const { return progress_; }
  void expect_contests(std::size_t count) { progress_.expected = progress_.held + count; }
  // Called before each contest; null: nobody is.
  void observe(std::function<void(const Progress&)> observer) { observer_ = std::move(observer); }
  // Keys that were asked for and would have needed a contest.
  std::size_t unknown() const { return unknown_.size(); }

 private:
  KernelChoice hold_contest(const std::string& key, const Candidates& candidates);

  ChooseBy by_;
  std::string name_;
  bool plans_only_ = false;
  std::map<std::string, KernelChoice> kept_;
  std::map<std::string, KernelChoice> in_doubt_;
  std::set<std::string> unknown_;
  Progress progress_;
  std::function<void(const Progress&)> observer_;
};

}  // namespace lockstep
