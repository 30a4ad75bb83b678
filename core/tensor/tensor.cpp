// SPDX-License-Identifier: Apache-2.0
#include "core/tensor/tensor.h"

namespace lockstep {

std::string to_string(const Shape& shape) {
  std::string text = "[";
  for (int i = 0; i < shape.rank(); ++i) text += (i == 0 ? "" : ", ") + std::to_string(shape[i]);
  return text + "]";
}

}  // namespace lockstep
