// SPDX-License-Identifier: Apache-2.0
//
// What a benchmark of collectives is told: the flags of nccl-tests, and which collectives and ways.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include "comm/collective.h"
#include "core/dtype.h"

namespace lockstep {

struct CollectiveOptions {
  std::size_t min_bytes = std::size_t{4} << 10;
  std::size_t max_bytes = std::size_t{64} << 20;
  std::size_t step_factor = 4;
  std::optional<std::size_t> step_bytes;  // in place of the factor
  int iters = 20;
  int warmup_iters = 5;
  bool check = true;
  DType dtype = DType::f32;
  ReduceOp op = ReduceOp::sum;
  std::vector<CollectiveKind> collectives = {CollectiveKind::all_reduce};
  std::vector<std::string> ways;  // empty: all there are

  void add_flags(CLI::App& app);
  // From min_bytes to at most max_bytes. Throws UsageError where there is none.
  std::vector<std::size_t> sizes() const;
};

}  // namespace lockstep
