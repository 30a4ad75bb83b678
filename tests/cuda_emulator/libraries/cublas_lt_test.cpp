// SPDX-License-Identifier: Apache-2.0
//
// The emulated cuBLASLt: its results against sums in double precision, and the calls it refuses.
#include <cmath>
#include <memory>
#include <ostream>

#include <cublasLt.h>
#include <gtest/gtest.h>

#include "tests/cuda_emulator/libraries/device_array.h"

namespace lockstep {
namespace {

struct Case {
  const char* name;
  cudaDataType_t type;
  DType dtype;
  cublasComputeType_t compute = CUBLAS_COMPUTE_32F;
  double tolerance = 2e-6;
  bool wide_result = false;  // D in fp32
};
void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }
const Case kFloat{.name = "fp32", .type = CUDA_R_32F, .dtype = DType::f32};

// op(A) is m x k. Every matrix has a gap of two rows after each column, and every batch a gap of three
// elements.
struct Shape {
  std::int64_t m = 5, n = 7, k = 300;
  bool transpose_a = false, transpose_b = false;
  std::int64_t batch = 1;
};

struct Layout {
  Layout(cudaDataType_t type, std::int64_t of_rows, std::int64_t of_columns, std::int64_t of_batch)
      : rows(of_rows), columns(of_columns), batch(of_batch) {
    EXPECT_EQ(cublasLtMatrixLayoutCreate(&handle, type, static_cast<std::uint64_t>(rows),
                                         static_cast<std::uint64_t>(columns), ld()),
              CUBLAS_STATUS_SUCCESS);
    set(CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, static_cast<std::int32_t>(batch));
    set(CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, stride());
  }
  Layout(const Layout&) = delete;
  Layout& operator=(const Layout&) = delete;
  ~Layout() { cublasLtMatrixLayoutDestroy(handle); }

  template <typename T>
  void set(cublasLtMatrixLayoutAttribute_t attribute, T value) {
    EXPECT_EQ(cublasLtMatrixLayoutSetAttribute(handle, attribute, &value, sizeof(value)),
              CUBLAS_STATUS_SUCCESS);
  }
  std::int64_t ld() const { return rows + 2; }
  std::int64_t stride() const { return columns * ld() + 3; }
  std::int64_t elements() const { return (batch - 1) * stride() + (columns - 1) * ld() + rows; }
  std::size_t at(std::int64_t b, std::int64_t row, std::int64_t column) const {
    return static_cast<std::size_t>(b * stride() + column * ld() + row);
  }

  std::int64_t rows, columns, batch;
  cublasLtMatrixLayout_t handle = nullptr;
};

// One product with all its arguments. A test changes one of them and checks the returned status.
struct Matmul {
  explicit Matmul(const Case& of = kFloat, const Shape& of_shape = {})
      : c(of),
        s(of_shape),
        d_type(c.wide_result ? DType::f32 : c.dtype),
        a_layout(c.type, s.transpose_a ? s.k : s.m, s.transpose_a ? s.m : s.k, s.batch),
        b_layout(c.type, s.transpose_b ? s.n : s.k, s.transpose_b ? s.k : s.n, s.batch),
        d_layout(c.wide_result ? CUDA_R_32F : c.type, s.m, s.n, s.batch),
        a_values(rounded(random_values(a_layout.elements(), "a"), c.dtype)),
        b_values(rounded(random_values(b_layout.elements(), "b"), c.dtype)),
        d_values(rounded(random_values(d_layout.elements(), "d"), d_type)),
        a(a_values, c.dtype),
        b(b_values, c.dtype),
        d(d_values, d_type),
        workspace(1 << 20) {
    EXPECT_EQ(cublasLtCreate(&handle), CUBLAS_STATUS_SUCCESS);
    EXPECT_EQ(cublasLtMatmulDescCreate(&descriptor, c.compute, CUDA_R_32F), CUBLAS_STATUS_SUCCESS);
    EXPECT_EQ(cublasLtMatmulPreferenceCreate(&preference), CUBLAS_STATUS_SUCCESS);
    EXPECT_EQ(cudaStreamCreate(&stream), cudaSuccess);
    set(CUBLASLT_MATMUL_DESC_TRANSA, std::int32_t{s.transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N});
    set(CUBLASLT_MATMUL_DESC_TRANSB, std::int32_t{s.transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N});
    prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, std::uint64_t{1 << 20});
  }
  Matmul(const Matmul&) = delete;
  Matmul& operator=(const Matmul&) = delete;
  ~Matmul() {
    cudaStreamSynchronize(stream);
    cudaStreamDestroy(stream);
    cublasLtMatmulPreferenceDestroy(preference);
    cublasLtMatmulDescDestroy(descriptor);
    cublasLtDestroy(handle);
  }

