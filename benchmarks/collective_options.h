// SPDX-License-Identifier: Apache-2.0
//
// Options of the collective benchmarks: the flags of nccl-tests, plus the collectives and ways.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "comm/collective.h"
#include "core/tensor/dtype.h"

namespace CLI {
class App;
}

namespace lockstep {

struct CollectiveOptions {
  std::size_t min_bytes = std::size_t{4} << 10;
  std::size_t max_bytes = std::size_t{64} << 20;
  std::size_t step_factor = 4;
  std::optional<std::size_t> step_bytes;  // replaces step_factor
  int iters = 20;
  int warmup_iters = 5;
  bool check = true;
  DType dtype = DType::f32;
  ReduceOp op = ReduceOp::sum;
  std::vector<CollectiveKind> collectives = {CollectiveKind::all_reduce};
  std::vector<std::string> ways;  // empty: all available ones but tcp

  void add_flags(CLI::App& app);
  // Sizes from min_bytes to at most max_bytes. Throws UsageError for an empty or endless range.
  std::vector<std::size_t> sizes() const;
};

}  // namespace lockstep
