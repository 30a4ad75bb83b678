// SPDX-License-Identifier: Apache-2.0
//
// Compares the results of every proposed engine of the emulated cuDNN with a reference in double precision.
#include <algorithm>
#include <cmath>
#include <ostream>
#include <set>

#include <cudnn_graph.h>
#include <gtest/gtest.h>

#include "tests/cuda_emulator/libraries/cudnn_test_descriptors.h"
#include "tests/cuda_emulator/libraries/device_array.h"
#include "tests/kernels/cuda_shapes.h"

namespace lockstep {
namespace {

struct Case {
  const char* name;
  cudnnDataType_t type;
  DType dtype;
  bool plain;
};
void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }
const Case kFloat{"fp32", CUDNN_DATA_FLOAT, DType::f32, false};

const ConvolutionShape kShape{.batch = 3,
                              .in_channels = 16,
                              .in_height = 9,
                              .in_width = 8,
                              .out_channels = 24,
                              .kernel = 3,
                              .padding = 1};

// The elements of a tensor given in N, C, H, W order, rearranged to its order in memory (or back).
Values arranged(const Values& values, const FourSizes& s, bool plain, bool back = false) {
  if (plain) return values;
  Values result(values.size());
  std::size_t nchw = 0;
  for (std::int64_t n = 0; n < s[0]; ++n) {
    for (std::int64_t c = 0; c < s[1]; ++c) {
      for (std::int64_t p = 0; p < s[2] * s[3]; ++p, ++nchw) {
        const auto nhwc = static_cast<std::size_t>((n * s[2] * s[3] + p) * s[1] + c);
        back ? result[nchw] = values[nhwc] : result[nhwc] = values[nchw];
      }
    }
  }
  return result;
}

std::int64_t count(const FourSizes& s) { return s[0] * s[1] * s[2] * s[3]; }

// A tensor on the device and its values in N, C, H, W order.
struct Operand {
  Operand(const FourSizes& of, const Case& c, const char* purpose)
      : sizes(of),
        plain(c.plain),
        type(c.dtype),
        values(rounded(random_values(count(of), purpose), c.dtype)),
        memory(arranged(values, of, c.plain), c.dtype) {}
  Values read() const { return arranged(memory.read(type), sizes, plain, true); }
  void restore() const {
    const std::vector<std::byte> elements = to_elements(arranged(values, sizes, plain), type);
    EXPECT_EQ(cudaMemcpy(memory.data(), elements.data(), elements.size(), cudaMemcpyHostToDevice),
              cudaSuccess);
  }

  FourSizes sizes;
  bool plain;
  DType type;
  Values values;
  DeviceArray memory;
};

struct Problem {
  Problem(const ConvolutionShape& of, int in_direction, const Case& of_case)
      : shape(of),
        direction(in_direction),
        c(of_case),
        x(x_sizes(of), of_case, "x"),
        w(w_sizes(of), of_case, "w"),
        y(y_sizes(of), of_case, "y") {}

  const Operand& result() const { return direction == 0 ? y : direction == 1 ? x : w; }
  Doubles expected(double alpha = 1, double beta = 0) const {
    const Doubles in_x = widen(x.values), in_w = widen(w.values), in_y = widen(y.values);
    Doubles sums = direction == 0   ? reference_forward(shape, in_x, in_w, {})
                   : direction == 1 ? reference_backward_data(shape, in_y, in_w)
                                    : reference_backward_weights(shape, in_x, in_y);
    for (std::size_t i = 0; i < sums.size(); ++i) sums[i] = alpha * sums[i] + beta * result().values[i];
    return sums;
  }
  CudnnObject graph(cudnnHandle_t handle, float alpha = 1, float beta = 0) const {
    const CudnnObject operation = convolution_operation(
        direction, shape, {.tensors = {.type = c.type, .plain = c.plain}, .alpha = alpha, .beta = beta});
    return open_graph({&operation}, handle).finalized();
  }
  // The result; empty when the plan is refused.
  Values run(const OnDevice& device, const CudnnObject& configuration, bool poisoned = true) const {
    CudnnObject plan = open_plan(configuration, device.handle);
    if (plan.finalize() != CUDNN_STATUS_SUCCESS) return {};
    const DeviceArray workspace(workspace_of(plan));
    poisoned ? result().memory.poison() : result().restore();
    EXPECT_EQ(device.run(plan, {kXId, kWId, kYId}, {x.memory.data(), w.memory.data(), y.memory.data()},
                         workspace.data()),
              CUDNN_STATUS_SUCCESS)
        << CudnnObject::last_error();
    return result().read();
  }