  template <typename T>
  void set(cublasLtMatmulDescAttributes_t attribute, T value) {
    EXPECT_EQ(cublasLtMatmulDescSetAttribute(descriptor, attribute, &value, sizeof(value)),
              CUBLAS_STATUS_SUCCESS);
  }
  template <typename T>
  void prefer(cublasLtMatmulPreferenceAttributes_t attribute, T value) {
    EXPECT_EQ(cublasLtMatmulPreferenceSetAttribute(preference, attribute, &value, sizeof(value)),
              CUBLAS_STATUS_SUCCESS);
  }

  cublasStatus_t ask(std::vector<cublasLtMatmulHeuristicResult_t>& results) {
    results.resize(16);
    int found = 0;
    const cublasStatus_t status =
        cublasLtMatmulAlgoGetHeuristic(handle, descriptor, a_layout.handle, b_layout.handle, d_layout.handle,
                                       d_layout.handle, preference, 16, results.data(), &found);
    results.resize(static_cast<std::size_t>(found));
    return status;
  }
  std::vector<cublasLtMatmulHeuristicResult_t> proposals() {
    std::vector<cublasLtMatmulHeuristicResult_t> results;
    EXPECT_EQ(ask(results), CUBLAS_STATUS_SUCCESS);
    std::erase_if(results, [](const auto& result) { return result.state != CUBLAS_STATUS_SUCCESS; });
    return results;
  }
  cublasStatus_t run(const cublasLtMatmulAlgo_t* algorithm) {
    return cublasLtMatmul(handle, descriptor, &alpha, a.data(), a_layout.handle, b.data(), b_layout.handle,
                          &beta, d.data(), d_layout.handle, d.data(), d_layout.handle, algorithm,
                          workspace.data(), workspace.bytes(), stream);
  }

  double product(std::int64_t batch, std::int64_t i, std::int64_t j) const {
    double sum = 0;
    for (std::int64_t l = 0; l < s.k; ++l) sum += double{op_a(batch, i, l)} * double{op_b(batch, l, j)};
    return sum;
  }
  float op_a(std::int64_t batch, std::int64_t i, std::int64_t l) const {
    return a_values[s.transpose_a ? a_layout.at(batch, l, i) : a_layout.at(batch, i, l)];
  }
  float op_b(std::int64_t batch, std::int64_t l, std::int64_t j) const {
    return b_values[s.transpose_b ? b_layout.at(batch, j, l) : b_layout.at(batch, l, j)];
  }
  // The expected elements of D, each passed through finish(value, row); gaps keep their previous contents.
  template <typename Finish>
  Doubles expected(Finish finish) const {
    Doubles all = widen(d_values);
    for (std::int64_t batch = 0; batch < s.batch; ++batch) {
      for (std::int64_t j = 0; j < s.n; ++j) {
        for (std::int64_t i = 0; i < s.m; ++i) {
          double& element = all[d_layout.at(batch, i, j)];
          element = finish(double{alpha} * product(batch, i, j) + double{beta} * element, i);
        }
      }
    }
    return all;
  }

  Case c;
  Shape s;
  DType d_type;
  Layout a_layout, b_layout, d_layout;
  Values a_values, b_values, d_values;
  DeviceArray a, b, d, workspace;
  cublasLtHandle_t handle = nullptr;
  cublasLtMatmulDesc_t descriptor = nullptr;
  cublasLtMatmulPreference_t preference = nullptr;
  cudaStream_t stream = nullptr;
  float alpha = 1, beta = 0;
};

class CublasLtTypes : public testing::TestWithParam<Case> {};

