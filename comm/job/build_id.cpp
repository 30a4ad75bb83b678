// SPDX-License-Identifier: Apache-2.0
#include "comm/job/build_id.h"

namespace lockstep {

std::string build_id(const Environment& environment) {
  constexpr std::size_t kMost = 63;
  const char* told = environment("LOCKSTEP_BUILD_ID");
  return std::string(told != nullptr && *told != '\0' ? told : detail::kSourceHash).substr(0, kMost);
}

}  // namespace lockstep
