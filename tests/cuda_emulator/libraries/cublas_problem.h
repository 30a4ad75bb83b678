// SPDX-License-Identifier: Apache-2.0
//
// The contents of the emulated cuBLASLt's descriptors, and the problem that they describe together:
// D = epilogue(alpha * op(A) * op(B) + beta * C), column-major, for each matrix of a batch. Every Problem has
// been checked: its dimensions agree and its types, epilogue and modes are emulated.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>

#include <cublasLt.h>

#include "tests/cuda_emulator/libraries/elements.h"

// The members have the sizes that the API documents for the attributes.
struct cublasLtMatrixLayoutOpaque_t {
  std::uint32_t type;
  std::uint64_t rows;
  std::uint64_t columns;
  std::int64_t leading_dimension;
  std::int32_t order = CUBLASLT_ORDER_COL;
  std::int32_t batch_count = 1;
  std::int64_t batch_stride = 0;  // in elements
};
struct cublasLtMatmulDescOpaque_t {
  std::int32_t compute_type;
  std::int32_t scale_type;
  std::int32_t pointer_mode = CUBLASLT_POINTER_MODE_HOST;
  std::int32_t transpose_a = CUBLAS_OP_N;
  std::int32_t transpose_b = CUBLAS_OP_N;
  std::int32_t transpose_c = CUBLAS_OP_N;
  std::uint32_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
  void* bias = nullptr;
  std::int64_t bias_batch_stride = 0;
  std::int32_t bias_type = -1;  // the type of D
};
struct cublasLtMatmulPreferenceOpaque_t {
  std::uint32_t search_mode = 0;
  std::uint64_t most_workspace_bytes = 0;
  std::uint32_t reduction_schemes = CUBLASLT_REDUCTION_SCHEME_MASK;
  std::uint32_t alignment_a = 256, alignment_b = 256, alignment_c = 256, alignment_d = 256;
};

namespace lockstep::emulator::cublas {

struct Refusal : std::runtime_error {
  Refusal(cublasStatus_t reason, const std::string& text) : std::runtime_error(text), status(reason) {}
  cublasStatus_t status;
};
inline void require(bool holds, const char* text, cublasStatus_t status = CUBLAS_STATUS_INVALID_VALUE) {
  if (!holds) throw Refusal(status, text);
}

// A matrix operand's layout in memory.
struct Operand {
  Element type;
  std::int64_t rows, columns, leading_dimension, batch_stride;

  std::int64_t extent() const { return (columns - 1) * leading_dimension + rows; }
  std::size_t bytes(std::int64_t batch) const {
    return static_cast<std::size_t>((batch - 1) * batch_stride + extent()) * size_of(type);
  }
  bool operator==(const Operand&) const = default;
};

struct Problem {
  std::int64_t m = 0, n = 0, k = 0, batch = 1;  // D is m x n
  bool transpose_a, transpose_b, tf32;
  std::uint32_t epilogue;
  Operand a, b, c, d;
  std::int64_t bias_batch_stride;

  bool reads_bias() const { return (epilogue & CUBLASLT_EPILOGUE_BIAS) != 0; }
  bool writes_bias() const { return (epilogue & (CUBLASLT_EPILOGUE_BGRADA | CUBLASLT_EPILOGUE_BGRADB)) != 0; }
  std::int64_t bias_elements() const { return epilogue == CUBLASLT_EPILOGUE_BGRADB ? n : m; }
  // Equal for equal problems.
  std::uint64_t fingerprint() const;
};
// Throws Refusal if the descriptors do not describe an emulated problem.
Problem problem_of(cublasLtMatmulDesc_t descriptor, cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                   cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d);

}  // namespace lockstep::emulator::cublas
