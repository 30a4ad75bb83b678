// SPDX-License-Identifier: Apache-2.0
#include "tests/cuda_emulator/libraries/cublas_problem.h"

#include <algorithm>
#include <array>

namespace lockstep::emulator::cublas {
namespace {

Element element_of(std::uint32_t type) {
  switch (type) {
    case CUDA_R_32F:
      return Element::f32;
    case CUDA_R_16F:
      return Element::f16;
    case CUDA_R_16BF:
      return Element::bf16;
    default:
      throw Refusal(CUBLAS_STATUS_NOT_SUPPORTED, "not emulated: matrices other than fp32, fp16 and bf16");
  }
}

Operand operand_of(cublasLtMatrixLayout_t layout) {
  require(layout != nullptr, "a matrix layout is null");
  require(layout->order == CUBLASLT_ORDER_COL, "not emulated: an order other than column-major",
          CUBLAS_STATUS_NOT_SUPPORTED);
  const Operand operand{.type = element_of(layout->type),
                        .rows = static_cast<std::int64_t>(layout->rows),
                        .columns = static_cast<std::int64_t>(layout->columns),
                        .leading_dimension = layout->leading_dimension,
                        .batch_stride = layout->batch_stride};
  require(operand.rows > 0 && operand.columns > 0, "a matrix has no rows or no columns");
  require(operand.leading_dimension >= operand.rows, "a leading dimension is less than the matrix has rows");
  require(layout->batch_count > 0, "the batch count is not positive");
  require(operand.batch_stride >= 0, "a batch stride is negative");
  return operand;
}

bool transposes(std::int32_t operation) {
  require(operation == CUBLAS_OP_N || operation == CUBLAS_OP_T || operation == CUBLAS_OP_C,
          "unknown transpose operation");
  return operation != CUBLAS_OP_N;
}

void check_types(const cublasLtMatmulDescOpaque_t& descriptor, const Problem& p) {
  const bool tf32 = descriptor.compute_type == CUBLAS_COMPUTE_32F_FAST_TF32;
  require(tf32 || descriptor.compute_type == CUBLAS_COMPUTE_32F ||
              descriptor.compute_type == CUBLAS_COMPUTE_32F_PEDANTIC,
          "not emulated: a compute type other than 32F, 32F_PEDANTIC and 32F_FAST_TF32",
          CUBLAS_STATUS_NOT_SUPPORTED);
  require(descriptor.scale_type == CUDA_R_32F, "fp32 computation needs fp32 alpha and beta",
          CUBLAS_STATUS_NOT_SUPPORTED);
  require(p.a.type == p.b.type && p.c.type == p.d.type, "A and B, or C and D, differ in type",
          CUBLAS_STATUS_NOT_SUPPORTED);
  require(p.d.type == p.a.type || p.d.type == Element::f32, "D must have the operands' type or fp32",
          CUBLAS_STATUS_NOT_SUPPORTED);
  require(!tf32 || p.a.type == Element::f32, "tf32 needs fp32 operands", CUBLAS_STATUS_NOT_SUPPORTED);
  require(
      descriptor.bias_type == -1 || element_of(static_cast<std::uint32_t>(descriptor.bias_type)) == p.d.type,
      "not emulated: a bias that is not of D's type", CUBLAS_STATUS_NOT_SUPPORTED);
}

void check_modes(const cublasLtMatmulDescOpaque_t& descriptor) {
  constexpr std::array kEpilogues = {CUBLASLT_EPILOGUE_DEFAULT, CUBLASLT_EPILOGUE_RELU,
                                     CUBLASLT_EPILOGUE_BIAS,    CUBLASLT_EPILOGUE_RELU_BIAS,
                                     CUBLASLT_EPILOGUE_GELU,    CUBLASLT_EPILOGUE_GELU_BIAS,
                                     CUBLASLT_EPILOGUE_BGRADA,  CUBLASLT_EPILOGUE_BGRADB};
  require(
      std::ranges::any_of(kEpilogues, [&](auto one) { return std::uint32_t{one} == descriptor.epilogue; }),
      "not emulated: this epilogue", CUBLAS_STATUS_NOT_SUPPORTED);
  require(descriptor.pointer_mode == CUBLASLT_POINTER_MODE_HOST,
          "not emulated: alpha and beta in device memory", CUBLAS_STATUS_NOT_SUPPORTED);
  require(descriptor.transpose_c == CUBLAS_OP_N, "C cannot be transposed", CUBLAS_STATUS_NOT_SUPPORTED);
}

}  // namespace

std::uint64_t Problem::fingerprint() const {
  std::uint64_t hash = 0xcbf29ce484222325u;
  const auto take = [&](auto value) {
    hash = (hash ^ static_cast<std::uint64_t>(value)) * 0x100000001b3u + (hash >> 47);
  };
  for (const std::int64_t size : {m, n, k, batch, bias_batch_stride}) take(size);
  take(transpose_a), take(transpose_b), take(tf32), take(epilogue);
  for (const Operand& operand : {a, b, c, d}) {
    take(operand.type), take(operand.rows), take(operand.columns);
    take(operand.leading_dimension), take(operand.batch_stride);
  }
  return hash;
}

Problem problem_of(cublasLtMatmulDesc_t descriptor, cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                   cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d) {
  require(descriptor != nullptr, "the matmul descriptor is null");
  Problem p{.transpose_a = transposes(descriptor->transpose_a),
            .transpose_b = transposes(descriptor->transpose_b),
            .tf32 = descriptor->compute_type == CUBLAS_COMPUTE_32F_FAST_TF32,
            .epilogue = descriptor->epilogue,
            .a = operand_of(a),
            .b = operand_of(b),
            .c = operand_of(c),
            .d = operand_of(d),
            .bias_batch_stride = descriptor->bias_batch_stride};
  check_modes(*descriptor);
  check_types(*descriptor, p);
  p.m = p.transpose_a ? p.a.columns : p.a.rows;
  p.k = p.transpose_a ? p.a.rows : p.a.columns;
  p.n = p.transpose_b ? p.b.rows : p.b.columns;
  p.batch = d->batch_count;
  require((p.transpose_b ? p.b.columns : p.b.rows) == p.k,
          "op(A)'s columns and op(B)'s rows differ in number");
  require(p.d.rows == p.m && p.d.columns == p.n, "D and op(A) * op(B) differ in size");
  require(p.c.rows == p.m && p.c.columns == p.n, "C and D differ in size");
  for (const cublasLtMatrixLayout_t layout : {a, b, c}) {
    require(layout->batch_count == p.batch, "the matrices' batch counts differ");
  }
  require(p.batch == 1 || p.d.batch_stride >= p.d.extent(), "the matrices in D's batch overlap");
  return p;
}

}  // namespace lockstep::emulator::cublas
