// SPDX-License-Identifier: Apache-2.0
//
// SampleId: which sample a place of a batch holds. Random numbers of a sample (dropout, augmentation) are
// keyed by it, so that they depend on no rank, thread or place.
#pragma once

#include <cstdint>

namespace lockstep {

struct SampleId {
  std::int32_t epoch = 0;
  std::int32_t index = 0;  // in the dataset

  bool operator==(const SampleId&) const = default;
};

}  // namespace lockstep
