// SPDX-License-Identifier: Apache-2.0
//
// Errors that all ranks throw alike.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "core/error.h"
#include "tests/comm/thread_ranks.h"

namespace lockstep {

// What every rank threw, which must be the same agreed error with this exit code on each.
inline std::string agreed_message(int ranks, int exit_code, const std::function<void(Communicator&)>& work) {
  const std::vector<std::string> messages = try_thread_ranks(ranks, [&](Communicator& communicator) {
    try {
      work(communicator);
    } catch (const Error& error) {
      EXPECT_TRUE(error.agreed());
      EXPECT_EQ(error.exit_code(), exit_code);
      throw;
    }
  });
  for (const std::string& message : messages) EXPECT_EQ(message, messages.front());
  return messages.front();
}

}  // namespace lockstep
