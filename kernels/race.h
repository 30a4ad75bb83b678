// SPDX-License-Identifier: Apache-2.0
//
// race: finds the fastest of several equivalent candidates in few calls. Candidates take turns, so that a
// temporary disturbance of the machine affects all alike. Each is rated by its shortest call, and one that is
// clearly slower is not called again. Most losers are dropped after one or two calls. The first candidate is
// the default and wins ties: another one must be more than 2 % faster.
#pragma once

#include <cstddef>
#include <functional>

namespace lockstep {

struct RaceResult {
  std::size_t winner = 0;
  double microseconds = 0;        // its shortest call
  double first_microseconds = 0;  // the first candidate's shortest call; 0 if it cannot run
};

// call(i) runs candidate i once and returns its microseconds, or infinity if it cannot run. Requires at least
// one candidate that can run.
RaceResult race(std::size_t candidates, const std::function<double(std::size_t)>& call);

}  // namespace lockstep
