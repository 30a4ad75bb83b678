// SPDX-License-Identifier: Apache-2.0
//
// The algorithms of the emulated cuBLASLt for a problem, and the computation of one of them. They sum in
// different orders, so their results differ in the last bits. Algorithms that split sums store the partial
// sums in their workspace.
#pragma once

#include <optional>
#include <vector>

#include "tests/cuda_emulator/libraries/cublas_problem.h"

namespace lockstep::emulator::cublas {

// The guaranteed alignment of each pointer, in bytes.
struct Alignments {
  std::uint32_t a, b, c, d;
};

struct Algorithm {
  std::int32_t id;
  std::uint32_t tile, stages;
  std::int32_t split;
  std::uint32_t reduction;
  std::uint16_t cluster;
  std::int64_t block;  // terms per block of a sum, see multiply.h
  std::uint32_t operand_alignment;

  std::size_t workspace_bytes(const Problem& problem) const;
};
// The algorithm that is expected to be fastest comes first.
const std::vector<Algorithm>& algorithms();

// An algorithm as a caller stores it: together with the problem it was proposed for.
struct Proposal {
  Algorithm algorithm;
  std::uint64_t problem;  // its fingerprint
  Alignments alignments;

  cublasLtMatmulAlgo_t pack() const;
  // Empty if the structure was not filled in by a heuristic.
  static std::optional<Proposal> unpack(const cublasLtMatmulAlgo_t& packed);
};

struct Call {
  Problem problem;
  Algorithm algorithm;
  float alpha, beta;
  const void *a = nullptr, *b = nullptr, *c = nullptr;
  void *d = nullptr, *bias = nullptr;
  void* workspace = nullptr;
  // Does the computation; called in stream order.
  void run() const;
};

}  // namespace lockstep::emulator::cublas
