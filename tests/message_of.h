// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "core/error.h"

namespace lockstep {

// The message of the E that work() throws; "" when it throws nothing.
template <typename E = Error, typename Work>
std::string message_of(Work&& work) {
  try {
    work();
  } catch (const E& error) {
    return error.what();
  }
  return "";
}

}  // namespace lockstep
