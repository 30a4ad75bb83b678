// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/low_rank.h"

#include <gtest/gtest.h>

#include "kernels/backend.h"
#include "tests/cuda_emulator/device_memory.h"

namespace lockstep {
namespace {

// All results of a PowerSGD step for one matrix, by the kernels of the CPU or of the GPU.
struct Factorization {
  explicit Factorization(const LowRankShape& of, std::int64_t columns)
      : shape(of),
        rank(columns),
        matrix(random_values(shape.elements(), "gradient"), DType::f32),
        residual(random_values(shape.elements(), "residual"), DType::f32),
        next_residual(static_cast<std::size_t>(shape.elements()) * sizeof(float)),
        rows(static_cast<std::size_t>(rank * shape.rows()) * sizeof(float)),
        columns_before(random_values(rank * shape.columns(), "columns"), DType::f32),
        own(static_cast<std::size_t>(rank * shape.columns()) * sizeof(float)) {}

  // Calls each operation by one of the two tables of functions.
  template <typename Run>
  Values run(Run&& operations) {
    matrix.write(random_values(shape.elements(), "gradient"), DType::f32);
    operations(LowRankRows{.shape = &shape,
                           .rank = rank,
                           .matrix = matrix.as<float>(),
                           .loss_scale = &loss_scale,
                           .learning_rate = &learning_rate,
                           .residual = residual.as<float>(),
                           .columns = columns_before.as<float>(),
                           .rows = rows.as<float>()});
    operations(LowRankOrthogonalize{.count = shape.rows(), .rank = rank, .vectors = rows.as<float>()});
    operations(LowRankColumns{.shape = &shape,
                              .rank = rank,
                              .matrix = matrix.as<float>(),
                              .rows = rows.as<float>(),
                              .columns = own.as<float>()});
    operations(LowRankDecode{.shape = &shape,
                             .rank = rank,
                             .rows = rows.as<float>(),
                             .own_columns = own.as<float>(),
                             .columns = columns_before.as<float>(),
                             .loss_scale = &loss_scale,
                             .learning_rate = &learning_rate,
                             .matrix = matrix.as<float>(),
                             .residual = next_residual.as<float>()});
    Values all;
    for (const DeviceMemory* memory :
         std::initializer_list<const DeviceMemory*>{&matrix, &next_residual, &rows, &own}) {
      const Values more = memory->values(DType::f32);
      all.insert(all.end(), more.begin(), more.end());
    }
    return all;
  }

  LowRankShape shape;
  std::int64_t rank;
  float loss_scale = 4, learning_rate = 0.25f;
  DeviceMemory matrix, residual, next_residual, rows, columns_before, own;
};

struct OnCpu {
  Stream& stream;
  void operator()(const LowRankRows& a) const { backend_for(Device{}).low_rank_rows(stream, a); }
  void operator()(const LowRankOrthogonalize& a) const {
    backend_for(Device{}).low_rank_orthogonalize(stream, a);
  }
  void operator()(const LowRankColumns& a) const { backend_for(Device{}).low_rank_columns(stream, a); }
  void operator()(const LowRankDecode& a) const { backend_for(Device{}).low_rank_decode(stream, a); }
};
struct OnGpu {
  Stream& stream;
  void operator()(const LowRankRows& a) const { cuda_low_rank_rows(stream, a); }
  void operator()(const LowRankOrthogonalize& a) const { cuda_low_rank_orthogonalize(stream, a); }
  void operator()(const LowRankColumns& a) const { cuda_low_rank_columns(stream, a); }
  void operator()(const LowRankDecode& a) const { cuda_low_rank_decode(stream, a); }
};

TEST(CudaLowRank, FactorsEqualTheCpu) {
  Stream stream(Device{}, StreamUse::compute);
  const MatrixView views[] = {MatrixView({{7, 300}}, {{300, 1}}), MatrixView({{64, 27}}, {{27, 1}}),
                              MatrixView({{33, 9 * 32}}, {{32, 1}, {9, 32}})};
  for (const MatrixView& view : views) {
    for (const std::int64_t rank : {1, 2, 3, 4, 6}) {
      SCOPED_TRACE(fmt::format("{} by {}, rank {}", view.rows(), view.columns(), rank));
      Factorization factorization(LowRankShape(view), rank);
      const Values expected = factorization.run(OnCpu{stream});
      const Values found = in_any_order([&] { return factorization.run(OnGpu{stream}); });
      ASSERT_EQ(found.size(), expected.size());
      for (std::size_t i = 0; i < found.size(); ++i)
        ASSERT_NEAR(found[i], expected[i], 1e-4 * (1 + std::abs(expected[i]))) << "at " << i;
    }
  }
}

TEST(CudaLowRank, ColumnsOfZerosAreRevivedAsOnTheCpu) {
  Stream stream(Device{}, StreamUse::compute);
  Values columns = random_values(3 * 500, "columns");
  std::fill(columns.begin() + 500, columns.begin() + 1000, 0.0f);
  DeviceMemory on_cpu(columns, DType::f32), on_gpu(columns, DType::f32);
  const PhiloxKey key = key_for(3, "start");
  backend_for(Device{}).low_rank_revive(stream,
                                        {.count = 500, .rank = 3, .key = key, .vectors = on_cpu.as<float>()});
  const Values revived = in_any_order([&] {
    on_gpu.write(columns, DType::f32);
    cuda_low_rank_revive(stream, {.count = 500, .rank = 3, .key = key, .vectors = on_gpu.as<float>()});
    return on_gpu.values(DType::f32);
  });
  EXPECT_EQ(revived, on_cpu.values(DType::f32));
  EXPECT_NE(revived, columns);
}

}  // namespace
}  // namespace lockstep
