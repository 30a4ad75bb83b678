// SPDX-License-Identifier: Apache-2.0
//
// int8 and sign on ranks that are threads: the sent data, the residuals, and that no gradient is lost.
#include <cmath>
#include <limits>
#include <map>
#include <mutex>
#include <numeric>

#include <gtest/gtest.h>

#include "comm/codecs/codec.h"
#include "kernels/backend.h"
#include "tests/comm/codec_state.h"
#include "tests/comm/step_counts.h"
#include "tests/message_of.h"

namespace lockstep {
namespace {

constexpr const ExchangeKind* kBlockKinds[] = {&kInt8Codec, &kSignCodec};

std::int64_t bytes_of_record(const ExchangeKind& kind) {
  return record_bytes(&kind == &kInt8Codec ? BlockCode::int8 : BlockCode::sign);
}

// The residuals of all ranks, summed by element of a parameter.
using Residuals = std::map<std::string, std::vector<double>>;

void add_residuals(GradientBuckets& buckets, std::span<const Parameter> parameters, Residuals& sums) {
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  for (const ExchangeState& state : buckets.exchange().state()) {
    const std::string name = state.name.substr(0, state.name.find('.'));
    const auto parameter = std::ranges::find(parameters, name, &Parameter::name);
    CHECK(parameter != parameters.end(), "{}", state.name);
    if (state.name.find("residual") == std::string::npos) continue;
    std::vector<double>& sum = sums[name];
    sum.resize(static_cast<std::size_t>(parameter->layout.physical_elements()));
    const std::size_t bracket = state.name.find('[');
    const std::size_t begin = bracket == std::string::npos ? 0 : std::stoul(state.name.substr(bracket + 1));
    const auto values = state.memory.as<float>();
    for (std::size_t i = 0; i < values.size(); ++i) sum[begin + i] += static_cast<double>(values[i]);
  }
}

// The applied sums plus the residuals equal the gradients: over steps, ranks, nodes and loss scales.
TEST(BlockCodec, AppliedSumsPlusResidualsEqualTheGradients) {
  constexpr int kSteps = 5;
  for (const ExchangeKind* kind : kBlockKinds) {
    for (const std::vector<int>& node_of : node_dealings()) {
      if (std::ranges::max(node_of) == 0) continue;
      Residuals residuals;
      std::vector<double> applied;
      run_thread_ranks(
          static_cast<int>(node_of.size()),
          [&](Communicator& communicator) {
            std::vector<Parameter> parameters = some_parameters();
            GradientBuckets buckets(parameters, communicator, codec_buckets(*kind));
            for (int step = 0; step < kSteps; ++step) {
              const float loss_scale = step < 3 ? 1024.0f : 512.0f;
              run_step(buckets, parameters, communicator.rank(),
                       [&](int rank, std::int64_t element) {
                         return loss_scale * made_up_gradient(rank, step, element);
                       },
                       {.loss_scale = &loss_scale});
              const std::vector<float> sums = agreed_gradients(communicator, parameters);
              if (communicator.rank() != 0) continue;
              applied.resize(sums.size());
              for (std::size_t i = 0; i < sums.size(); ++i)
                applied[i] += static_cast<double>(sums[i]) / static_cast<double>(loss_scale);
            }
            add_residuals(buckets, parameters, residuals);
          },
          node_of);
      std::size_t place = 0;
      for (const Parameter& parameter : some_parameters()) {
        for (std::int64_t i = 0; i < parameter.layout.shape().elements(); ++i, ++place) {
          double expected = 0;
          for (int step = 0; step < kSteps; ++step) {
            for (std::size_t rank = 0; rank < node_of.size(); ++rank) {
              expected +=
                  static_cast<double>(made_up_gradient(static_cast<int>(rank), step, parameter.offset + i));
            }
          }
          const double kept = takes_large_tensors({}, parameter)
                                  ? residuals.at(parameter.name)[static_cast<std::size_t>(i)]
                                  : 0;
          ASSERT_NEAR(applied[place] + kept, expected, 2e-5)
              << kind->name << " of " << node_of.size() << " ranks, " << parameter.name << "[" << i << "]";
        }
      }
    }
  }
}

// One step without feedback, compared with the kernels applied to each node's sum in sequence.
TEST(BlockCodec, OneStepEqualsTheKernelsAppliedTwice) {
  const std::vector<int> node_of = {0, 0, 1, 1, 2, 2};
  const Shape shape[] = {{64, 100}};
  constexpr std::int64_t kElements = 6400;
  constexpr std::int64_t kShare = 3840;  // of each of two drivers: parts of 256 for each of three nodes
  Backend& backend = backend_for(Device{});
  Stream stream(Device{}, StreamUse::compute);
  for (const ExchangeKind* kind : kBlockKinds) {
    const BlockCode code = kind == &kInt8Codec ? BlockCode::int8 : BlockCode::sign;
    const std::int64_t blocks = kShare / kBlockElements, part = blocks / 3;
    const std::int64_t real_blocks[] = {15, 10};  // the second driver's share is shorter
    std::vector<float> expected;
    for (int driver = 0; driver < 2; ++driver) {
      std::vector<std::uint32_t> real(static_cast<std::size_t>(blocks) * 8, 0);
      for (std::int64_t i = 0; i < kShare; ++i) {
        if (driver * kShare + i < kElements) real[static_cast<std::size_t>(i / 32)] |= 1u << (i % 32);
      }
      const std::int64_t mine = (real_blocks[driver] + 2) / 3 * 3;
      std::vector<std::byte> records;
      for (int node = 0; node < 3; ++node) {
        std::vector<float> sum(kShare);
        for (std::int64_t i = 0; i < kShare && driver * kShare + i < kElements; ++i) {
          sum[static_cast<std::size_t>(i)] = made_up_gradient(2 * node, 0, driver * kShare + i) +
                                             made_up_gradient(2 * node + 1, 0, driver * kShare + i);
        }
        std::vector<std::byte> own(static_cast<std::size_t>(mine * record_bytes(code)));
        backend.encode_blocks(
            stream,
            {.code = code, .blocks = mine, .values = sum.data(), .real = real.data(), .records = own.data()});
        records.insert(records.end(), own.begin(), own.end());
      }
      std::vector<float> sum(static_cast<std::size_t>(mine * kBlockElements));
      backend.sum_blocks(stream, {.code = code,
                                  .blocks = mine,
                                  .parts = 3,
                                  .records = records.data(),
                                  .real = real.data(),
                                  .values = sum.data()});
      backend.encode_blocks(stream, {.code = code,
                                     .blocks = mine,
                                     .values = sum.data(),
                                     .real = real.data(),
                                     .records = records.data()});
      backend.sum_blocks(stream, {.code = code,
                                  .blocks = mine,
                                  .records = records.data(),
                                  .real = real.data(),
                                  .values = sum.data()});
      for (std::int64_t i = 0; i < kShare && driver * kShare + i < kElements; ++i)
        expected.push_back(sum[static_cast<std::size_t>(i)]);
    }
    ASSERT_EQ(part, 5);
    run_thread_ranks(
        6,
        [&](Communicator& communicator) {
          std::vector<Parameter> parameters = shaped_parameters(shape);
          GradientBuckets buckets(parameters, communicator,
                                  codec_buckets(*kind, {{.option = "error_feedback", .value = 0}}));
          CHECK(buckets.buckets().size() == 1);
          run_pass(buckets, parameters, communicator.rank(), made_up_gradients(0));
          const std::vector<float> sums = agreed_gradients(communicator, parameters);
          for (std::size_t i = 0; i < sums.size(); ++i)
            CHECK(sums[i] == expected[i], "element {} is {}, expected {}", i, sums[i], expected[i]);
          CHECK(buckets.exchange().state().empty());
        },
        node_of);
  }
}

TEST(BlockCodec, SendsTheBytesOfTheFormula) {
  for (const ExchangeKind* kind : kBlockKinds) {
    for (const int ranks : {2, 3, 5}) {
      std::vector<int> node_of(static_cast<std::size_t>(ranks));
      std::iota(node_of.begin(), node_of.end(), 0);
      run_thread_ranks(
          ranks,
          [&](Communicator& communicator) {
            const Shape shape[] = {{100, 1000}};
            std::vector<Parameter> parameters = shaped_parameters(shape);
            GradientBuckets buckets(parameters, communicator, codec_buckets(*kind));
            communicator.stream().synchronize();
            const std::uint64_t before = communicator.traffic().sent_bytes;
            run_pass(buckets, parameters, communicator.rank(), [](int, std::int64_t) { return 1.0f; });
            const std::uint64_t sent = communicator.traffic().sent_bytes - before;
            const std::int64_t part = (100000 + 256 * ranks - 1) / (256 * ranks);
            const auto expected = static_cast<std::uint64_t>(2 * (ranks - 1) * part * bytes_of_record(*kind));
            CHECK(sent == expected, "sent {} bytes, expected {}", sent, expected);
            // The ratio to a dense sum.
            const double ratio = 2.0 * (ranks - 1) / ranks * 400000 / static_cast<double>(sent);
            CHECK(ratio > (kind == &kInt8Codec ? 3.8 : 28.0), "{} times fewer", ratio);
          },
          node_of);
    }
  }
}

struct BadElement {
  std::size_t parameter;
  std::int64_t element;
};

void expect_skips_restore_the_state(const BadElement& hit) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (const ExchangeKind* kind : kBlockKinds) {
    std::vector<ExchangeSetting> settings;
    if (kind == &kInt8Codec) settings = {{.option = "stochastic", .value = 1}};
    std::vector<std::vector<float>> results(2);
    for (const bool skipping : {false, true}) {
      run_thread_ranks(
          3,
          [&](Communicator& communicator) {
            std::vector<Parameter> parameters = some_parameters();
            GradientBuckets buckets(parameters, communicator, codec_buckets(*kind, settings));
            const auto train = [&](int step, float bad) {
              run_step(buckets, parameters, communicator.rank(), [&](int rank, std::int64_t element) {
                return rank == 1 && element == parameters[hit.parameter].offset + hit.element
                           ? bad
                           : made_up_gradient(rank, step, element);
              });
              return agreed_gradients(communicator, parameters);
            };
            train(0, 0.5f);
            if (skipping) {
              const std::vector<float> sums = train(7, nan);
              CHECK(std::ranges::any_of(sums, [](float x) { return !std::isfinite(x); }));
            }
            const std::vector<float> sums = train(1, 0.25f);
            if (communicator.rank() == 0) results[skipping ? 1 : 0] = sums;
            for (const ExchangeState& state : buckets.exchange().state()) {
              for (const float value : state.memory.as<float>())
                CHECK(std::isfinite(value), "{}", state.name);
            }
          },
          std::vector<int>{0, 0, 1});
    }
    EXPECT_EQ(results[0], results[1]) << kind->name;
  }
}

TEST(BlockCodec, ASkippedStepRestoresTheState) { expect_skips_restore_the_state({2, 700}); }

// The last element of the 100x33 weight shares its block with the padding after the weight, which backward
// does not write: a NaN there would reach all later steps.
TEST(BlockCodec, ASkippedStepLeavesPaddingZero) { expect_skips_restore_the_state({8, 3299}); }

// Restored into another run, the state continues with the same bits.
TEST(BlockCodec, TheNextStepDependsOnTheSavedStateOnly) {
  for (const ExchangeKind* kind : kBlockKinds) {
    std::vector<ExchangeSetting> settings;
    if (kind == &kInt8Codec) settings = {{.option = "stochastic", .value = 1}};
    run_thread_ranks(
        4,
        [&](Communicator& communicator) {
          const auto train = [&](GradientBuckets& buckets, std::span<const Parameter> parameters, int step) {
            run_step(buckets, parameters, communicator.rank(), made_up_gradients(step));
            return gradients_of(parameters);
          };
          std::vector<Parameter> parameters = some_parameters(), others = some_parameters();
          GradientBuckets buckets(parameters, communicator, codec_buckets(*kind, settings));
          for (int step = 0; step < 3; ++step) train(buckets, parameters, step);
          GradientBuckets restored(others, communicator, codec_buckets(*kind, settings));
          const std::vector<float> first = train(restored, others, 3);  // another state before the restore
          const CodecState saved = state_of(buckets);
          CHECK(!saved.empty());
          restore_state(restored, saved);
          const std::vector<float> expected = train(buckets, parameters, 3);
          CHECK(train(restored, others, 3) == expected);
          CHECK(first != expected);
        },
        std::vector<int>{0, 0, 1, 1});
  }
}

// The random numbers of int8 differ from step to step, whatever the number of steps.
TEST(BlockCodec, RoundsDifferentlyInEachStepBeyondTwoToThe24) {
  run_thread_ranks(
      2,
      [](Communicator& communicator) {
        std::vector<Parameter> parameters = some_parameters();
        GradientBuckets buckets(parameters, communicator,
                                codec_buckets(kInt8Codec, {{"stochastic", 1}, {"error_feedback", 0}}));
        set_step_counts(buckets, (1 << 24) - 1);
        std::vector<std::vector<float>> sums;
        for (int step = 0; step < 4; ++step) {
          run_step(buckets, parameters, communicator.rank(), made_up_gradients(0));
          sums.push_back(gradients_of(parameters));
          for (int before = 0; before < step; ++before)
            CHECK(sums[static_cast<std::size_t>(before)] != sums.back(), "step {} repeats {}", step, before);
        }
        CHECK(step_counts(buckets) == std::vector<std::int64_t>{(1 << 24) + 3});
      },
      std::vector<int>{0, 1});
}

TEST(BlockCodec, PaddingStaysZero) {
  for (const ExchangeKind* kind : kBlockKinds) {
    run_thread_ranks(
        2,
        [&](Communicator& communicator) {
          std::vector<Parameter> parameters = some_parameters();
          GradientBuckets buckets(parameters, communicator, codec_buckets(*kind));
          for (int step = 0; step < 2; ++step)
            run_step(buckets, parameters, communicator.rank(), made_up_gradients(step));
          const std::span<const float> arena = buckets.gradients()[0].as<float>();
          for (std::size_t i = 0; i + 1 < parameters.size(); ++i) {
            const std::int64_t end = parameters[i].offset + parameters[i].layout.physical_elements();
            for (std::int64_t place = end; place < parameters[i + 1].offset; ++place)
              CHECK(arena[static_cast<std::size_t>(place)] == 0, "padding after {}", parameters[i].name);
          }
        },
        std::vector<int>{0, 1});
  }
}

TEST(BlockCodec, OptionsAreWholeNumbers) {
  const std::unique_ptr<Communicator> communicator = make_self_communicator();
  std::vector<Parameter> parameters = some_parameters();
  const BucketOptions options = codec_buckets(kInt8Codec, {{.option = "stochastic", .value = 0.25}});
  expect_parts(message_of<ConfigError>([&] { GradientBuckets(parameters, *communicator, options); }),
               {"comm.int8.stochastic = 0.25"});
}

}  // namespace
}  // namespace lockstep
