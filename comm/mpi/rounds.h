// SPDX-License-Identifier: Apache-2.0
//
// How the data of a node's ranks goes in rounds: every rank of it has as much in each, and the ranks that
// drive parts take stretches of several ranks' data.
#pragma once

#include <algorithm>
#include <cstddef>

namespace lockstep {

inline std::size_t rounds_of(std::size_t count, std::size_t most) { return (count + most - 1) / most; }

// Of a node's data, which is `each` elements of every rank of it, one rank after another, the stretch from
// element `begin` to `end`: body(local rank, its first element, elements, how many came before) for each rank
// that has some of it.
template <typename Body>
void for_each_stretch(std::size_t begin, std::size_t end, std::size_t each, Body body) {
  for (std::size_t at = begin; at < end;) {
    const std::size_t first = at % each;
    const std::size_t elements = std::min(each - first, end - at);
    body(static_cast<int>(at / each), first, elements, at - begin);
    at += elements;
  }
}

}  // namespace lockstep