TEST_P(CublasLtTypes, ProductsMatchByEveryAlgorithmAndRepeatTheirBits) {
  for (const bool transpose_a : {false, true}) {
    for (const bool transpose_b : {false, true}) {
      for (const std::int64_t batch : {1, 3}) {
        Matmul matmul(GetParam(), {.transpose_a = transpose_a, .transpose_b = transpose_b, .batch = batch});
        matmul.alpha = 0.5f;
        const Doubles expected = matmul.expected([](double value, auto) { return value; });
        const auto proposals = matmul.proposals();
        EXPECT_GE(proposals.size(), 3u);
        for (const auto& proposal : proposals) {
          const auto run = [&] {
            const DeviceArray fresh(matmul.d_values, matmul.d_type);
            EXPECT_EQ(cublasLtMatmul(matmul.handle, matmul.descriptor, &matmul.alpha, matmul.a.data(),
                                     matmul.a_layout.handle, matmul.b.data(), matmul.b_layout.handle,
                                     &matmul.beta, fresh.data(), matmul.d_layout.handle, fresh.data(),
                                     matmul.d_layout.handle, &proposal.algo, matmul.workspace.data(),
                                     proposal.workspaceSize, matmul.stream),
                      CUBLAS_STATUS_SUCCESS);
            return fresh.read(matmul.d_type);
          };
          const Values first = run();
          EXPECT_LT(relative_error(first, expected), GetParam().tolerance);
          EXPECT_EQ(run(), first);
        }
      }
    }
  }
}

TEST_P(CublasLtTypes, AddsBetaTimesC) {
  Matmul matmul(GetParam());
  matmul.alpha = 2, matmul.beta = -0.5f;
  const Doubles expected = matmul.expected([](double value, auto) { return value; });
  ASSERT_EQ(matmul.run(&matmul.proposals().back().algo), CUBLAS_STATUS_SUCCESS);
  EXPECT_LT(relative_error(matmul.d.read(matmul.d_type), expected), GetParam().tolerance);
}

INSTANTIATE_TEST_SUITE_P(
    Types, CublasLtTypes,
    testing::Values(kFloat, Case{"tf32", CUDA_R_32F, DType::f32, CUBLAS_COMPUTE_32F_FAST_TF32, 1e-3},
                    Case{"fp16", CUDA_R_16F, DType::f16, CUBLAS_COMPUTE_32F, 1e-3},
                    Case{"bf16", CUDA_R_16BF, DType::bf16, CUBLAS_COMPUTE_32F, 5e-3},
                    Case{"fp16_to_fp32", CUDA_R_16F, DType::f16, CUBLAS_COMPUTE_32F, 2e-6, true}),
    [](const auto& type) { return type.param.name; });

TEST(CublasLt, Tf32RoundsItsOperands) {
  Matmul exact,
      rounding(
          {.name = "tf32", .type = CUDA_R_32F, .dtype = DType::f32, .compute = CUBLAS_COMPUTE_32F_FAST_TF32});
  ASSERT_EQ(exact.run(&exact.proposals()[0].algo), CUBLAS_STATUS_SUCCESS);
  ASSERT_EQ(rounding.run(&rounding.proposals()[0].algo), CUBLAS_STATUS_SUCCESS);
  EXPECT_GT(relative_error(rounding.d.read(DType::f32), widen(exact.d.read(DType::f32))), 1e-5);
}

TEST(CublasLt, AlgorithmsDifferInTheirLastBits) {
  Matmul matmul;
  std::vector<Values> results;
  for (const auto& proposal : matmul.proposals()) {
    ASSERT_EQ(matmul.run(&proposal.algo), CUBLAS_STATUS_SUCCESS);
    results.push_back(matmul.d.read(DType::f32));
  }
  for (std::size_t i = 0; i < results.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j) EXPECT_NE(results[i], results[j]) << i << " and " << j;
  }
}

TEST(CublasLt, DoesNotReadCWithoutBeta) {
  Matmul matmul;
  const Doubles expected = matmul.expected([](double value, auto) { return value; });
  matmul.d.poison();
  ASSERT_EQ(matmul.run(nullptr), CUBLAS_STATUS_SUCCESS);
  const Values result = matmul.d.read(DType::f32);
  EXPECT_NEAR(result[matmul.d_layout.at(0, 4, 6)], expected[matmul.d_layout.at(0, 4, 6)], 1e-4);
  EXPECT_TRUE(std::isnan(result[matmul.d_layout.at(0, 4, 0) + 1])) << "a gap was written";
}

