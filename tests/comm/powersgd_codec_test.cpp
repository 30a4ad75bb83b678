// SPDX-License-Identifier: Apache-2.0
#include <cmath>

#include <gtest/gtest.h>

#include "comm/codecs/codec.h"
#include "tests/comm/codec_state.h"
#include "tests/comm/step_counts.h"

namespace lockstep {
namespace {

bool compressed(const Parameter& parameter) { return is_compressed({.kind = &kPowerSgdCodec}, parameter); }

// Each rank's gradient is a matrix of full rank; the sum over the ranks has rank two.
MakeGradient two_dimensions(const std::vector<Parameter>& parameters, int ranks, int step) {
  return [=, &parameters](int rank, std::int64_t element) {
    std::size_t of = parameters.size() - 1;
    while (parameters[of].offset > element) --of;
    const std::int64_t i = element - parameters[of].offset;
    const std::int64_t columns = parameters[of].layout.matrix_view().columns();
    const std::int64_t row = i / columns, column = i % columns;
    float value = 0;
    for (int k = 0; k < 2; ++k) {
      value += made_up_gradient(0, 10 * step + k, 7000 + row) * made_up_gradient(1, 10 * step + k, column);
    }
    const float noise = made_up_gradient(2, step, element);
    if (ranks == 1) return value;
    return value / static_cast<float>(ranks) + (rank == 0 ? noise : rank == 1 ? -noise : 0.0f);
  };
}

TEST(PowerSgdCodec, IsExactIfTheRankSuffices) {
  for (const std::vector<int>& node_of : node_dealings()) {
    const int ranks = static_cast<int>(node_of.size());
    run_thread_ranks(
        ranks,
        [&](Communicator& communicator) {
          std::vector<Parameter> parameters = some_parameters();
          BucketOptions options = codec_buckets(kPowerSgdCodec, {{"error_feedback", 0}});
          GradientBuckets buckets(parameters, communicator, options);
          for (int step = 0; step < 3; ++step) {
            const MakeGradient gradient = two_dimensions(parameters, ranks, step);
            run_step(buckets, parameters, communicator.rank(), gradient);
            for (const Parameter& parameter : parameters) {
              for (std::int64_t i = 0; i < parameter.layout.shape().elements(); ++i) {
                float sum = 0;
                for (int rank = 0; rank < ranks; ++rank) sum += gradient(rank, parameter.offset + i);
                CHECK(std::abs(gradient_at(parameter, i) - sum) < 2e-4f, "{}[{}] is {}, expected {}",
                      parameter.name, i, gradient_at(parameter, i), sum);
              }
            }
          }
        },
        node_of);
  }
}

// Zero gradients give no start vectors; later gradients must be found all the same.
TEST(PowerSgdCodec, CompressesGradientsAfterZeroGradients) {
  run_thread_ranks(
      2,
      [](Communicator& communicator) {
        std::vector<Parameter> parameters = some_parameters();
        GradientBuckets buckets(parameters, communicator, codec_buckets(kPowerSgdCodec));
        run_step(buckets, parameters, communicator.rank(), [](int, std::int64_t) { return 0.0f; });
        for (const float value : gradients_of(parameters)) CHECK(value == 0);
        const MakeGradient gradient = two_dimensions(parameters, 2, 0);
        run_step(buckets, parameters, communicator.rank(), gradient);
        for (const Parameter& parameter : parameters) {
          const float sum = gradient(0, parameter.offset) + gradient(1, parameter.offset);
          CHECK(std::abs(gradient_at(parameter, 0) - sum) < 1e-4f, "{} is {}, expected {}", parameter.name,
                gradient_at(parameter, 0), sum);
        }
      },
      std::vector<int>{0, 1});
}

double squared_norm(const std::vector<float>& values) {
  double sum = 0;
  for (const float value : values) sum += static_cast<double>(value) * static_cast<double>(value);
  return sum;
}

// A residual is never longer than the sum that was compressed: M - P P^T M, with orthonormal P.
TEST(PowerSgdCodec, ResidualsAreNeverLongerThanTheCompressedSum) {
  run_thread_ranks(
      3,
      [](Communicator& communicator) {
        std::vector<Parameter> parameters = some_parameters();
        GradientBuckets buckets(parameters, communicator, codec_buckets(kPowerSgdCodec));
        for (int step = 0; step < 6; ++step) {
          const CodecState before = state_of(buckets);
          run_step(buckets, parameters, communicator.rank(), made_up_gradients(step));
          const CodecState after = state_of(buckets);
          for (const Parameter& parameter : parameters) {
            if (!compressed(parameter)) continue;
            std::vector<float> had = before.at(parameter.name + ".update_residual");
            for (std::size_t i = 0; i < had.size(); ++i)
              had[i] += made_up_gradient(communicator.rank(), step,
                                         parameter.offset + static_cast<std::int64_t>(i));
            const double left = squared_norm(after.at(parameter.name + ".update_residual"));
            CHECK(left <= (1 + 1e-5) * squared_norm(had), "{} of {}", left, squared_norm(had));
            CHECK(left > 0);
          }
        }
      },
      std::vector<int>{0, 1, 2});
}

// With the same gradient in every step, the power iteration finds its two largest dimensions.
TEST(PowerSgdCodec, StartsFromThePreviousFactors) {
  run_thread_ranks(
      2,
      [](Communicator& communicator) {
        std::vector<Parameter> parameters = some_parameters();
        GradientBuckets buckets(parameters, communicator,
                                codec_buckets(kPowerSgdCodec, {{"error_feedback", 0}}));
        const MakeGradient large = two_dimensions(parameters, 1, 0);
        const auto gradient = [&](int rank, std::int64_t element) {
          return large(rank, element) + 0.2f * made_up_gradient(0, 1, element);
        };
        std::vector<double> errors;
        for (int step = 0; step < 8; ++step) {
          run_step(buckets, parameters, communicator.rank(), gradient);
          double error = 0;
          for (const Parameter& parameter : parameters) {
            for (std::int64_t i = 0; i < parameter.layout.shape().elements(); ++i) {
              const float sum = gradient(0, parameter.offset + i) + gradient(1, parameter.offset + i);
              error += std::pow(static_cast<double>(gradient_at(parameter, i) - sum), 2);
            }
          }
          errors.push_back(error);
        }
        CHECK(errors.back() < 0.98 * errors.front(), "last error {}, first error {}", errors.back(),
              errors.front());
        for (std::size_t i = 1; i < errors.size(); ++i) CHECK(errors[i] <= 1.0001 * errors[i - 1]);
      },
      std::vector<int>{0, 1});
}

TEST(PowerSgdCodec, UsesDenseSumsUntilItsStartStep) {
  run_thread_ranks(
      2,
      [](Communicator& communicator) {
        std::vector<Parameter> parameters = some_parameters();
        GradientBuckets buckets(parameters, communicator, codec_buckets(kPowerSgdCodec, {{"start_step", 2}}));
        for (int step = 0; step < 4; ++step) {
          run_step(buckets, parameters, communicator.rank(), made_up_gradients(step));
          bool exact = true;
          for (const Parameter& parameter : parameters) {
            for (std::int64_t i = 0; i < parameter.layout.shape().elements(); ++i) {
              const std::int64_t element = parameter.offset + i;
              exact = exact && gradient_at(parameter, i) ==
                                   made_up_gradient(0, step, element) + made_up_gradient(1, step, element);
            }
          }
          CHECK(exact == (step < 2), "step {}", step);
        }
      },
      std::vector<int>{0, 1});
}

// A start step that fp32 cannot count to.
TEST(PowerSgdCodec, StartStepMayExceedTwoToThe24) {
  constexpr std::int64_t kStart = (1 << 24) + 2;
  run_thread_ranks(
      2,
      [](Communicator& communicator) {
        std::vector<Parameter> parameters = some_parameters();
        GradientBuckets buckets(parameters, communicator,
                                codec_buckets(kPowerSgdCodec, {{"start_step", static_cast<double>(kStart)}}));
        set_step_counts(buckets, kStart - 3);
        const Parameter& matrix = parameters.front();
        for (std::int64_t step = kStart - 3; step < kStart + 2; ++step) {
          run_step(buckets, parameters, communicator.rank(), made_up_gradients(0));
          bool exact = true;
          for (std::int64_t i = 0; i < matrix.layout.shape().elements(); ++i) {
            const std::int64_t element = matrix.offset + i;
            exact = exact && gradient_at(matrix, i) ==
                                 made_up_gradient(0, 0, element) + made_up_gradient(1, 0, element);
          }
          CHECK(exact == (step < kStart), "step {}", step);
        }
      },
      std::vector<int>{0, 1});
}

// In an all-reduce each of two ranks sends as many bytes as it has.
TEST(PowerSgdCodec, SendsTwoFactorsPerBucketInTwoCollectives) {
  for (const double rank : {1.0, 2.0, 3.0}) {
    run_thread_ranks(
        2,
        [rank](Communicator& communicator) {
          std::vector<Parameter> parameters = some_parameters();
          const BucketOptions options = codec_buckets(kPowerSgdCodec, {{"rank", rank}});
          GradientBuckets buckets(parameters, communicator, options);
          std::int64_t elements = 0;
          std::uint64_t collectives = 0;
          for (const Bucket& bucket : buckets.buckets()) {
            bool dense = false, factors = false;
            for (std::size_t i = bucket.first_parameter; i < bucket.last_parameter; ++i) {
              const MatrixView view = parameters[i].layout.matrix_view();
              if (is_compressed(options.exchange, parameters[i])) {
                elements += static_cast<std::int64_t>(rank) * (view.rows() + view.columns());
                factors = true;
              } else {
                elements += flat_elements(parameters, i, buckets.buckets().back().end);
                dense = true;
              }
            }
            collectives += (dense ? 1 : 0) + (factors ? 2 : 0);
          }
          communicator.stream().synchronize();
          const Traffic before = communicator.traffic();
          run_pass(buckets, parameters, communicator.rank(), [](int, std::int64_t) { return 1.0f; });
          const Traffic after = communicator.traffic();
          CHECK(after.sent_bytes - before.sent_bytes == static_cast<std::uint64_t>(4 * elements),
                "{} bytes for {} elements", after.sent_bytes - before.sent_bytes, elements);
          CHECK(after.operations - before.operations == collectives);
        },
        std::vector<int>{0, 1});
  }
}

}  // namespace
}  // namespace lockstep
