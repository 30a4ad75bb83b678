// SPDX-License-Identifier: Apache-2.0
//
// Whether every sample of a dataset can be read, asked before the first step: a run of hours must not find
// out in its last one.
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
  Shard shard;  // of all who verify this dataset together; each takes its share of the samples
  int threads = 1;
  // Called now and then by the thread that calls this, with how many of its shard it has come to. Null:
  // nobody is told.
  std::function<void(std::int64_t done, std::int64_t all)> told_progress = {};
};

// Reads this shard's samples with several threads. When some cannot be read, throws an error that names the
// first of them in the dataset's order, each with its reason, and says how many there are: IoError when no
// data was read from any of them, else DataError. Damaged samples that can be decoded are only counted, in a
// warning.
void verify(const Dataset& dataset, const VerifyOptions& options);

}  // namespace lockstep