TEST(CublasLt, ComputesEpilogues) {
  for (const auto epilogue : {CUBLASLT_EPILOGUE_BIAS, CUBLASLT_EPILOGUE_RELU, CUBLASLT_EPILOGUE_RELU_BIAS}) {
    Matmul matmul;
    const Values bias = random_values(matmul.s.m, "bias");
    const DeviceArray memory(bias, DType::f32);
    matmul.set(CUBLASLT_MATMUL_DESC_EPILOGUE, std::uint32_t{epilogue});
    matmul.set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, memory.data());
    const Doubles expected = matmul.expected([&](double value, std::int64_t row) {
      if ((epilogue & CUBLASLT_EPILOGUE_BIAS) != 0) value += bias[static_cast<std::size_t>(row)];
      return (epilogue & CUBLASLT_EPILOGUE_RELU) != 0 ? std::max(value, 0.0) : value;
    });
    ASSERT_EQ(matmul.run(&matmul.proposals()[0].algo), CUBLAS_STATUS_SUCCESS);
    EXPECT_LT(relative_error(matmul.d.read(DType::f32), expected), 2e-6) << epilogue;
  }
}

TEST(CublasLt, SumsBiasGradients) {
  for (const bool of_a : {true, false}) {
    Matmul matmul;
    const std::int64_t count = of_a ? matmul.s.m : matmul.s.n;
    const DeviceArray memory(Values(static_cast<std::size_t>(count)), DType::f32);
    matmul.set(CUBLASLT_MATMUL_DESC_EPILOGUE,
               static_cast<std::uint32_t>(of_a ? CUBLASLT_EPILOGUE_BGRADA : CUBLASLT_EPILOGUE_BGRADB));
    matmul.set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, memory.data());
    Doubles expected(static_cast<std::size_t>(count));
    for (std::int64_t i = 0; i < count; ++i) {
      for (std::int64_t l = 0; l < matmul.s.k; ++l) {
        expected[static_cast<std::size_t>(i)] += of_a ? matmul.op_a(0, i, l) : matmul.op_b(0, l, i);
      }
    }
    ASSERT_EQ(matmul.run(&matmul.proposals()[0].algo), CUBLAS_STATUS_SUCCESS);
    EXPECT_LT(relative_error(memory.read(DType::f32), expected), 1e-5);
  }
}

TEST(CublasLt, RunsWhenACapturedGraphIsLaunched) {
  Matmul matmul;
  const Doubles expected = matmul.expected([](double value, auto) { return value; });
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t executable = nullptr;
  ASSERT_EQ(cudaStreamBeginCapture(matmul.stream, cudaStreamCaptureModeThreadLocal), cudaSuccess);
  ASSERT_EQ(matmul.run(&matmul.proposals()[0].algo), CUBLAS_STATUS_SUCCESS);
  ASSERT_EQ(cudaStreamEndCapture(matmul.stream, &graph), cudaSuccess);
  EXPECT_EQ(matmul.d.read(DType::f32), matmul.d_values);
  ASSERT_EQ(cudaGraphInstantiate(&executable, graph), cudaSuccess);
  ASSERT_EQ(cudaGraphLaunch(executable, matmul.stream), cudaSuccess);
  EXPECT_LT(relative_error(matmul.d.read(DType::f32), expected), 2e-6);
  cudaGraphExecDestroy(executable);
  cudaGraphDestroy(graph);
}

TEST(CublasLt, ReadsTheScalarsAtTheCall) {
  Matmul matmul;
  matmul.alpha = 3;
  const Doubles expected = matmul.expected([](double value, auto) { return value; });
  ASSERT_EQ(matmul.run(nullptr), CUBLAS_STATUS_SUCCESS);
  matmul.alpha = 5;
  EXPECT_LT(relative_error(matmul.d.read(DType::f32), expected), 2e-6);
}

TEST(CublasLt, UsesExactlyTheRequestedWorkspace) {
  Matmul matmul;
  for (const auto& proposal : matmul.proposals()) {
    EXPECT_EQ(cudaMemset(matmul.workspace.data(), 0, matmul.workspace.bytes()), cudaSuccess);
    ASSERT_EQ(matmul.run(&proposal.algo), CUBLAS_STATUS_SUCCESS);
    const Values after = matmul.workspace.read(DType::f32);
    const std::size_t asked = proposal.workspaceSize / sizeof(float);
    EXPECT_EQ(after.size() - static_cast<std::size_t>(std::count(after.begin(), after.end(), 0.0f)), asked);
  }
}

