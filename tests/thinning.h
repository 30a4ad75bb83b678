// SPDX-License-Identifier: Apache-2.0
//
// Tests of many shapes try a few of them under a sanitizer, which makes each ten times as slow: what is wrong
// with memory is wrong at most shapes. What is computed is checked at every shape by the optimised build.
// Tests of properties, which have no end of cases, try more of them where LOCKSTEP_LARGE_TESTS is set.
#pragma once

#include <cstdlib>

namespace lockstep {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
// A prime: it seldom keeps step with the numbers of choices that make up the shapes.
inline constexpr int kOneOf = 7;
#else
inline constexpr int kOneOf = 1;
#endif

inline bool in_large_form() { return std::getenv("LOCKSTEP_LARGE_TESTS") != nullptr; }

// Tells of each case, in order, whether it is tried: every kOneOf-th.
class Thinning {
 public:
  bool takes() { return cases_++ % kOneOf == 0; }

 private:
  int cases_ = 0;
};

}  // namespace lockstep
