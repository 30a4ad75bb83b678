// SPDX-License-Identifier: Apache-2.0
//
// KernelChoices: which of several kernels that compute the same thing is used, by a key that says what is
// computed (operation, direction, shape, threads). A kernel that was never asked for is chosen when it is
// planned: by timing every candidate once, or, where that is not wanted, by taking the first.
//
// Candidates differ in rounding, so all ranks must use the same choices: one rank plans first, the others
// get its text. Kept in a file they also make a second start immediate, and its results the same bits.
#pragma once

#include <functional>
#include <map>
#include <span>
#include <string>

namespace lockstep {

enum class ChooseBy {
  name,  // the candidate of a given name where there is one, else the first: the most accurate, there for all
  time,  // the fastest on this machine, now
};

class KernelChoices {
 public:
  struct Choice {
    std::string candidate;
    double microseconds = 0;  // of one call; 0: not timed
  };

  explicit KernelChoices(ChooseBy by = ChooseBy::name, std::string name = "")
      : by_(by), name_(std::move(name)) {}

  // The index of the candidate to use. A kept choice wins if it is still among the candidates; otherwise
  // microseconds(i) is called for each (when choosing by time and there is more than one), and the fastest is
  // kept. candidates must not be empty.
  std::size_t choose(const std::string& key, std::span<const std::string> candidates,
                     const std::function<double(std::size_t)>& microseconds);

  const std::map<std::string, Choice>& kept() const { return kept_; }
  void keep(const std::string& key, const Choice& choice) { kept_[key] = choice; }
  ChooseBy by() const { return by_; }

 private:
  ChooseBy by_;
  std::string name_;
  std::map<std::string, Choice> kept_;
};

}  // namespace lockstep
