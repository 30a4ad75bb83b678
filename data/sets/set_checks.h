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
  std::int64_t repeated = 0;  // training samples that equal an earlier one, scaled to looked_at samples
  std::int64_t first_test = -1, first_train = -1;
  bool few_values = false;  // rows of a table, or images of at most 64 bytes: often equal by chance

  // Returns true if more than 0.1 % of the test samples are shared; with few_values, also more than twice as
  // many as repeat within training.
  bool are_remarkable() const;
};
// Compares all samples, but at most 4096, evenly spaced, of a dataset that decodes or has more than 1 GiB of
// pixels, because only one rank reads them. Samples that cannot be read do not count.
SharedSamples shared_samples(const Dataset& train, const Dataset& test);

// Warns of a single class, of classes with no or one training sample, of images whose pixels are only 0 and
// 1, of masks with one class beside ignored pixels, and of test samples that are also training samples. path:
// data.path, for the messages.
void tell_of_sets(const Dataset& train, const Dataset& test, const std::string& path);

}  // namespace lockstep