TEST(CublasLt, AlgorithmsWithoutEnoughWorkspaceAreNotSupported) {
  Matmul matmul;
  const std::size_t with_room = matmul.proposals().size();
  matmul.prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, std::uint64_t{0});
  std::vector<cublasLtMatmulHeuristicResult_t> results;
  ASSERT_EQ(matmul.ask(results), CUBLAS_STATUS_SUCCESS);
  EXPECT_EQ(results.size(), with_room);
  EXPECT_EQ(matmul.proposals().size(), 2u);
  for (const auto& proposal : matmul.proposals()) EXPECT_EQ(proposal.workspaceSize, 0u);
}

TEST(CublasLt, RespectsPreferredReductionsAndAlignments) {
  Matmul matmul;
  matmul.prefer(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, std::uint32_t{CUBLASLT_REDUCTION_SCHEME_NONE});
  EXPECT_EQ(matmul.proposals().size(), 2u);
  matmul.prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, std::uint32_t{4});
  EXPECT_EQ(matmul.proposals().size(), 1u);
}

TEST(CublasLt, AlgorithmsReportTheirAttributes) {
  Matmul matmul;
  std::int32_t parts = 0;
  std::size_t written = 0;
  const auto proposals = matmul.proposals();
  const auto* algorithm = &proposals[1].algo;
  EXPECT_EQ(cublasLtMatmulAlgoConfigGetAttribute(algorithm, CUBLASLT_ALGO_CONFIG_SPLITK_NUM, &parts,
                                                 sizeof(parts), &written),
            CUBLAS_STATUS_SUCCESS);
  EXPECT_EQ(parts, 4);
  EXPECT_EQ(written, sizeof(parts));
  EXPECT_EQ(
      cublasLtMatmulAlgoConfigGetAttribute(algorithm, CUBLASLT_ALGO_CONFIG_SPLITK_NUM, &parts, 2, &written),
      CUBLAS_STATUS_INVALID_VALUE);
}

// Each test changes one argument of a valid call and checks the status.
class CublasLtRefuses : public testing::Test {
 protected:
  cublasStatus_t run() { return matmul.run(&algorithm); }

  Matmul matmul{kFloat, {.n = 40}};
  cublasLtMatmulAlgo_t algorithm = matmul.proposals()[1].algo;  // with a workspace
};

TEST_F(CublasLtRefuses, InvalidAlgorithmsAndThoseOfAnotherProblem) {
  Matmul other(kFloat, {.n = 41});
  EXPECT_EQ(other.run(&algorithm), CUBLAS_STATUS_INVALID_VALUE);
  algorithm = {};
  EXPECT_EQ(run(), CUBLAS_STATUS_INVALID_VALUE);
}

TEST_F(CublasLtRefuses, DimensionsThatDisagree) {
  for (Layout* layout : {&matmul.a_layout, &matmul.b_layout, &matmul.d_layout}) {
    layout->set(CUBLASLT_MATRIX_LAYOUT_COLS, static_cast<std::uint64_t>(layout->columns - 1));
    EXPECT_EQ(run(), CUBLAS_STATUS_INVALID_VALUE);
    layout->set(CUBLASLT_MATRIX_LAYOUT_COLS, static_cast<std::uint64_t>(layout->columns));
  }
  EXPECT_EQ(run(), CUBLAS_STATUS_SUCCESS);
}

TEST_F(CublasLtRefuses, ALeadingDimensionBelowTheRows) {
  matmul.a_layout.set(CUBLASLT_MATRIX_LAYOUT_LD, matmul.a_layout.rows - 1);
  EXPECT_EQ(run(), CUBLAS_STATUS_INVALID_VALUE);
}

TEST_F(CublasLtRefuses, BatchesThatDiffer) {
  matmul.b_layout.set(CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, std::int32_t{2});
  EXPECT_EQ(run(), CUBLAS_STATUS_INVALID_VALUE);
}

TEST_F(CublasLtRefuses, IncompatibleTypes) {
  matmul.b_layout.set(CUBLASLT_MATRIX_LAYOUT_TYPE, std::uint32_t{CUDA_R_16F});
  EXPECT_EQ(run(), CUBLAS_STATUS_NOT_SUPPORTED);
}

