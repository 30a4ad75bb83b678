// SPDX-License-Identifier: Apache-2.0
//
// race: which of several ways to do the same is the fastest, in as few calls as it takes. All take turns, so
// that what disturbs the machine for a while disturbs them alike; each is known by its shortest call; and one
// that is clearly behind is not called again. Most that lose lose after one or two calls.
#pragma once

#include <cstddef>
#include <functional>

namespace lockstep {

struct RaceResult {
  std::size_t winner = 0;
  double microseconds = 0;  // its shortest call
};

// call(i) runs candidate i once and returns its microseconds, or infinity for one that cannot run. At least
// one of them, of at least one, must be able to.
RaceResult race(std::size_t candidates, const std::function<double(std::size_t)>& call);

}  // namespace lockstep
