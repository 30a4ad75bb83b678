// SPDX-License-Identifier: Apache-2.0
#include "kernels/kernel_choices.h"

#include <algorithm>

#include "core/error.h"

namespace lockstep {

std::size_t KernelChoices::choose(const std::string& key, std::span<const std::string> candidates,
                                  const std::function<double(std::size_t)>& microseconds) {
  CHECK(!candidates.empty(), "no candidate for {}", key);
  if (by_ == ChooseBy::name) {
    const auto named = std::ranges::find(candidates, name_);
    return named == candidates.end() ? 0 : static_cast<std::size_t>(named - candidates.begin());
  }
  if (const auto kept = kept_.find(key); kept != kept_.end()) {
    const auto found = std::ranges::find(candidates, kept->second.candidate);
    if (found != candidates.end()) return static_cast<std::size_t>(found - candidates.begin());
  }
  std::size_t best = 0;
  Choice choice{.candidate = candidates[0]};
  for (std::size_t i = 0; candidates.size() > 1 && i < candidates.size(); ++i) {
    const double time = microseconds(i);
    if (i > 0 && time >= choice.microseconds) continue;
    best = i;
    choice = {.candidate = candidates[i], .microseconds = time};
  }
  kept_[key] = choice;
  return best;
}

}  // namespace lockstep