TEST_F(CublasLtRefuses, UnemulatedOptions) {
  matmul.set(CUBLASLT_MATMUL_DESC_EPILOGUE, std::uint32_t{CUBLASLT_EPILOGUE_RELU_AUX});
  EXPECT_EQ(run(), CUBLAS_STATUS_NOT_SUPPORTED);
  matmul.set(CUBLASLT_MATMUL_DESC_EPILOGUE, std::uint32_t{CUBLASLT_EPILOGUE_DEFAULT});
  matmul.set(CUBLASLT_MATMUL_DESC_POINTER_MODE, std::int32_t{CUBLASLT_POINTER_MODE_DEVICE});
  EXPECT_EQ(run(), CUBLAS_STATUS_NOT_SUPPORTED);
  matmul.set(CUBLASLT_MATMUL_DESC_POINTER_MODE, std::int32_t{CUBLASLT_POINTER_MODE_HOST});
  matmul.set(CUBLASLT_MATMUL_DESC_SCALE_TYPE, std::int32_t{CUDA_R_16F});
  EXPECT_EQ(run(), CUBLAS_STATUS_NOT_SUPPORTED);
  matmul.set(CUBLASLT_MATMUL_DESC_SCALE_TYPE, std::int32_t{CUDA_R_32F});
  matmul.set(CUBLASLT_MATMUL_DESC_COMPUTE_TYPE, std::int32_t{CUBLAS_COMPUTE_16F});
  EXPECT_EQ(run(), CUBLAS_STATUS_NOT_SUPPORTED);
  matmul.set(CUBLASLT_MATMUL_DESC_COMPUTE_TYPE, std::int32_t{CUBLAS_COMPUTE_32F});
  matmul.d_layout.set(CUBLASLT_MATRIX_LAYOUT_ORDER, std::int32_t{CUBLASLT_ORDER_ROW});
  EXPECT_EQ(run(), CUBLAS_STATUS_NOT_SUPPORTED);
}

// The pointers of one call.
struct Pointers {
  const void *a, *b, *c;
  void *d, *workspace;
  std::size_t workspace_bytes;
};
cublasStatus_t call(Matmul& m, const cublasLtMatmulAlgo_t& algorithm, const Pointers& p) {
  return cublasLtMatmul(m.handle, m.descriptor, &m.alpha, p.a, m.a_layout.handle, p.b, m.b_layout.handle,
                        &m.beta, p.c, m.d_layout.handle, p.d, m.d_layout.handle, &algorithm, p.workspace,
                        p.workspace_bytes, m.stream);
}

TEST_F(CublasLtRefuses, InvalidPointers) {
  Matmul& m = matmul;
  const Pointers good{m.a.data(), m.b.data(),         m.d.data(),
                      m.d.data(), m.workspace.data(), m.workspace.bytes()};
  const auto answer = [&](auto change) {
    Pointers pointers = good;
    change(pointers);
    return call(m, algorithm, pointers);
  };
  Values host(static_cast<std::size_t>(m.a_layout.elements()));
  const DeviceArray large(1 << 16);
  EXPECT_EQ(answer([](Pointers&) {}), CUBLAS_STATUS_SUCCESS);
  EXPECT_EQ(answer([](Pointers& p) { p.a = nullptr; }), CUBLAS_STATUS_INVALID_VALUE);
  EXPECT_EQ(answer([&](Pointers& p) { p.a = host.data(); }), CUBLAS_STATUS_INVALID_VALUE) << "in host memory";
  EXPECT_EQ(answer([&](Pointers& p) { p.b = large.at(4); }), CUBLAS_STATUS_INVALID_VALUE) << "misaligned";
  EXPECT_EQ(answer([&](Pointers& p) { p.a = large.at((1 << 16) - 1024); }), CUBLAS_STATUS_INVALID_VALUE)
      << "beyond its allocation";
  EXPECT_EQ(answer([&](Pointers& p) { p.d = const_cast<void*>(p.a); }), CUBLAS_STATUS_INVALID_VALUE)
      << "D is A";
  EXPECT_EQ(answer([&](Pointers& p) { p.workspace = nullptr; }), CUBLAS_STATUS_INVALID_VALUE);
  EXPECT_EQ(answer([&](Pointers& p) { p.workspace_bytes = 16; }), CUBLAS_STATUS_INVALID_VALUE)
      << "too little workspace";
  EXPECT_EQ(answer([&](Pointers& p) { p.workspace = m.workspace.at(16), p.workspace_bytes -= 16; }),
            CUBLAS_STATUS_INVALID_VALUE)
      << "a misaligned workspace";
  EXPECT_EQ(answer([&](Pointers& p) {
              p.workspace = large.at(0), p.a = large.at(1024), p.workspace_bytes = 1 << 15;
            }),
            CUBLAS_STATUS_INVALID_VALUE)
      << "a workspace over an operand";
  m.beta = 1;
  EXPECT_EQ(answer([&](Pointers& p) { p.c = large.at(0), p.d = large.at(256); }), CUBLAS_STATUS_INVALID_VALUE)
      << "C and D overlap";
  EXPECT_EQ(answer([&](Pointers& p) { p.c = nullptr; }), CUBLAS_STATUS_INVALID_VALUE);
}

