// SPDX-License-Identifier: Apache-2.0
#include "kernels/kernel_choices.h"

#include <algorithm>
#include <ctime>

#include "core/error.h"

namespace lockstep {
namespace {

// The index of the candidate of this name; nothing if there is none or it is not usable.
std::optional<std::size_t> usable_index(const std::string& name,
                                        const KernelChoices::Candidates& candidates) {
  const auto found = std::ranges::find(candidates.names, name);
  if (found == candidates.names.end()) return std::nullopt;
  const auto index = static_cast<std::size_t>(found - candidates.names.begin());
  if (candidates.usable && !candidates.usable(index)) return std::nullopt;
  return index;
}

std::optional<std::size_t> first_usable(const KernelChoices::Candidates& candidates) {
  for (std::size_t i = 0; i < candidates.names.size(); ++i) {
    if (!candidates.usable || candidates.usable(i)) return i;
  }
  return std::nullopt;
}

}  // namespace

KernelChoices KernelChoices::without_contests(const KernelChoices& choices) {
  KernelChoices same(ChooseBy::name, choices.name_);
  same.kept_ = choices.kept_;
  same.plans_only_ = true;
  return same;
}

std::optional<std::size_t> KernelChoices::choose(const std::string& key, const Candidates& candidates) {
  CHECK(!candidates.names.empty(), "no candidate kernel for {}", key);
  if (const auto kept = kept_.find(key); kept != kept_.end()) {
    if (const auto index = usable_index(kept->second.candidate, candidates)) return index;
  }
  if (by_ == ChooseBy::name) {
    if (candidates.contest) unknown_.insert(key);
    const auto named = usable_index(name_, candidates);
    return named ? named : first_usable(candidates);
  }
  if (!candidates.contest) {
    const auto first = first_usable(candidates);
    if (first) kept_[key] = KernelChoice{.candidate = candidates.names[*first]};
    return first;
  }
  const KernelChoice& choice = kept_[key] = hold_contest(key, candidates);
  const auto index = usable_index(choice.candidate, candidates);
  CHECK(index, "the contest for {} was won by {}, which is not a usable candidate", key, choice.candidate);
  return index;
}

KernelChoice KernelChoices::hold_contest(const std::string& key, const Candidates& candidates) {
  if (observer_) observer_(progress_);
  ++progress_.held;
  KernelChoice choice = candidates.contest();
  if (choice.microseconds > 0) choice.chosen_at = std::time(nullptr);
  const auto earlier = in_doubt_.find(key);
  if (earlier == in_doubt_.end()) return choice;
  const int contests = earlier->second.contests + 1;
  if (earlier->second.waited < choice.waited && usable_index(earlier->second.candidate, candidates))
    choice = earlier->second;
  choice.contests = contests;
  return choice;
}

}  // namespace lockstep
