// SPDX-License-Identifier: Apache-2.0
//
// How many cases a test tries. Under a sanitizer, where each case takes ten times as long, tests of many
// shapes try every seventh: wrong memory accesses show at most shapes. The optimised build checks the results
// at all shapes. LOCKSTEP_LARGE_TESTS=1 makes property tests try more random cases.
#pragma once

#include <cstdlib>
#include <initializer_list>
#include <vector>

namespace lockstep {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
// A prime, so that it rarely divides the number of values of a shape parameter.
inline constexpr int kOneOf = 7;
#else
inline constexpr int kOneOf = 1;
#endif

inline bool in_large_form() { return std::getenv("LOCKSTEP_LARGE_TESTS") != nullptr; }

// Selects every kOneOf-th case, beginning with the first. takes() is called once per case, in order.
class Thinning {
 public:
  bool takes() { return cases_++ % kOneOf == 0; }
  // The cases for which takes() returns true. The first of a list should be the one that shows the most
  // errors.
  template <typename Case>
  std::vector<Case> taken(std::initializer_list<Case> cases) {
    std::vector<Case> selected;
    for (const Case& each : cases)
      if (takes()) selected.push_back(each);
    return selected;
  }

 private:
  int cases_ = 0;
};

}  // namespace lockstep
