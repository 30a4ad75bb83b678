// SPDX-License-Identifier: Apache-2.0
//
// Test helper for agreed errors: errors that every rank throws with the same message.
#pragma once

#include <exception>
#include <functional>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "core/error.h"
#include "tests/comm/thread_ranks.h"

namespace lockstep {

// Expects every rank to throw the same agreed error with this exit code. Returns its message.
inline std::string agreed_message(int ranks, int exit_code, const std::function<void(Communicator&)>& work) {
  const std::vector<std::string> messages = try_thread_ranks(ranks, [&](Communicator& communicator) {
    try {
      work(communicator);
    } catch (const Error& error) {
      EXPECT_TRUE(error.agreed());
      EXPECT_EQ(error.exit_code(), exit_code);
      throw;
    } catch (const std::exception& other) {
      ADD_FAILURE() << "not an agreed error: " << other.what();
      throw;
    }
  });
  for (const std::string& message : messages) EXPECT_EQ(message, messages.front());
  return messages.front();
}

}  // namespace lockstep
