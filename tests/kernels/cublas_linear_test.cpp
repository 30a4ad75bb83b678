// SPDX-License-Identifier: Apache-2.0
//
// Results of cuBLASLt's plans on a real GPU: each candidate against the reference in double precision.
#include <gtest/gtest.h>

#include "core/cuda/check.h"
#include "kernels/cuda/linear_plan.h"
#include "tests/kernels/affine_reference.h"
#include "tests/kernels/device_tensor.h"

namespace lockstep {
namespace {

class CublasLinear : public testing::TestWithParam<Precision> {
 protected:
  void SetUp() override {
    const CudaStatus status = cuda_status();
    if (status.devices.empty()) GTEST_SKIP() << "no CUDA device: " << status.message;
  }

  LinearProblem problem(LinearShape shape, AffineDirection direction) const {
    shape.tf32 = GetParam().tf32;
    return {.shape = shape, .direction = direction, .dtype = GetParam().dtype};
  }
};

const LinearShape kShapes[] = {{.batch = 64, .in_features = 512, .out_features = 10},
                               {.batch = 96, .in_features = 784, .out_features = 512},
                               {.batch = 33, .in_features = 120, .out_features = 200},
                               {.batch = 7, .in_features = 25, .out_features = 41}};

// The layer's tensors on the host and the device.
struct Tensors {
  Tensors(const LinearShape& s, DType dtype, Stream& stream)
      : x({s.batch, s.in_features, 1, 1}, dtype, stream),
        w({s.out_features, s.in_features, 1, 1}, dtype, stream),
        y({s.batch, s.out_features, 1, 1}, dtype, stream),
        x_values(random_values(s.batch * s.in_features, "input")),
        w_values(random_values(s.out_features * s.in_features, "weights")),
        y_values(random_values(s.batch * s.out_features, "gradient")),
        memory(std::size_t{64} << 20, stream.device()) {
    x.write(x_values);
    w.write(w_values);
    y.write(y_values);
  }

  AffineOperands operands() {
    return {.x = x.data(), .w = w.data(), .y = y.data(), .scratch = memory.data()};
  }

  DeviceTensor x, w, y;
  Values x_values, w_values, y_values;
  Buffer memory;
};

// Runs every candidate of a problem: prepare() before each, check() after it.
struct Candidates {
  Tensors& tensors;
  Stream& stream;
  Write write = Write::overwrite;

  template <typename Prepare, typename Check>
  void each(const LinearProblem& problem, Prepare prepare, Check check) {
    const CublasHandle handle = make_cublas_handle();
    const PlanLimits limits{.workspace_bytes = tensors.memory.bytes(), .plans = 100};
    for (LinearPlan& plan : plan_linear(problem, handle.get(), limits)) {
      prepare();
      AffineOperands operands = tensors.operands();
      operands.write = write;
      plan.execute(handle.get(), static_cast<cudaStream_t>(stream.native()), operands);
      SCOPED_TRACE(describe(problem) + ", " + plan.tag());
      check();
    }
  }
};

TEST_P(CublasLinear, ForwardMatchesTheReference) {
  Stream stream({.kind = DeviceKind::cuda, .index = 0}, StreamUse::compute);
  make_current(stream.device());
  for (const LinearShape& shape : kShapes) {
    Tensors t(shape, GetParam().dtype, stream);
    const Doubles expected =
        reference_forward(as_convolution(shape), widen(t.x_values), widen(t.w_values), {});
    Candidates{t, stream}.each(
        problem(shape, AffineDirection::forward), [&] { t.y.poison(); },
        [&] { EXPECT_LT(relative_error(t.y.read(), expected), GetParam().tolerance); });
  }
}

TEST_P(CublasLinear, BackwardDataMatchesTheReference) {
  Stream stream({.kind = DeviceKind::cuda, .index = 0}, StreamUse::compute);
  make_current(stream.device());
  for (const LinearShape& shape : kShapes) {
    Tensors t(shape, GetParam().dtype, stream);
    const Doubles expected =
        reference_backward_data(as_convolution(shape), widen(t.y_values), widen(t.w_values));
    Candidates{t, stream}.each(
        problem(shape, AffineDirection::backward_data), [&] { t.x.poison(); },
        [&] { EXPECT_LT(relative_error(t.x.read(), expected), GetParam().tolerance); });
  }
}

TEST_P(CublasLinear, BackwardWeightsMatchesTheReference) {
  Stream stream({.kind = DeviceKind::cuda, .index = 0}, StreamUse::compute);
  make_current(stream.device());
  for (const LinearShape& shape : kShapes) {
    Tensors t(shape, GetParam().dtype, stream);
    const Doubles expected =
        reference_backward_weights(as_convolution(shape), widen(t.x_values), widen(t.y_values));
    Candidates{t, stream}.each(
        problem(shape, AffineDirection::backward_weights), [&] { t.w.poison(); },
        [&] { EXPECT_LT(relative_error(t.w.read(), expected), GetParam().tolerance); });
  }
}

TEST_P(CublasLinear, AddsToAGradient) {
  Stream stream({.kind = DeviceKind::cuda, .index = 0}, StreamUse::compute);
  make_current(stream.device());
  for (const LinearShape& shape : kShapes) {
    Tensors t(shape, GetParam().dtype, stream);
    Doubles expected =
        reference_backward_weights(as_convolution(shape), widen(t.x_values), widen(t.y_values));
    const Doubles before = widen(t.w_values);
    for (std::size_t i = 0; i < expected.size(); ++i) expected[i] += before[i];
    Candidates{t, stream, Write::accumulate}.each(
        problem(shape, AffineDirection::backward_weights), [&] { t.w.write(t.w_values); },
        [&] { EXPECT_LT(relative_error(t.w.read(), expected), GetParam().tolerance); });
  }
}

INSTANTIATE_TEST_SUITE_P(Precisions, CublasLinear, testing::ValuesIn(kPrecisions),
                         [](const auto& precision) { return precision.param.name; });

}  // namespace
}  // namespace lockstep
