// SPDX-License-Identifier: Apache-2.0
//
// race: finds the fastest of several equivalent candidates in few calls. Candidates take turns, so that a
// temporary disturbance of the machine affects all alike. Each is rated by its shortest call, and one that is
// clearly slower is not called again. Most losers are dropped after one or two calls.
#pragma once

#include <cstddef>
#include <functional>

namespace lockstep {

struct RaceResult {
  std::size_t winner = 0;
  double microseconds = 0;  // its shortest call
};

// call(i) runs candidate i once and returns its microseconds, or infinity if it cannot run. Requires at least
// one candidate that can run.
RaceResult race(std::size_t candidates, const std::function<double(std::size_t)>& call);

}  // namespace lockstep
