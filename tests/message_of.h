// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "core/error.h"

namespace lockstep {

// The message of the E that work() throws; "" if it throws nothing.
template <typename E = Error, typename Work>
std::string message_of(Work&& work) {
  try {
    work();
  } catch (const E& error) {
    return error.what();
  }
  return "";
}

// Expects that the message contains all parts.
inline void expect_parts(const std::string& message, const std::vector<std::string>& parts) {
  for (const std::string& part : parts)
    EXPECT_NE(message.find(part), std::string::npos) << part << ": " << message;
}

}  // namespace lockstep
