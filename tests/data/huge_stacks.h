// SPDX-License-Identifier: Apache-2.0
//
// HugeStacks: simulates a system that starts no more threads.
#pragma once

#include <cstddef>

#include <gtest/gtest.h>
#include <pthread.h>

namespace lockstep {

// While it exists, no thread can be started, because stacks have more bytes than an address space.
class HugeStacks {
 public:
  HugeStacks() {
    pthread_attr_t huge;
    EXPECT_EQ(pthread_getattr_default_np(&usual_), 0);
    EXPECT_EQ(pthread_getattr_default_np(&huge), 0);
    EXPECT_EQ(pthread_attr_setstacksize(&huge, std::size_t{1} << 60), 0);
    EXPECT_EQ(pthread_setattr_default_np(&huge), 0);
    pthread_attr_destroy(&huge);
  }
  ~HugeStacks() {
    pthread_setattr_default_np(&usual_);
    pthread_attr_destroy(&usual_);
  }
  HugeStacks(const HugeStacks&) = delete;
  HugeStacks& operator=(const HugeStacks&) = delete;

 private:
  pthread_attr_t usual_;
};

}  // namespace lockstep
