// SPDX-License-Identifier: Apache-2.0
//
// Divides the data of a node's ranks into rounds: every rank has as many elements in each, and a rank that
// drives a part takes stretches of several ranks' data.
#pragma once

#include <algorithm>
#include <cstddef>

namespace lockstep {

inline std::size_t rounds_of(std::size_t count, std::size_t most) { return (count + most - 1) / most; }

// A node's data is `each` elements of every rank, one rank after another. For the stretch from element
// `begin` to `end` calls body(local rank, its first element, elements, elements before) for each rank that
// has some of it.
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
