// SPDX-License-Identifier: Apache-2.0
//
// BatchRoom: whether a batch fits in the memory of a rank.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace lockstep {

struct BatchRoom {
  bool fits = true;
  std::size_t needed = 0, available = 0;  // bytes, of a rank
  // Settings that would make it fit; empty if it fits or none is known.
  std::vector<std::string> remedies = {};
};

}  // namespace lockstep
