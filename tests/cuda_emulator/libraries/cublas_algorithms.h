// SPDX-License-Identifier: Apache-2.0
//
// The algorithms that the emulated cuBLASLt has for a problem, and how one of them computes it. They differ
// in the order in which they sum, hence in last bits; those that split sums keep the parts in their
// workspace.
#pragma once

#include <optional>
#include <vector>

#include "tests/cuda_emulator/libraries/cublas_problem.h"

namespace lockstep::emulator::cublas {

// Promised of every pointer, in bytes.
struct Alignments {
  std::uint32_t a, b, c, d;
};

struct Algorithm {
  std::int32_t id;
  std::uint32_t tile, stages;
  std::int32_t split;
  std::uint32_t reduction;
  std::uint16_t cluster;
  std::int64_t block;  // of a sum, see multiply.h
  std::uint32_t operand_alignment;

  std::size_t workspace_bytes(const Problem& problem) const;
};
// Best guess first.
const std::vector<Algorithm>& algorithms();

// An algorithm as a caller keeps it: with the problem it was proposed for.
struct Proposal {
  Algorithm algorithm;
  std::uint64_t problem;  // its fingerprint
  Alignments alignments;

  cublasLtMatmulAlgo_t pack() const;
  // Empty for what no heuristic has filled in.
  static std::optional<Proposal> unpack(const cublasLtMatmulAlgo_t& packed);
};

struct Call {
  Problem problem;
  Algorithm algorithm;
  float alpha, beta;
  const void *a = nullptr, *b = nullptr, *c = nullptr;
  void *d = nullptr, *bias = nullptr;
  void* workspace = nullptr;
  // Computes, in a stream's order.
  void run() const;
};

}  // namespace lockstep::emulator::cublas
