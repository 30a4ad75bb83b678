// SPDX-License-Identifier: Apache-2.0
//
// Splits a training set into a test part, where there are no test images, and a training part.
#pragma once

#include <cstdint>
#include <memory>

#include "data/dataset.h"

namespace lockstep {

// Returns true if a sample with this key belongs to the test part.
bool is_kept_to_test(std::uint64_t key, double test_share);

// The samples of a training set that are kept for testing (Split::test), about test_share of them, or the
// remaining ones (Split::train). The choice depends only on each sample's key (Dataset::key): adding samples
// does not move the existing ones. Throws ConfigError if the requested part is empty.
std::unique_ptr<Dataset> side_of(std::unique_ptr<Dataset> dataset, Split split, double test_share);

}  // namespace lockstep
