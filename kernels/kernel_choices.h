// SPDX-License-Identifier: Apache-2.0
//
// KernelChoices: which of several equivalent kernels is used, by a key that describes the computation
// (operation, direction, shape, layout). The kernel for a new key is chosen when it is planned: by a timed
// contest of all candidates or, if choosing by name, by taking the named or the first one.
//
// Candidates round differently, so all ranks must use the same choices: one rank plans first, the others
// receive its choices. Saving them to a file makes the next start faster and its results bit-identical.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>

namespace lockstep {

enum class ChooseBy {
  name,  // the candidate of a given name if there is one, else the first usable one
  time,  // the fastest on this machine, now
};

struct KernelChoice {
  std::string candidate;
  double microseconds = 0;        // of one call; 0: not timed
  double first_microseconds = 0;  // of one call of the first candidate, the default; 0: not known
  // The fraction of the contest's time that a thread waited for a processor that others used. If it is large,
  // the times are unreliable.
  double waited = 0;
  int contests = 1;            // number of contests held for it, each at another start
  std::int64_t chosen_at = 0;  // end of the contest in seconds since 1970; 0: not known

  // True if the times were taken while other processes used the processors.
  bool busy() const { return waited > 0.2; }
  // True if later starts use the choice without a new contest. A choice made on a busy machine is repeated,
  // at most 5 times in all: if the machine is always busy, times under load are the right ones.
  bool settled() const { return !busy() || contests >= 5; }
};

class KernelChoices {
 public:
  explicit KernelChoices(ChooseBy by = ChooseBy::name, std::string name = "")
      : by_(by), name_(std::move(name)) {}
  // A copy for planning only, without timing: a key without a choice uses the named or the first usable
  // candidate.
  static KernelChoices without_contests(const KernelChoices& choices);
  bool plans_only() const { return plans_only_; }

  struct Candidates {
    std::span<const std::string> names;       // at least one; the first is the default
    std::function<bool(std::size_t)> usable;  // null: all are
    // Names the fastest usable candidate; null: the first usable one is taken.
    std::function<KernelChoice()> contest;
  };
  // The index of the candidate to use; nothing if none is usable. A kept choice wins if it is still usable.
  // Otherwise, when choosing by time, a contest is held and its result is kept.
  std::optional<std::size_t> choose(const std::string& key, const Candidates& candidates);

  const std::map<std::string, KernelChoice>& kept() const { return kept_; }
  void keep(const std::string& key, const KernelChoice& choice) { kept_[key] = choice; }
  // Adds a choice of an earlier start that was not settled. choose() holds a new contest for it and keeps the
  // result with less waiting.
  void keep_in_doubt(const std::string& key, const KernelChoice& choice) { in_doubt_[key] = choice; }
  ChooseBy by() const { return by_; }

  // Progress of a plan's contests. `expected` is exact after Network::planned_memory has counted them.
  struct Progress {
    std::size_t held = 0;
    std::size_t expected = 0;
  };
  const Progress& progress() const { return progress_; }
  void expect_contests(std::size_t count) { progress_.expected = progress_.held + count; }
  // Sets a function to call before each contest; null: none.
  void observe(std::function<void(const Progress&)> observer) { observer_ = std::move(observer); }
  // Number of keys for which a contest would have been needed.
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
