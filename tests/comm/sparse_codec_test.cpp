// SPDX-License-Identifier: Apache-2.0
#include <cmath>

#include <gtest/gtest.h>

#include "comm/codecs/codec.h"
#include "kernels/sparse.h"
#include "tests/comm/codec_state.h"
#include "tests/thinning.h"

namespace lockstep {
namespace {

// The bytes that each of `ranks` single-rank nodes sends: two heads and a word for each chosen element, to
// every peer.
std::uint64_t sparse_bytes(std::span<const Parameter> parameters, double density, std::int64_t ranks) {
  std::int64_t words = 0;
  for (const Parameter& parameter : parameters) {
    if (!takes_large_tensors({}, parameter)) continue;
    const std::int64_t elements = parameter.layout.shape().elements();
    CHECK(elements <= SparseMessage::kPage);
    words += 2 + std::max<std::int64_t>(1, std::llround(density * static_cast<double>(elements)));
  }
  return static_cast<std::uint64_t>(4 * words * (ranks - 1));
}

std::uint64_t sent_in_step(Communicator& communicator, GradientBuckets& buckets,
                           std::span<const Parameter> parameters, int step) {
  communicator.stream().synchronize();
  const std::uint64_t before = communicator.traffic().sent_bytes;
  run_step(buckets, parameters, communicator.rank(), made_up_gradients(step));
  return communicator.traffic().sent_bytes - before;
}

// The bytes that these ranks send in an all-reduce of the dense parameters.
std::uint64_t dense_bytes(Communicator& communicator) {
  std::vector<Parameter> parameters = some_parameters();
  GradientBuckets fewer(parameters, communicator, codec_buckets(kTopKCodec, {{"density", 1e-6}}));
  return sent_in_step(communicator, fewer, parameters, 0) -
         sparse_bytes(parameters, 1e-6, communicator.size());
}

TEST(SparseCodec, SendsOneWordPerChosenElement) {
  for (const int ranks : {2, 3}) {
    std::vector<int> node_of(static_cast<std::size_t>(ranks));
    for (int rank = 0; rank < ranks; ++rank) node_of[static_cast<std::size_t>(rank)] = rank;
    run_thread_ranks(
        ranks,
        [ranks](Communicator& communicator) {
          const std::uint64_t dense = dense_bytes(communicator);
          std::vector<Parameter> parameters = some_parameters();
          for (const double density : {0.001, 0.01, 0.3}) {
            GradientBuckets buckets(parameters, communicator,
                                    codec_buckets(kTopKCodec, {{"density", density}}));
            CHECK(sent_in_step(communicator, buckets, parameters, 0) ==
                  dense + sparse_bytes(parameters, density, ranks));
          }
        },
        node_of);
  }
}

TEST(SparseCodec, DgcSendsLessInEachStepOfItsWarmUp) {
  run_thread_ranks(
      2,
      [](Communicator& communicator) {
        const std::uint64_t dense = dense_bytes(communicator);
        std::vector<Parameter> parameters = some_parameters();
        GradientBuckets buckets(
            parameters, communicator,
            codec_buckets(kDgcCodec, {{"density", 0.002}, {"warmup_steps", 8}, {"warmup_density", 0.3}}));
        double density = 0.3;
        for (int step = 0; step < 10; ++step) {
          if (step >= 8) density = 0.002;
          CHECK(sent_in_step(communicator, buckets, parameters, step) ==
                    dense + sparse_bytes(parameters, density, 2),
                "step {}", step);
          density *= std::pow(0.002 / 0.3, 1.0 / 8);
        }
      },
      std::vector<int>{0, 1});
}

// 15 epochs of 60000 images, 4 x 128 a step.
TEST(SparseCodec, SendsAFewPercentOfTheBytesOfADenseTraining) {
  if (kOneOf > 1) GTEST_SKIP() << "too slow under a sanitizer; the optimised build counts bytes";
  constexpr int kSteps = 1755;
  struct Expected {
    const ExchangeKind& kind;
    double least, most;
  };
  for (const Expected& expected : {Expected{kTopKCodec, 45, 50}, Expected{kDgcCodec, 60, 70}}) {
    run_thread_ranks(
        2,
        [&expected](Communicator& communicator) {
          const Shape shape[] = {{100, 100}};
          std::vector<Parameter> parameters = shaped_parameters(shape);
          GradientBuckets buckets(parameters, communicator, {.exchange = {.kind = &expected.kind}});
          std::uint64_t sent = 0;
          for (int step = 0; step < kSteps; ++step)
            sent += sent_in_step(communicator, buckets, parameters, step);
          const double dense = static_cast<double>(kSteps) * 10000 * sizeof(float);  // between two nodes
          const double fewer = dense / static_cast<double>(sent);
          CHECK(fewer > expected.least && fewer < expected.most, "{} sends {} times fewer bytes",
                expected.kind.name, fewer);
        },
        std::vector<int>{0, 1});
  }
}

// Each element of each rank either waits, with momentum added, or was sent and is cleared (algorithm 1),
// except for the velocity's share that the density gives: 0.05 / (1 - 0.75).
TEST(SparseCodec, MomentumIsAddedBeforeElementsAreChosen) {
  for (const auto& [kind, nesterov] :
       {std::pair{&kDgcCodec, false}, {&kDgcCodec, true}, {&kTopKCodec, true}}) {
    run_thread_ranks(
        2,
        [kind = kind, nesterov = nesterov](Communicator& communicator) {
          std::vector<Parameter> parameters = some_parameters();
          BucketOptions options = codec_buckets(*kind, {{"density", 0.05}});
          options.momentum = {.momentum = 0.75, .nesterov = nesterov};
          GradientBuckets buckets(parameters, communicator, options);
          for (int step = 0; step < 4; ++step) {
            const CodecState before = state_of(buckets);
            run_step(buckets, parameters, communicator.rank(), made_up_gradients(step));
            const CodecState after = state_of(buckets);
            for (const Parameter& parameter : parameters) {
              const bool compressed = takes_large_tensors({}, parameter);
              CHECK(parameter.gradient_has_momentum == compressed);
              if (!compressed) continue;
              const auto elements = static_cast<std::size_t>(parameter.layout.shape().elements());
              std::vector<float> sent(elements);
              std::size_t count = 0;
              for (std::size_t i = 0; i < elements; ++i) {
                const auto of = [&](const CodecState& state, const char* what) {
                  return state.at(parameter.name + what)[i];
                };
                const float g = made_up_gradient(communicator.rank(), step,
                                                 parameter.offset + static_cast<std::int64_t>(i));
                const float u = 0.75f * of(before, ".velocity") + g;
                const float v = of(before, ".update_residual") + (nesterov ? g + 0.75f * u : u);
                const float rounding = v - static_cast<float>(BFloat16(v));
                const float left = of(after, ".velocity");
                if (std::abs(left - 0.2f * u) < std::abs(left - u)) {
                  CHECK(std::abs(left - 0.2f * u) < 1e-5f);
                  sent[i] = v - of(after, ".update_residual");
                  ++count;
                  CHECK(std::abs(of(after, ".update_residual") - rounding) < 1e-5f);
                } else {
                  CHECK(std::abs(of(after, ".update_residual") - v) < 1e-5f);
                  CHECK(std::abs(left - u) < 1e-5f);
                }
              }
              CHECK(count > elements / 25 && count <= elements / 20 + 1, "{} of {}", count, elements);
              communicator.all_reduce(sent.data(), sent.size(), DType::f32, ReduceOp::sum);
              communicator.stream().synchronize();
              for (std::size_t i = 0; i < elements; ++i)
                CHECK(std::abs(gradient_at(parameter, static_cast<std::int64_t>(i)) - sent[i]) < 1e-5f);
            }
          }
        },
        std::vector<int>{0, 1});
  }
}

// The threshold is for the sum over ranks: each rank's gradient may be as long as its part of a sum of
// independent ones.
TEST(SparseCodec, DgcClipsTheGradientOfEachRank) {
  run_thread_ranks(
      4,
      [](Communicator& communicator) {
        std::vector<Parameter> parameters = some_parameters();
        GradientBuckets buckets(parameters, communicator,
                                codec_buckets(kDgcCodec, {{"density", 1}, {"clip", 2}}));
        run_step(buckets, parameters, communicator.rank(),
                 [](int rank, std::int64_t) { return rank == 0 ? 100.0f : 0.0f; });
        for (const Parameter& parameter : parameters) {
          const std::vector<float> sum = gradients_of({&parameter, 1});
          double squares = 0;
          for (const float value : sum) squares += static_cast<double>(value) * static_cast<double>(value);
          if (takes_large_tensors({}, parameter))
            CHECK(std::abs(std::sqrt(squares) - 1) < 4e-3);  // up to rounding
          if (!takes_large_tensors({}, parameter)) CHECK(sum[0] == 100);
        }
      },
      std::vector<int>{0, 1, 2, 3});
}

TEST(SparseCodec, WithoutErrorFeedbackUnsentGradientsAreDropped) {
  run_thread_ranks(
      2,
      [](Communicator& communicator) {
        std::vector<Parameter> parameters = some_parameters();
        GradientBuckets buckets(parameters, communicator,
                                codec_buckets(kTopKCodec, {{"density", 0.01}, {"error_feedback", 0}}));
        const auto small_but_once = [](int step) {
          return [step](int, std::int64_t element) {
            return (element % 97 == 0 ? 1.0f : 0.5f) * (step == 0 ? 1.0f : 0.0f);
          };
        };
        run_step(buckets, parameters, communicator.rank(), small_but_once(0));
        run_step(buckets, parameters, communicator.rank(), small_but_once(1));
        for (const float value : gradients_of(parameters)) CHECK(value == 0);
      },
      std::vector<int>{0, 1});
}

}  // namespace
}  // namespace lockstep
