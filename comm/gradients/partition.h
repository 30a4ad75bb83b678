// SPDX-License-Identifier: Apache-2.0
//
// Partition: divides the elements of a collective among its ranks: equal consecutive parts, the last ones
// shorter or empty. The division never changes a result.
#pragma once

#include <algorithm>
#include <cstddef>

#include "core/tensor/buffer.h"

namespace lockstep {

struct Partition {
  std::size_t count = 0;  // all elements
  std::size_t part = 0;   // elements of every full part

  // Parts begin at whole cache lines of the data, so that two ranks never write the same one.
  static Partition even(std::size_t count, int parts, std::size_t element_bytes) {
    const auto divisor = static_cast<std::size_t>(parts);
    return {count, align_up((count + divisor - 1) / divisor, kAlignment / element_bytes)};
  }

  std::size_t begin(int index) const { return std::min(count, static_cast<std::size_t>(index) * part); }
  std::size_t size(int index) const { return begin(index + 1) - begin(index); }
};

}  // namespace lockstep