  ConvolutionShape shape;
  int direction;
  Case c;
  Operand x, w, y;
};

double tolerance_of(const CudnnObject& configuration, const Case& c) {
  if (c.dtype == DType::bf16) return 1e-2;
  if (c.dtype == DType::f16) return 1e-3;
  return notes(configuration, CUDNN_NUMERICAL_NOTE_TENSOR_CORE) ? 1e-3 : 2e-6;
}

class CudnnResults : public testing::TestWithParam<Case> {};

TEST_P(CudnnResults, MatchTheReferenceByEveryEngine) {
  const OnDevice device;
  std::set<std::int64_t> seen;
  for (ConvolutionShape shape : cuda_test_convolutions()) {
    for (const int direction : {0, 1, 2}) {
      const Problem problem(shape, direction, GetParam());
      const Doubles expected = problem.expected();
      const CudnnObject graph = problem.graph(device.handle);
      for (const auto mode : {CUDNN_HEUR_MODE_A, CUDNN_HEUR_MODE_FALLBACK}) {
        for (const CudnnObject& configuration : proposals(graph, mode)) {
          const Values result = problem.run(device, configuration);
          if (result.empty()) continue;
          seen.insert(index_of(configuration));
          EXPECT_LT(relative_error(result, expected), tolerance_of(configuration, GetParam()))
              << "direction " << direction << ", engine " << index_of(configuration);
        }
      }
    }
  }
  EXPECT_GE(seen.size(), 7u);
}

TEST_P(CudnnResults, SupportAlphaAndBeta) {
  const OnDevice device;
  for (const int direction : {0, 1, 2}) {
    const Problem problem(kShape, direction, GetParam());
    for (const CudnnObject& configuration : proposals(problem.graph(device.handle, 0.5f, 2.0f))) {
      const Values result = problem.run(device, configuration, false);
      if (result.empty()) continue;
      EXPECT_LT(relative_error(result, problem.expected(0.5, 2)), tolerance_of(configuration, GetParam()));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Types, CudnnResults,
                         testing::Values(kFloat, Case{"fp32_plain", CUDNN_DATA_FLOAT, DType::f32, true},
                                         Case{"fp16", CUDNN_DATA_HALF, DType::f16, false},
                                         Case{"bf16", CUDNN_DATA_BFLOAT16, DType::bf16, false}),
                         [](const auto& type) { return type.param.name; });

TEST(CudnnEngines, DifferInLastBitsAndRepeatThemUnlessNondeterministic) {
  const OnDevice device;
  const Problem problem(kShape, 2, kFloat);
  std::set<Values> results;
  std::size_t runs = 0;
  bool varied = false;
  for (const CudnnObject& configuration : proposals(problem.graph(device.handle))) {
    const Values first = problem.run(device, configuration);
    if (first.empty()) continue;
    if (notes(configuration, CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC)) {
      varied = problem.run(device, configuration) != first;
      continue;
    }
    EXPECT_EQ(problem.run(device, configuration), first);
    results.insert(first);
    ++runs;
  }
  EXPECT_TRUE(varied);
  // For short sums, some engines have a single block and so give equal results.
  EXPECT_GE(results.size(), 5u) << "of " << runs;
}

TEST(CudnnEngines, RoundOperandsOnlyIfTheirNotesListTensorCores) {
  const OnDevice device;
  const Problem problem(kShape, 0, kFloat);
  for (const CudnnObject& configuration : proposals(problem.graph(device.handle))) {
    const Values result = problem.run(device, configuration);
    if (result.empty()) continue;
    const double error = relative_error(result, problem.expected());
    EXPECT_EQ(error > 1e-5, notes(configuration, CUDNN_NUMERICAL_NOTE_TENSOR_CORE))
        << index_of(configuration);
  }
}

TEST(CudnnEngines, UseTheirWorkspace) {
  const OnDevice device;
  const Problem problem(kShape, 2, kFloat);
  std::set<std::size_t> sizes;
  for (const CudnnObject& configuration : proposals(problem.graph(device.handle))) {
    CudnnObject plan = open_plan(configuration, device.handle);
    if (plan.finalize() != CUDNN_STATUS_SUCCESS) continue;
    const DeviceArray workspace(workspace_of(plan) + 4096);
    EXPECT_EQ(cudaMemset(workspace.data(), 0, workspace.bytes()), cudaSuccess);
    EXPECT_EQ(device.run(plan, {kXId, kWId, kYId},
                         {problem.x.memory.data(), problem.w.memory.data(), problem.y.memory.data()},
                         workspace.data()),
              CUDNN_STATUS_SUCCESS);
    const Values after = workspace.read(DType::f32);
    const auto used = std::ranges::count_if(after, [](float value) { return value != 0; });
    EXPECT_LE(static_cast<std::size_t>(used) * sizeof(float), workspace_of(plan));
    EXPECT_EQ(used > 0, workspace_of(plan) > 0);
    sizes.insert(workspace_of(plan));
  }
  EXPECT_GE(sizes.size(), 3u);
}

TEST(CudnnEngines, RunWhenACapturedGraphIsLaunched) {
  const OnDevice device;
  const Problem problem(kShape, 0, kFloat);
  const CudnnObject graph = problem.graph(device.handle);
  const CudnnObject plan = open_plan(proposals(graph).front(), device.handle).finalized();
  const DeviceArray workspace(workspace_of(plan));
  cudaGraph_t captured = nullptr;
  cudaGraphExec_t executable = nullptr;
  ASSERT_EQ(device.run(plan, {kYId, kXId, kWId},
                       {problem.y.memory.data(), problem.x.memory.data(), problem.w.memory.data()},
                       workspace.data()),
            CUDNN_STATUS_SUCCESS)
      << "the first execution, which must not be captured";
  ASSERT_EQ(cudaStreamSynchronize(device.stream), cudaSuccess);
  problem.y.restore();
  ASSERT_EQ(cudaStreamBeginCapture(device.stream, cudaStreamCaptureModeThreadLocal), cudaSuccess);
  EXPECT_EQ(device.run(plan, {kYId, kXId, kWId},
                       {problem.y.memory.data(), problem.x.memory.data(), problem.w.memory.data()},
                       workspace.data()),
            CUDNN_STATUS_SUCCESS);
  ASSERT_EQ(cudaStreamEndCapture(device.stream, &captured), cudaSuccess);
  EXPECT_EQ(problem.y.read(), problem.y.values);
  ASSERT_EQ(cudaGraphInstantiate(&executable, captured), cudaSuccess);
  ASSERT_EQ(cudaGraphLaunch(executable, device.stream), cudaSuccess);
  EXPECT_LT(relative_error(problem.y.read(), problem.expected()), 1e-3);
  cudaGraphExecDestroy(executable);
  cudaGraphDestroy(captured);
}

// Graphs with more operations than a single convolution.
class CudnnFusions : public testing::Test {
 protected:
  static constexpr std::int64_t kSumId = 10, kReluId = 11, kBiasId = 12, kOutId = 13, kSquaresId = 14;

  CudnnObject pointwise(cudnnPointwiseMode_t mode) const {
    CudnnObject settings(CUDNN_BACKEND_POINTWISE_DESCRIPTOR);
    settings.set(CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, std::vector{mode})
        .set(CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_TYPE_DATA_TYPE, std::vector{CUDNN_DATA_FLOAT});
    return std::move(settings).finalized();
  }
  CudnnObject binary(cudnnPointwiseMode_t mode, const CudnnObject& x, const CudnnObject& b,
                     const CudnnObject& y) const {
    const CudnnObject settings = pointwise(mode);
    CudnnObject operation(CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR);
    operation.set(CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, {&settings})
        .set(CUDNN_ATTR_OPERATION_POINTWISE_XDESC, {&x})
        .set(CUDNN_ATTR_OPERATION_POINTWISE_BDESC, {&b})
        .set(CUDNN_ATTR_OPERATION_POINTWISE_YDESC, {&y});
    return std::move(operation).finalized();
  }
  CudnnObject relu(const CudnnObject& x, const CudnnObject& y) const {
    const CudnnObject settings = pointwise(CUDNN_POINTWISE_RELU_FWD);
    CudnnObject operation(CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR);
    operation.set(CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, {&settings})
        .set(CUDNN_ATTR_OPERATION_POINTWISE_XDESC, {&x})
        .set(CUDNN_ATTR_OPERATION_POINTWISE_YDESC, {&y});
    return std::move(operation).finalized();
  }

  OnDevice device;
  const Case half{"fp16", CUDNN_DATA_HALF, DType::f16, false};
  const TensorOptions io{.type = CUDNN_DATA_HALF}, inner{.type = CUDNN_DATA_FLOAT, .is_virtual = true};
};

TEST_F(CudnnFusions, ComputeConvolutionBiasAndRelu) {
  const Problem problem(kShape, 0, half);
  const FourSizes channels{1, kShape.out_channels, 1, 1};
  const Operand bias(channels, half, "bias"), out(y_sizes(kShape), half, "out");
  const CudnnObject x = tensor(kXId, x_sizes(kShape), io), w = tensor(kWId, w_sizes(kShape), io),
                    y = tensor(kYId, y_sizes(kShape), inner), b = tensor(kBiasId, channels, io),
                    sum = tensor(kSumId, y_sizes(kShape), inner),
                    result = tensor(kOutId, y_sizes(kShape), io);
  const CudnnObject first = open_convolution(0, settings(kShape), x, w, y).finalized();
  const CudnnObject second = binary(CUDNN_POINTWISE_ADD, y, b, sum), third = relu(sum, result);
  // The operations may be given in any order, since the graph sorts them.
  const CudnnObject graph = open_graph({&third, &first, &second}, device.handle).finalized();
  Doubles expected =
      reference_forward(kShape, widen(problem.x.values), widen(problem.w.values), widen(bias.values));
  for (double& value : expected) value = std::max(value, 0.0);
  const auto configurations = proposals(graph);
  EXPECT_EQ(configurations.size(), 2u);
  for (const CudnnObject& configuration : configurations) {
    const CudnnObject plan = open_plan(configuration, device.handle).finalized();
    const DeviceArray workspace(workspace_of(plan));
    out.memory.poison();
    EXPECT_EQ(
        device.run(plan, {kXId, kWId, kBiasId, kOutId},
                   {problem.x.memory.data(), problem.w.memory.data(), bias.memory.data(), out.memory.data()},
                   workspace.data()),
        CUDNN_STATUS_SUCCESS);
    EXPECT_LT(relative_error(out.read(), expected), 1e-3);
  }
  CudnnObject fallback = open_heuristics(graph, CUDNN_HEUR_MODE_FALLBACK);
  EXPECT_EQ(fallback.finalize(), CUDNN_STATUS_NOT_SUPPORTED_GRAPH_PATTERN);
}

TEST_F(CudnnFusions, ComputeConvolutionAndItsStatistics) {
  const Problem problem(kShape, 0, half);
  const FourSizes channels{1, kShape.out_channels, 1, 1};
  const Operand sums(channels, kFloat, "sums"), squares(channels, kFloat, "squares");
  const CudnnObject y = tensor(kYId, y_sizes(kShape), io), sum = tensor(kSumId, channels),
                    square = tensor(kSquaresId, channels);
  const CudnnObject first = convolution_operation(0, kShape, {.tensors = io});
  CudnnObject second(CUDNN_BACKEND_OPERATION_GEN_STATS_DESCRIPTOR);
  second
      .set(CUDNN_ATTR_OPERATION_GENSTATS_MODE, CUDNN_TYPE_GENSTATS_MODE,
           std::vector{CUDNN_GENSTATS_SUM_SQSUM})
      .set(CUDNN_ATTR_OPERATION_GENSTATS_MATH_PREC, CUDNN_TYPE_DATA_TYPE, std::vector{CUDNN_DATA_FLOAT})
      .set(CUDNN_ATTR_OPERATION_GENSTATS_XDESC, {&y})
      .set(CUDNN_ATTR_OPERATION_GENSTATS_SUMDESC, {&sum})
      .set(CUDNN_ATTR_OPERATION_GENSTATS_SQSUMDESC, {&square});
  ASSERT_EQ(second.finalize(), CUDNN_STATUS_SUCCESS);
  const CudnnObject graph = open_graph({&first, &second}, device.handle).finalized();
  const CudnnObject plan = open_plan(proposals(graph).front(), device.handle).finalized();
  const DeviceArray workspace(workspace_of(plan));
  EXPECT_GT(workspace_of(plan), 0u);
  ASSERT_EQ(device.run(plan, {kXId, kWId, kYId, kSumId, kSquaresId},
                       {problem.x.memory.data(), problem.w.memory.data(), problem.y.memory.data(),
                        sums.memory.data(), squares.memory.data()},
                       workspace.data()),
            CUDNN_STATUS_SUCCESS)
      << CudnnObject::last_error();
  const Values result = problem.y.read();
  EXPECT_LT(relative_error(result, problem.expected()), 1e-3);
  Doubles expected(sums.values.size()), expected_squares(sums.values.size());
  const auto pixels = static_cast<std::size_t>(kShape.out_height() * kShape.out_width());
  for (std::size_t i = 0; i < result.size(); ++i) {
    const std::size_t channel = i / pixels % expected.size();
    expected[channel] += result[i];
    expected_squares[channel] += double{result[i]} * double{result[i]};
  }
  EXPECT_LT(relative_error(sums.read(), expected), 1e-5);
  EXPECT_LT(relative_error(squares.read(), expected_squares), 1e-5);
}

TEST_F(CudnnFusions, ComputeReluBackwardOfAScaledTensor) {
  const FourSizes sizes{2, 5, 3, 4}, channels{1, 5, 1, 1};
  const Operand x(sizes, kFloat, "x"), scale(channels, kFloat, "scale"), gradient(sizes, kFloat, "gradient"),
      out(sizes, kFloat, "out");
  const CudnnObject tx = tensor(kXId, sizes), ts = tensor(kBiasId, channels),
                    tm = tensor(kSumId, sizes, inner), tg = tensor(kYId, sizes), to = tensor(kOutId, sizes);
  const CudnnObject first = binary(CUDNN_POINTWISE_MUL, tx, ts, tm);
  const CudnnObject settings = pointwise(CUDNN_POINTWISE_RELU_BWD);
  CudnnObject second(CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR);
  second.set(CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, {&settings})
      .set(CUDNN_ATTR_OPERATION_POINTWISE_DYDESC, {&tg})
      .set(CUDNN_ATTR_OPERATION_POINTWISE_XDESC, {&tm})
      .set(CUDNN_ATTR_OPERATION_POINTWISE_DXDESC, {&to});
  ASSERT_EQ(second.finalize(), CUDNN_STATUS_SUCCESS);
  const CudnnObject graph = open_graph({&first, &second}, device.handle).finalized();
  const CudnnObject plan = open_plan(proposals(graph).front(), device.handle).finalized();
  // In place.
  ASSERT_EQ(device.run(plan, {kXId, kBiasId, kYId, kOutId},
                       {x.memory.data(), scale.memory.data(), gradient.memory.data(), gradient.memory.data()},
                       nullptr),
            CUDNN_STATUS_SUCCESS)
      << CudnnObject::last_error();
  const Values result = gradient.read();
  for (std::size_t i = 0; i < result.size(); ++i) {
    const float before = x.values[i] * scale.values[i / 12 % 5];
    EXPECT_EQ(result[i], before > 0 ? gradient.values[i] : 0) << i;
  }
}

TEST_F(CudnnFusions, ComputeSumsOverPixels) {
  const FourSizes sizes{3, 4, 5, 6}, channels{1, 4, 1, 1};
  const Operand x(sizes, kFloat, "x"), y(channels, kFloat, "y");
  const CudnnObject from = tensor(kXId, sizes), to = tensor(kYId, channels);
  CudnnObject sum(CUDNN_BACKEND_REDUCTION_DESCRIPTOR);
  sum.set(CUDNN_ATTR_REDUCTION_OPERATOR, CUDNN_TYPE_REDUCTION_OPERATOR_TYPE,
          std::vector{CUDNN_REDUCE_TENSOR_ADD})
      .set(CUDNN_ATTR_REDUCTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, std::vector{CUDNN_DATA_FLOAT});
  const CudnnObject reduction = std::move(sum).finalized();
  CudnnObject operation(CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR);
  operation.set(CUDNN_ATTR_OPERATION_REDUCTION_DESC, {&reduction})
      .set(CUDNN_ATTR_OPERATION_REDUCTION_XDESC, {&from})
      .set(CUDNN_ATTR_OPERATION_REDUCTION_YDESC, {&to});
  ASSERT_EQ(operation.finalize(), CUDNN_STATUS_SUCCESS);
  const CudnnObject graph = open_graph({&operation}, device.handle).finalized();
  const CudnnObject plan = open_plan(proposals(graph).front(), device.handle).finalized();
  ASSERT_EQ(device.run(plan, {kXId, kYId}, {x.memory.data(), y.memory.data()}, nullptr),
            CUDNN_STATUS_SUCCESS);
  Doubles expected(4);
  for (std::size_t i = 0; i < x.values.size(); ++i) expected[i / 30 % 4] += x.values[i];
  EXPECT_LT(relative_error(y.read(), expected), 1e-6);
}

}  // namespace
}  // namespace lockstep
