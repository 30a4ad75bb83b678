// SPDX-License-Identifier: Apache-2.0
#include "kernels/low_rank.h"

#include <cmath>
#include <limits>
#include <map>
#include <set>

#include <gtest/gtest.h>

#include "tests/kernels/planned_memory.h"

namespace lockstep {
namespace {

// Layouts of weights: plain; output channels in blocks, as in oneDNN's convolutions; both sides in blocks
// with pairs of inputs inside, as in its bf16 kernels; input-major; channels last; fewer elements than a
// vector has lanes.
std::vector<MatrixView> views() {
  return {
      MatrixView({{37, 85}}, {{85, 1}}),
      MatrixView({{3, 16 * 90}, {16, 1}}, {{5, 16 * 18}, {9, 32}, {2, 16}}),
      MatrixView({{4, 2 * 16 * 16 * 4}, {16, 1}}, {{2, 16 * 16 * 4}, {16, 16}, {4, 256}}),
      MatrixView({{2, 32 * 6 * 2}, {32, 2}}, {{6, 64}, {2, 1}}),
      MatrixView({{70, 1}}, {{41, 70}}),
      MatrixView({{24, 9 * 12}}, {{12, 1}, {9, 12}}),
      MatrixView({{5, 3}}, {{3, 1}}),
  };
}

struct Place {
  std::int64_t row;
  std::int64_t column;
  std::int64_t offset;
};
std::vector<Place> places_of(const LowRankShape& shape) {
  std::vector<Place> places;
  for (std::int64_t f = 0; f < shape.fast_count(); ++f) {
    for (std::int64_t s = 0; s < shape.slow_count(); ++s) {
      const std::int64_t offset = shape.fast_offsets()[static_cast<std::size_t>(f / shape.fast())] +
                                  shape.slow_offsets()[static_cast<std::size_t>(s / shape.slow())] +
                                  s % shape.slow() * shape.fast() + f % shape.fast();
      places.push_back(shape.rows_are_fast() ? Place{f, s, offset} : Place{s, f, offset});
    }
  }
  return places;
}

std::size_t at(std::int64_t i) { return static_cast<std::size_t>(i); }

// Element i of the factor's column k; columns have `count` elements.
double element(const Values& factor, std::int64_t count, std::int64_t k, std::int64_t i) {
  return static_cast<double>(factor[at(k * count + i)]);
}

Values scaled(Values values, float factor) {
  for (float& value : values) value *= factor;
  return values;
}

// matrix^T * factor, or matrix * factor, in fp64.
Doubles product(const LowRankShape& shape, std::int64_t rank, const Values& matrix, const Values& factor,
                bool transposed) {
  const std::int64_t from = transposed ? shape.rows() : shape.columns();
  const std::int64_t to = transposed ? shape.columns() : shape.rows();
  Doubles sums(at(rank * to));
  for (const Place& place : places_of(shape)) {
    const std::int64_t i = transposed ? place.row : place.column, o = transposed ? place.column : place.row;
    for (std::int64_t k = 0; k < rank; ++k)
      sums[at(k * to + o)] += static_cast<double>(matrix[at(place.offset)]) * element(factor, from, k, i);
  }
  return sums;
}

void expect_close(const Values& actual, const Doubles& expected, double tolerance) {
  ASSERT_EQ(actual.size(), expected.size());
  for (std::size_t i = 0; i < actual.size(); ++i) ASSERT_NEAR(actual[i], expected[i], tolerance) << i;
}

// Calls test(shape, rank) for each case.
template <typename Test>
void for_each_case(Test test) {
  for (const MatrixView& view : views()) {
    const LowRankShape shape(view);
    for (const std::int64_t rank : {1, 2, 3, 4, 7}) {
      SCOPED_TRACE(fmt::format("{} by {} in tiles of {} by {}, rank {}", shape.rows(), shape.columns(),
                               shape.slow(), shape.fast(), rank));
      test(shape, rank);
    }
  }
}

TEST(LowRank, ShapesHaveTheRowsAndColumnsOfTheLayout) {
  for (const MatrixView& view : views()) {
    std::map<std::int64_t, std::pair<std::int64_t, std::int64_t>> expected;
    for (std::int64_t row = 0; row < view.rows(); ++row) {
      for (std::int64_t column = 0; column < view.columns(); ++column)
        expected[view.row_offset(row) + view.column_offset(column)] = {row, column};
    }
    ASSERT_EQ(std::ssize(expected), view.rows() * view.columns()) << "no layout";
    const LowRankShape shape(view);
    ASSERT_EQ(shape.rows(), view.rows());
    ASSERT_EQ(shape.columns(), view.columns());
    std::map<std::int64_t, std::set<std::int64_t>> row_of, column_of;
    std::set<std::int64_t> seen;
    for (const Place& place : places_of(shape)) {
      ASSERT_TRUE(expected.contains(place.offset));
      seen.insert(place.offset);
      row_of[place.row].insert(expected[place.offset].first);
      column_of[place.column].insert(expected[place.offset].second);
    }
    EXPECT_EQ(seen.size(), expected.size());
    for (const auto& [row, rows] : row_of) EXPECT_EQ(rows.size(), 1u) << row;
    for (const auto& [column, columns] : column_of) EXPECT_EQ(columns.size(), 1u) << column;
  }
}

TEST(LowRank, RowsAreTheProductOfGradientAndResidual) {
  Stream stream(Device{}, StreamUse::compute);
  for_each_case([&](const LowRankShape& shape, std::int64_t rank) {
    const Values gradient = random_values(shape.elements(), "gradient");
    const Values residual = random_values(shape.elements(), "residual");
    const Values columns = random_values(shape.columns() * rank, "columns");
    for (const bool remembers : {true, false}) {
      const GuardedMemory matrix(scaled(gradient, 2048.0f)), old(residual), q(columns);
      GuardedMemory p(at(shape.rows() * rank) * sizeof(float));
      const float loss_scale = 1024, learning_rate = 0.5f;
      cpu_backend().low_rank_rows(stream, {.shape = &shape,
                                           .rank = rank,
                                           .matrix = matrix.floats(),
                                           .loss_scale = &loss_scale,
                                           .learning_rate = &learning_rate,
                                           .residual = remembers ? old.floats() : nullptr,
                                           .columns = q.floats(),
                                           .rows = p.floats()});
      Values sum = gradient;
      for (std::size_t i = 0; remembers && i < sum.size(); ++i) sum[i] += residual[i];
      EXPECT_EQ(matrix.values(), sum);
      expect_close(p.values(), product(shape, rank, sum, columns, false), 2e-5);
      EXPECT_TRUE(p.margin_intact() && matrix.margin_intact());
    }
  });
}

TEST(LowRank, ColumnsAreTheProductWithTheTranspose) {
  Stream stream(Device{}, StreamUse::compute);
  for_each_case([&](const LowRankShape& shape, std::int64_t rank) {
    const Values matrix = random_values(shape.elements(), "matrix");
    const Values rows = random_values(shape.rows() * rank, "rows");
    const GuardedMemory m(matrix), p(rows);
    GuardedMemory q(at(shape.columns() * rank) * sizeof(float));
    cpu_backend().low_rank_columns(
        stream,
        {.shape = &shape, .rank = rank, .matrix = m.floats(), .rows = p.floats(), .columns = q.floats()});
    expect_close(q.values(), product(shape, rank, matrix, rows, true), 2e-5);
    EXPECT_TRUE(q.margin_intact());
  });
}

TEST(LowRank, DecodingKeepsTheUnsentPartAsResidual) {
  Stream stream(Device{}, StreamUse::compute);
  for_each_case([&](const LowRankShape& shape, std::int64_t rank) {
    const Values matrix = random_values(shape.elements(), "matrix");
    const Values rows = random_values(shape.rows() * rank, "rows");
    const Values own = random_values(shape.columns() * rank, "own");
    const Values all = random_values(shape.columns() * rank, "all");
    Doubles left(matrix.size()), decoded(matrix.size());
    for (const Place& place : places_of(shape)) {
      double sent = 0, sum = 0;
      for (std::int64_t k = 0; k < rank; ++k) {
        const double p = element(rows, shape.rows(), k, place.row);
        sent += p * element(own, shape.columns(), k, place.column);
        sum += p * element(all, shape.columns(), k, place.column);
      }
      left[at(place.offset)] = static_cast<double>(matrix[at(place.offset)]) - sent;
      decoded[at(place.offset)] = 8 * sum;
    }
    for (const bool remembers : {true, false}) {
      const GuardedMemory m(matrix), p(rows), q_own(own), q_all(all);
      GuardedMemory residual(matrix.size() * sizeof(float));
      const float loss_scale = 4, learning_rate = 0.5f;
      cpu_backend().low_rank_decode(stream, {.shape = &shape,
                                             .rank = rank,
                                             .rows = p.floats(),
                                             .own_columns = q_own.floats(),
                                             .columns = q_all.floats(),
                                             .loss_scale = &loss_scale,
                                             .learning_rate = &learning_rate,
                                             .matrix = m.floats(),
                                             .residual = remembers ? residual.floats() : nullptr});
      expect_close(m.values(), decoded, 1e-5);
      if (remembers) expect_close(residual.values(), left, 1e-5);
      EXPECT_TRUE(m.margin_intact() && residual.margin_intact());
    }
  });
}

Values orthogonalized(const Values& vectors, std::int64_t count, std::int64_t rank) {
  Stream stream(Device{}, StreamUse::compute);
  const GuardedMemory memory(vectors);
  cpu_backend().low_rank_orthogonalize(stream, {.count = count, .rank = rank, .vectors = memory.floats()});
  EXPECT_TRUE(memory.margin_intact());
  return memory.values();
}

double product_of_columns(const Values& vectors, std::int64_t count, std::int64_t a, std::int64_t b) {
  double sum = 0;
  for (std::int64_t i = 0; i < count; ++i)
    sum += element(vectors, count, a, i) * element(vectors, count, b, i);
  return sum;
}

// For columns of any length. The middle two may nearly depend on the first one and then may become zero.
TEST(LowRank, OrthogonalizedColumnsAreOrthonormalOrZero) {
  constexpr std::int64_t kRank = 4;
  for (const std::int64_t count : {8, 65, 1000}) {
    for (const float size : {1.0f, 1e-15f, 1e12f}) {
      const Values vectors = scaled(random_values(count * kRank, "vectors"), size);
      Values alike = vectors;
      for (std::int64_t i = 0; i < count; ++i) {
        alike[at(count + i)] = 3 * alike[at(i)];
        alike[at(2 * count + i)] = alike[at(i)] * (1 + 1e-6f * static_cast<float>(i % 7));
      }
      for (const bool are_alike : {false, true}) {
        const Values made = orthogonalized(are_alike ? alike : vectors, count, kRank);
        for (std::int64_t a = 0; a < kRank; ++a) {
          const double squared = product_of_columns(made, count, a, a);
          if (!are_alike || a % 3 == 0 || squared != 0) {
            EXPECT_NEAR(squared, 1, 1e-6) << count << " of " << size;
          }
          for (std::int64_t b = 0; b < a; ++b)
            EXPECT_NEAR(product_of_columns(made, count, a, b), 0, 1e-6) << count << " of " << size;
        }
      }
    }
  }
}

TEST(LowRank, ColumnsOfZerosStayZeroUntilTheyAreRevived) {
  constexpr std::int64_t kCount = 100;
  Values vectors = random_values(kCount * 3, "vectors");
  std::fill(vectors.begin() + kCount, vectors.begin() + 2 * kCount, 0.0f);
  const Values made = orthogonalized(vectors, kCount, 3);
  for (std::int64_t i = kCount; i < 2 * kCount; ++i) ASSERT_EQ(made[at(i)], 0);

  Stream stream(Device{}, StreamUse::compute);
  const auto revived = [&](const Values& from, PhiloxKey key) {
    const GuardedMemory memory(from);
    cpu_backend().low_rank_revive(stream,
                                  {.count = kCount, .rank = 3, .key = key, .vectors = memory.floats()});
    return memory.values();
  };
  const Values alive = revived(made, key_for(1, "a"));
  EXPECT_EQ(Values(alive.begin(), alive.begin() + kCount), Values(made.begin(), made.begin() + kCount));
  EXPECT_EQ(Values(alive.begin() + 2 * kCount, alive.end()), Values(made.begin() + 2 * kCount, made.end()));
  const std::set<float> fresh(alive.begin() + kCount, alive.begin() + 2 * kCount);
  EXPECT_GT(fresh.size(), 95u);
  EXPECT_GE(*fresh.begin(), -1.0f);
  EXPECT_LT(*fresh.rbegin(), 1.0f);
  EXPECT_EQ(revived(made, key_for(1, "a")), alive);
  EXPECT_NE(revived(made, key_for(1, "b")), alive);
  EXPECT_EQ(revived(alive, key_for(1, "b")), alive) << "columns that are not zero must stay unchanged";
}

// The exchange of matrix m by one rank, with factors p and q. remembered: the old residual; null: zeros.
void run_alone(Stream& stream, const LowRankShape& shape, std::int64_t rank, const GuardedMemory& m,
               const GuardedMemory& p, const GuardedMemory& q, const float* remembered, float* residual) {
  Backend& backend = cpu_backend();
  backend.low_rank_rows(stream, {.shape = &shape,
                                 .rank = rank,
                                 .matrix = m.floats(),
                                 .residual = remembered,
                                 .columns = q.floats(),
                                 .rows = p.floats()});
  backend.low_rank_orthogonalize(stream, {.count = shape.rows(), .rank = rank, .vectors = p.floats()});
  backend.low_rank_columns(
      stream,
      {.shape = &shape, .rank = rank, .matrix = m.floats(), .rows = p.floats(), .columns = q.floats()});
  backend.low_rank_revive(stream, {.count = shape.columns(), .rank = rank, .vectors = q.floats()});
  backend.low_rank_decode(stream, {.shape = &shape,
                                   .rank = rank,
                                   .rows = p.floats(),
                                   .own_columns = q.floats(),
                                   .columns = q.floats(),
                                   .matrix = m.floats(),
                                   .residual = residual});
}

TEST(LowRank, NonFiniteValuesReachTheResult) {
  Stream stream(Device{}, StreamUse::compute);
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  for_each_case([&](const LowRankShape& shape, std::int64_t rank) {
    for (const float bad : {std::nanf(""), kInfinity, -kInfinity}) {
      Values gradient = random_values(shape.elements(), "gradient");
      gradient[gradient.size() / 2] = bad;
      const GuardedMemory m(gradient), q(random_values(shape.columns() * rank, "columns"));
      GuardedMemory p(at(shape.rows() * rank) * sizeof(float)), residual(gradient.size() * sizeof(float));
      run_alone(stream, shape, rank, m, p, q, nullptr, residual.floats());
      EXPECT_FALSE(std::ranges::all_of(m.values(), [](float value) { return std::isfinite(value); })) << bad;
    }
  });
}

TEST(LowRank, ThreadsChangeNoBit) {
  for_each_case([&](const LowRankShape& shape, std::int64_t rank) {
    const auto made = [&](int threads) {
      Stream stream(Device{}, StreamUse::communication);
      stream.set_threads(threads);
      const GuardedMemory m(random_values(shape.elements(), "matrix")),
          residual(random_values(shape.elements(), "residual")),
          q(random_values(shape.columns() * rank, "columns"));
      GuardedMemory p(at(shape.rows() * rank) * sizeof(float));
      run_alone(stream, shape, rank, m, p, q, residual.floats(), residual.floats());
      stream.synchronize();
      Values all = m.values();
      for (const GuardedMemory* memory : std::initializer_list<const GuardedMemory*>{&p, &q, &residual}) {
        const Values more = memory->values();
        all.insert(all.end(), more.begin(), more.end());
      }
      return all;
    };
    EXPECT_EQ(made(1), made(3));
  });
}

}  // namespace
}  // namespace lockstep
