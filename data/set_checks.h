// SPDX-License-Identifier: Apache-2.0
//
// Warnings about datasets whose samples can all be read. They run before the first step.
#pragma once

#include <cstdint>
#include <string>

#include "data/dataset.h"

namespace lockstep {

// The number of test samples that are also training samples, by Dataset::content_hash().
struct SharedSamples {
  std::int64_t looked_at = 0;  // test samples
  std::int64_t shared = 0;
  std::int64_t repeated = 0;  // among as many training samples, those that equal an earlier one
  std::int64_t first_test = -1, first_train = -1;

  // More than what equal samples of training let expect, as rows of few whole numbers have them.
  bool are_remarkable() const;
};
// All samples are looked at, but of sets that are decoded when they are read at most 4096 of each, evenly
// apart. Samples that cannot be read do not count.
SharedSamples shared_samples(const Dataset& train, const Dataset& test);

// Warns of one class only, of classes without training samples or with a single one, and of test samples that
// are training samples, too. path: data.path, for the messages.
void tell_of_sets(const Dataset& train, const Dataset& test, const std::string& path);

}  // namespace lockstep
