// SPDX-License-Identifier: Apache-2.0
//
// Some samples of a dataset: to test with where there are no test images, and the others to train with.
#pragma once

#include <cstdint>
#include <memory>

#include "data/dataset.h"

namespace lockstep {

// Whether a sample with this key is tested with.
bool is_kept_to_test(std::uint64_t key, double test_share);

// Of a training set the samples that are kept for testing (Split::test), about such a share of them, or all
// others (Split::train). Which they are depends on each sample's key alone (Dataset::key): more images leave
// those that are there on their side. Throws ConfigError where one side would have none.
std::unique_ptr<Dataset> side_of(std::unique_ptr<Dataset> dataset, Split split, double test_share);

}  // namespace lockstep