TEST_F(CublasLtRefuses, NullObjectsAndSizesOfAttributesThatAreWrong) {
  std::int16_t small = 0;
  EXPECT_EQ(
      cublasLtMatmulDescSetAttribute(matmul.descriptor, CUBLASLT_MATMUL_DESC_TRANSA, &small, sizeof(small)),
      CUBLAS_STATUS_INVALID_VALUE);
  EXPECT_EQ(cublasLtMatmulDescSetAttribute(nullptr, CUBLASLT_MATMUL_DESC_TRANSA, &small, sizeof(small)),
            CUBLAS_STATUS_INVALID_VALUE);
  EXPECT_EQ(
      cublasLtMatmulDescSetAttribute(matmul.descriptor, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, &small, 8),
      CUBLAS_STATUS_NOT_SUPPORTED);
  EXPECT_EQ(cublasLtCreate(nullptr), CUBLAS_STATUS_INVALID_VALUE);
  EXPECT_EQ(cublasLtDestroy(nullptr), CUBLAS_STATUS_NOT_INITIALIZED);
  EXPECT_EQ(cublasLtMatrixLayoutDestroy(nullptr), CUBLAS_STATUS_INVALID_VALUE);
}

TEST_F(CublasLtRefuses, AnotherDevicesStreamAndAnotherCurrentDevice) {
  int devices = 0;
  ASSERT_EQ(cudaGetDeviceCount(&devices), cudaSuccess);
  ASSERT_GE(devices, 2);
  ASSERT_EQ(cudaSetDevice(1), cudaSuccess);
  cudaStream_t other = nullptr;
  EXPECT_EQ(cudaStreamCreate(&other), cudaSuccess);
  EXPECT_EQ(run(), CUBLAS_STATUS_EXECUTION_FAILED);
  ASSERT_EQ(cudaSetDevice(0), cudaSuccess);
  std::swap(other, matmul.stream);
  EXPECT_EQ(run(), CUBLAS_STATUS_INVALID_VALUE);
  std::swap(other, matmul.stream);
  cudaStreamDestroy(other);
}

TEST(CublasLt, HandleHoldsMemoryUntilItIsDestroyed) {
  const auto free_memory = [] {
    std::size_t available = 0, total = 0;
    EXPECT_EQ(cudaMemGetInfo(&available, &total), cudaSuccess);
    return available;
  };
  cublasLtHandle_t handle = nullptr;
  const std::size_t before = free_memory();
  ASSERT_EQ(cublasLtCreate(&handle), CUBLAS_STATUS_SUCCESS);
  EXPECT_LT(free_memory(), before);
  EXPECT_EQ(cublasLtDestroy(handle), CUBLAS_STATUS_SUCCESS);
  EXPECT_EQ(free_memory(), before);
}

TEST(CublasLt, VersionAndStatusTextsNameTheEmulation) {
  int major = 0;
  EXPECT_EQ(cublasLtGetProperty(MAJOR_VERSION, &major), CUBLAS_STATUS_SUCCESS);
  EXPECT_EQ(major, 13);
  EXPECT_EQ(cublasLtGetVersion() / 10000, 13u);
  EXPECT_STREQ(cublasLtGetStatusName(CUBLAS_STATUS_NOT_SUPPORTED), "CUBLAS_STATUS_NOT_SUPPORTED");
  EXPECT_NE(std::string(cublasLtGetStatusString(CUBLAS_STATUS_INVALID_VALUE)).find("emulated"),
            std::string::npos);
}

}  // namespace
}  // namespace lockstep
