// SPDX-License-Identifier: Apache-2.0
//
// SampleId: identifies the sample at one place of a batch. A sample's random numbers (dropout, augmentation)
// are keyed by it, so they do not depend on rank, thread or place.
#pragma once

#include <cstdint>

namespace lockstep {

struct SampleId {
  std::int32_t epoch = 0;
  std::int32_t index = 0;  // in the dataset

  bool operator==(const SampleId&) const = default;
};

}  // namespace lockstep
