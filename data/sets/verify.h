// SPDX-License-Identifier: Apache-2.0
//
// Checks before the first step that every sample of a dataset can be read, so that a run of hours does not
// fail at a late sample.
#pragma once

#include <functional>
#include <span>
#include <string_view>

#include "data/batch_loader.h"
#include "data/dataset.h"

namespace lockstep {

enum class Verify {
  headers,  // Dataset::probe of every sample
  all,      // Dataset::read of every sample
  nothing,
};
inline constexpr std::string_view kVerifyWords[] = {"headers", "all", "none"};
constexpr std::span<const std::string_view> words_of(Verify) { return kVerifyWords; }

struct VerifyOptions {
  Verify extent = Verify::headers;
  Shard shard;  // the share of the samples that this rank verifies
  int threads = 1;
  // Called by the calling thread at the start and after each sample that it verifies, with the number of this
  // shard's samples begun and in all. Null: no reports.
  std::function<void(std::int64_t done, std::int64_t all)> told_progress = {};
};

// Reads this shard's samples with several threads. If some cannot be read, throws an error that names the
// first five in the dataset's order, each with its reason, and their number: IoError if every failure was an
// IoError, else DataError. Damaged samples that can be decoded are only counted, in a warning.
void verify(const Dataset& dataset, const VerifyOptions& options);

}  // namespace lockstep
