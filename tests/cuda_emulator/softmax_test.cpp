// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/softmax.h"

#include <gtest/gtest.h>

#include "tests/cuda_emulator/device_memory.h"

namespace lockstep {
namespace {

TEST(CudaSoftmax, EqualsTheCpu) {
  Stream stream(Device{}, StreamUse::compute);
  Backend& cpu = backend_for(Device{});
  for (const DType type : kElementTypes) {
    for (const SoftmaxShape& size : {SoftmaxShape{1, 1, 1}, {7, 70, 1}, {3, 5, 9}}) {
      SoftmaxShape shape = size;
      const std::int64_t count = shape.rows() * shape.channels;
      SCOPED_TRACE(fmt::format("{} rows of {} in {}", shape.rows(), shape.channels, name_of(type)));
      const auto elements = static_cast<std::size_t>(count);
      const Values x = rounded(random_values(count, "x"), type);
      const Values y_gradient = rounded(random_values(count, "y gradient"), type);
      Values y(elements), x_gradient(elements);
      cpu.softmax_forward(stream, {shape, x.data(), y.data()});
      const DeviceMemory x_memory(x, type), given(y_gradient, type), y_memory(elements * size_of(type)),
          result(elements * size_of(type));
      shape.type = type;
      const double relative = 1e-6 + 1.01 * precision_of(type);
      const Values emulated = in_any_order([&] {
        cuda_softmax_forward(stream, {shape, x_memory.data(), y_memory.data()});
        return y_memory.values(type);
      });
      expect_near(emulated, widen(y), relative, 1e-6);
      SoftmaxShape wide = shape;
      wide.type = DType::f32;
      cpu.softmax_backward(stream, {wide, emulated.data(), y_gradient.data(), x_gradient.data()});
      expect_near(in_any_order([&] {
                    cuda_softmax_backward(stream, {shape, y_memory.data(), given.data(), result.data()});
                    return result.values(type);
                  }),
                  widen(x_gradient), relative, 1e-6);
    }
  }
}

}  // namespace
}  // namespace lockstep
