// SPDX-License-Identifier: Apache-2.0
#include "tests/cuda_emulator/libraries/cublas_algorithms.h"

#include <cmath>
#include <cstring>

#include "tests/cuda_emulator/libraries/multiply.h"
#include "tests/cuda_emulator/libraries/operands.h"

namespace lockstep::emulator::cublas {
namespace {

constexpr std::uint32_t kMagic = 0x4c74616cu;

// The contents of a cublasLtMatmulAlgo_t.
struct Packed {
  std::uint32_t magic;
  std::uint32_t index;  // in algorithms()
  std::uint64_t problem;
  Alignments alignments;
};
static_assert(sizeof(Packed) <= sizeof(cublasLtMatmulAlgo_t));

// Reads a matrix into column-major memory without gaps.
Floats read(const void* data, const Operand& o, std::int64_t batch) {
  const auto* from = static_cast<const std::byte*>(data) +
                     static_cast<std::size_t>(batch * o.batch_stride) * size_of(o.type);
  if (o.leading_dimension == o.rows) return read_elements(from, o.type, o.rows * o.columns);
  Floats matrix;
  matrix.reserve(static_cast<std::size_t>(o.rows * o.columns));
  for (std::int64_t j = 0; j < o.columns; ++j) {
    const Floats column = read_elements(
        from + static_cast<std::size_t>(j * o.leading_dimension) * size_of(o.type), o.type, o.rows);
    matrix.insert(matrix.end(), column.begin(), column.end());
  }
  return matrix;
}

void write(const Floats& matrix, const Operand& o, std::int64_t batch, void* data) {
  auto* to =
      static_cast<std::byte*>(data) + static_cast<std::size_t>(batch * o.batch_stride) * size_of(o.type);
  if (o.leading_dimension == o.rows) return write_elements(matrix, o.type, to);
  for (std::int64_t j = 0; j < o.columns; ++j) {
    const auto column = matrix.begin() + j * o.rows;
    write_elements(Floats(column, column + o.rows), o.type,
                   to + static_cast<std::size_t>(j * o.leading_dimension) * size_of(o.type));
  }
}

// The transpose of op(A) as a view of column-major memory: k x m.
Matrix turned_a(const Problem& p, const Floats& a) {
  return p.transpose_a ? Matrix{a.data(), 1, p.k} : Matrix{a.data(), p.m, 1};
}
Matrix turned_b(const Problem& p, const Floats& b) {
  return p.transpose_b ? Matrix{b.data(), 1, p.n} : Matrix{b.data(), p.k, 1};
}

// Returns the product as a column-major m x n matrix.
Floats product(const Call& call, const Floats& a, const Floats& b) {
  const Problem& p = call.problem;
  const auto compute = [&](std::int64_t first, std::int64_t last, float* result) {
    multiply({.rows = p.n,
              .columns = p.m,
              .depth = last - first,
              .a = turned_b(p, b).at(0, first),
              .b = turned_a(p, a).at(first, 0),
              .result = result,
              .row_stride = p.m,
              .block = call.algorithm.block});
  };
  const std::int64_t split = call.algorithm.split;
  if (split > 1) {
    const Workspace workspace(call.workspace, call.algorithm.workspace_bytes(p));
    return sum_of_parts(workspace, split, p.m * p.n, [&](std::int64_t part, float* result) {
      compute(p.k * part / split, p.k * (part + 1) / split, result);
    });
  }
  Floats result(static_cast<std::size_t>(p.m * p.n));
  compute(0, p.k, result.data());
  return result;
}

void activate(std::uint32_t epilogue, Floats& matrix) {
  if ((epilogue & CUBLASLT_EPILOGUE_RELU) != 0) {
    for (float& value : matrix) value = value > 0 || std::isnan(value) ? value : 0;
  }
  if ((epilogue & CUBLASLT_EPILOGUE_GELU) != 0) {
    for (float& x : matrix) x = 0.5f * x * (1 + std::tanh(0.7978845608f * (x + 0.044715f * x * x * x)));
  }
}

void* bias_of(const Call& call, std::int64_t batch) {
  const Problem& p = call.problem;
  return static_cast<std::byte*>(call.bias) +
         static_cast<std::size_t>(batch * p.bias_batch_stride) * size_of(p.d.type);
}

void apply_epilogue(const Call& call, std::int64_t batch, Floats& matrix) {
  const Problem& p = call.problem;
  if (p.writes_bias() || p.epilogue == CUBLASLT_EPILOGUE_DEFAULT) return;
  if (p.reads_bias()) {
    const Floats bias = read_elements(bias_of(call, batch), p.d.type, p.m);
    for (std::int64_t j = 0; j < p.n; ++j) add(bias.data(), p.m, matrix.data() + j * p.m);
  }
  activate(p.epilogue, matrix);
}

// Writes the sums of an operand over k.
void write_bias_gradient(const Call& call, std::int64_t batch, const Floats& a, const Floats& b) {
  const Problem& p = call.problem;
  if (!p.writes_bias()) return;
  const bool of_a = p.epilogue == CUBLASLT_EPILOGUE_BGRADA;
  Floats sums(static_cast<std::size_t>(p.bias_elements()));
  for (std::int64_t i = 0; i < p.bias_elements(); ++i) {
    for (std::int64_t l = 0; l < p.k; ++l) {
      sums[static_cast<std::size_t>(i)] += *(of_a ? turned_a(p, a).at(l, i) : turned_b(p, b).at(i, l)).data;
    }
  }
  write_elements(sums, p.d.type, bias_of(call, batch));
}

}  // namespace

std::size_t Algorithm::workspace_bytes(const Problem& problem) const {
  return split == 1 ? 0 : static_cast<std::size_t>(split * problem.m * problem.n) * sizeof(float);
}

const std::vector<Algorithm>& algorithms() {
  constexpr auto kParts = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
  static const std::vector<Algorithm> all = {
      {.id = 66,
       .tile = 20,
       .stages = 15,
       .split = 1,
       .reduction = 0,
       .cluster = 2,
       .block = 256,
       .operand_alignment = 16},
      {.id = 24,
       .tile = 20,
       .stages = 9,
       .split = 4,
       .reduction = kParts,
       .cluster = 0,
       .block = 128,
       .operand_alignment = 8},
      {.id = 21,
       .tile = 15,
       .stages = 10,
       .split = 1,
       .reduction = 0,
       .cluster = 0,
       .block = 64,
       .operand_alignment = 2},
      {.id = 21,
       .tile = 11,
       .stages = 8,
       .split = 2,
       .reduction = kParts,
       .cluster = 0,
       .block = 32,
       .operand_alignment = 2},
  };
  return all;
}

cublasLtMatmulAlgo_t Proposal::pack() const {
  std::uint32_t index = 0;
  while (algorithms()[index].id != algorithm.id || algorithms()[index].tile != algorithm.tile) ++index;
  const Packed packed{.magic = kMagic, .index = index, .problem = problem, .alignments = alignments};
  cublasLtMatmulAlgo_t result{};
  std::memcpy(&result, &packed, sizeof(packed));
  return result;
}

std::optional<Proposal> Proposal::unpack(const cublasLtMatmulAlgo_t& from) {
  Packed packed;
  std::memcpy(&packed, &from, sizeof(packed));
  if (packed.magic != kMagic || packed.index >= algorithms().size()) return std::nullopt;
  return Proposal{
      .algorithm = algorithms()[packed.index], .problem = packed.problem, .alignments = packed.alignments};
}

void Call::run() const {
  const Problem& p = problem;
  for (std::int64_t i = 0; i < p.batch; ++i) {
    Floats of_a = read(a, p.a, i), of_b = read(b, p.b, i);
    if (p.tf32) {
      round_to_tf32(of_a.data(), static_cast<std::int64_t>(of_a.size()));
      round_to_tf32(of_b.data(), static_cast<std::int64_t>(of_b.size()));
    }
    Floats result = product(*this, of_a, of_b);
    const Floats before = beta == 0 ? Floats() : read(c, p.c, i);
    blend(alpha, beta, before.data(), static_cast<std::int64_t>(result.size()), result.data());
    apply_epilogue(*this, i, result);
    write(result, p.d, i, d);
    write_bias_gradient(*this, i, of_a, of_b);
  }
}

}  // namespace lockstep::emulator::cublas
