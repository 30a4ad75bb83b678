// SPDX-License-Identifier: Apache-2.0
//
// Properties of every codec that keeps residuals.
#include <algorithm>
#include <cmath>
#include <limits>
#include <set>
#include <string>

#include <gtest/gtest.h>

#include "comm/codecs/codec.h"
#include "tests/comm/codec_state.h"
#include "tests/comm/step_counts.h"
#include "tests/message_of.h"

namespace lockstep {
namespace {

struct Subject {
  const ExchangeKind* kind;
  std::vector<ExchangeSetting> settings = {};
  double momentum = 0.5;

  BucketOptions options() const {
    BucketOptions options = codec_buckets(*kind, settings);
    options.momentum = {.momentum = momentum};
    return options;
  }
};

std::vector<Subject> subjects() {
  return {{.kind = &kPowerSgdCodec, .settings = {{"start_step", 0}}},
          {.kind = &kPowerSgdCodec, .settings = {{"rank", 1}, {"start_step", 2}}},
          {.kind = &kTopKCodec, .settings = {{"density", 0.05}}},
          {.kind = &kDgcCodec, .settings = {{"density", 0.01}, {"warmup_steps", 4}, {"clip", 3}}}};
}

// Calls body(communicator, subject) on every rank, for every codec and assignment of ranks to nodes.
template <typename Body>
void for_each_subject(Body body) {
  for (const Subject& subject : subjects()) {
    for (const std::vector<int>& node_of : node_dealings()) {
      SCOPED_TRACE(fmt::format("{} on {} ranks", subject.kind->name, node_of.size()));
      run_thread_ranks(
          static_cast<int>(node_of.size()), [&](Communicator& communicator) { body(communicator, subject); },
          node_of);
    }
  }
}

TEST(RememberingCodecs, HaveTheSameBitsOnEveryRankAndInEveryRun) {
  for_each_subject([](Communicator& communicator, const Subject& subject) {
    std::vector<Parameter> parameters = some_parameters();
    std::vector<std::vector<float>> first;
    for (int run = 0; run < 2; ++run) {
      GradientBuckets buckets(parameters, communicator, subject.options());
      for (int step = 0; step < 5; ++step) {
        run_step(buckets, parameters, communicator.rank(), made_up_gradients(step));
        const std::vector<float> agreed = agreed_gradients(communicator, parameters);
        if (run == 0) {
          first.push_back(agreed);
        } else {
          CHECK(same_bits(first[static_cast<std::size_t>(step)], agreed), "step {}", step);
        }
      }
    }
  });
}

// The sent gradients times their step's rate plus the residuals equal the sum of all gradients times their
// rates, without momentum. Runs a step for each rate. With a unit, gradients are scaled by it; without one,
// all rates are 1.
void expect_all_arrives(std::span<const float> rates, bool with_unit) {
  for_each_subject([rates, with_unit](Communicator& communicator, Subject subject) {
    subject.momentum = 0;
    if (subject.kind == &kDgcCodec) subject.settings = {{"density", 0.01}, {"warmup_steps", 4}};
    std::vector<Parameter> parameters = some_parameters();
    GradientBuckets buckets(parameters, communicator, subject.options());
    std::vector<double> owed(gradients_of(parameters).size()), received(owed.size());
    const float loss_scale = with_unit ? 128 : 1;
    for (std::size_t step = 0; step < rates.size(); ++step) {
      const MakeGradient gradient = made_up_gradients(static_cast<int>(step));
      run_step(
          buckets, parameters, communicator.rank(),
          [&](int rank, std::int64_t element) { return loss_scale * gradient(rank, element); },
          with_unit ? GradientUnit{.loss_scale = &loss_scale, .learning_rate = &rates[step]}
                    : GradientUnit{});
      const auto rate = static_cast<double>(rates[step]);
      const std::vector<float> decoded = gradients_of(parameters);
      std::size_t at = 0;
      for (const Parameter& parameter : parameters) {
        for (std::int64_t i = 0; i < parameter.layout.shape().elements(); ++i, ++at) {
          received[at] += rate / static_cast<double>(loss_scale) * static_cast<double>(decoded[at]);
          for (int rank = 0; rank < communicator.size(); ++rank)
            owed[at] += rate * static_cast<double>(gradient(rank, parameter.offset + i));
        }
      }
    }
    std::size_t at = 0;
    for (const Parameter& parameter : parameters) {
      for (const float left : unsent(communicator, buckets, parameter)) {
        CHECK(std::abs(received[at] + static_cast<double>(left) - owed[at]) < 2e-4, "{}: {} and {} of {}",
              parameter.name, received[at], left, owed[at]);
        ++at;
      }
    }
  });
}

TEST(RememberingCodecs, SentGradientsPlusResidualsEqualAllGradients) {
  expect_all_arrives(std::vector<float>(6, 1.0f), false);
}

TEST(RememberingCodecs, WeightLateGradientsByTheLearningRateOfTheirStep) {
  expect_all_arrives(std::vector<float>{0.5f, 0.25f, 0.03125f, 0.0625f}, true);
}

// A driving rank has residuals of every compressed parameter from the first step on.
TEST(RememberingCodecs, KeepResidualsByParameter) {
  for (const Subject& subject : subjects()) {
    run_thread_ranks(
        2,
        [&](Communicator& communicator) {
          std::vector<Parameter> parameters = some_parameters();
          GradientBuckets buckets(parameters, communicator, subject.options());
          for (int step = 0; step < 5; ++step)
            run_step(buckets, parameters, communicator.rank(), made_up_gradients(step));
          std::size_t bytes = 0;
          for (const Parameter& parameter : parameters) {
            double norm = 0;
            for (const float left : unsent(communicator, buckets, parameter))
              norm += std::abs(static_cast<double>(left));
            CHECK((norm > 0) == is_compressed(subject.options().exchange, parameter), "{}: {}",
                  parameter.name, norm);
          }
          for (const auto& [name, values] : state_of(buckets)) bytes += values.size() * sizeof(float);
          CHECK(buckets.memory_bytes() > buckets.plan().bytes() + bytes);
        },
        std::vector<int>{0, 1});
  }
}

TEST(RememberingCodecs, NonFiniteGradientsAreFoundOnAllRanksAndNotKept) {
  for_each_subject([](Communicator& communicator, const Subject& subject) {
    std::vector<Parameter> parameters = some_parameters();
    GradientBuckets buckets(parameters, communicator, subject.options());
    std::vector<Parameter> others = some_parameters();
    GradientBuckets never_saw_it(others, communicator, subject.options());
    for (int step = 0; step < 6; ++step) {
      if (step == 1 || step == 4) {
        const Parameter& hit = parameters[step == 1 ? 0 : 5];
        const std::int64_t where = hit.offset + hit.layout.shape().elements() - 7;
        // Each parameter gets both values, on even and on odd numbers of ranks.
        const bool is_nan = (step == 1) == (communicator.size() % 2 == 0);
        const float bad = is_nan ? std::nanf("") : std::numeric_limits<float>::infinity();
        const CodecState before = state_of(buckets);
        run_step(buckets, parameters, communicator.rank(), [&](int rank, std::int64_t element) {
          if (rank == communicator.size() - 1 && element == where) return bad;
          return made_up_gradient(rank, 99, element);
        });
        const std::vector<float> found = gradients_of(parameters);
        CHECK(!std::ranges::all_of(found, [](float value) { return std::isfinite(value); }));
        CHECK(same_bits(before, state_of(buckets)), "a skipped step changed the state");
      }
      run_step(buckets, parameters, communicator.rank(), made_up_gradients(step));
      run_step(never_saw_it, others, communicator.rank(), made_up_gradients(step));
      CHECK(same_bits(gradients_of(parameters), gradients_of(others)), "step {}", step);
    }
  });
}

TEST(RememberingCodecs, ResumeFromASavedStateWithTheSameBits) {
  for_each_subject([](Communicator& communicator, const Subject& subject) {
    std::vector<Parameter> parameters = some_parameters(), others = some_parameters();
    GradientBuckets buckets(parameters, communicator, subject.options());
    for (int step = 0; step < 3; ++step)
      run_step(buckets, parameters, communicator.rank(), made_up_gradients(step));
    GradientBuckets restored(others, communicator, subject.options());
    restore_state(restored, state_of(buckets));
    for (int step = 3; step < 7; ++step) {
      run_step(buckets, parameters, communicator.rank(), made_up_gradients(step));
      run_step(restored, others, communicator.rank(), made_up_gradients(step));
      CHECK(same_bits(gradients_of(parameters), gradients_of(others)), "step {}", step);
    }
    CHECK(same_bits(state_of(buckets), state_of(restored)));
  });
}

// Step counts around 2^24, the limit of consecutive integers in fp32, and 2^31, with zero gradients and then
// others.
TEST(RememberingCodecs, StayFiniteAndCountStepsFromAnyState) {
  const int zeros = in_large_form() ? 1000 : kOneOf == 1 ? 30 : 16;
  for (const ExchangeKind* kind : {&kInt8Codec, &kSignCodec, &kPowerSgdCodec, &kTopKCodec, &kDgcCodec}) {
    for (const std::int64_t begin : {(std::int64_t{1} << 24) - 15, (std::int64_t{1} << 31) - 15}) {
      SCOPED_TRACE(fmt::format("{} from step {}", kind->name, begin));
      run_thread_ranks(
          2,
          [&](Communicator& communicator) {
            std::vector<Parameter> parameters = some_parameters();
            BucketOptions options = codec_buckets(*kind);
            if (kind == &kInt8Codec) options.exchange.settings = {{.option = "stochastic", .value = 1}};
            GradientBuckets buckets(parameters, communicator, options);
            set_step_counts(buckets, begin);
            const auto pass = [&](float factor) {
              run_step(buckets, parameters, communicator.rank(), [factor](int rank, std::int64_t element) {
                return factor * made_up_gradient(rank, 0, element);
              });
              return agreed_gradients(communicator, parameters);
            };
            for (int step = 0; step < zeros; ++step) {
              for (const float value : pass(0)) CHECK(value == 0, "zero gradients gave {}", value);
            }
            bool moves = false;
            for (const float value : pass(1)) {
              CHECK(std::isfinite(value));
              moves = moves || value != 0;
            }
            CHECK(moves, "no gradient arrives");
            for (const auto& [name, values] : state_of(buckets))
              for (const float value : values) CHECK(std::isfinite(value), "{} holds {}", name, value);
            const std::vector<std::int64_t> counts = step_counts(buckets);
            CHECK(counts.empty() == (kind == &kSignCodec));
            for (const std::int64_t count : counts)
              CHECK(count == begin + zeros + 1, "counted {} steps", count);
          },
          std::vector<int>{0, 1});
    }
  }
}

// A power-of-two loss scale scales all results, but not the saved state.
TEST(RememberingCodecs, StateDoesNotDependOnTheLossScale) {
  for_each_subject([](Communicator& communicator, const Subject& subject) {
    std::vector<Parameter> parameters = some_parameters(), others = some_parameters();
    GradientBuckets buckets(parameters, communicator, subject.options());
    GradientBuckets scaled(others, communicator, subject.options());
    for (int step = 0; step < 4; ++step) {
      const float loss_scale = step < 2 ? 1024.0f : 64.0f;
      run_step(buckets, parameters, communicator.rank(), made_up_gradients(step));
      run_step(
          scaled, others, communicator.rank(),
          [&](int rank, std::int64_t element) { return loss_scale * made_up_gradient(rank, step, element); },
          {.loss_scale = &loss_scale});
      std::vector<float> expected = gradients_of(parameters);
      for (float& value : expected) value *= loss_scale;
      CHECK(gradients_of(others) == expected, "step {}", step);
      CHECK(same_bits(state_of(buckets), state_of(scaled)), "step {}", step);
    }
  });
}

TEST(RememberingCodecs, EqualTheDenseSumOnOneNode) {
  for (const Subject& subject : subjects()) {
    run_thread_ranks(2, [&](Communicator& communicator) {
      std::vector<Parameter> parameters = some_parameters();
      GradientBuckets buckets(parameters, communicator, subject.options());
      run_step(buckets, parameters, communicator.rank(), made_up_gradients(0));
      for (const Parameter& parameter : parameters) {
        CHECK(!parameter.gradient_has_momentum);
        for (std::int64_t i = 0; i < parameter.layout.shape().elements(); ++i) {
          const std::int64_t element = parameter.offset + i;
          CHECK(gradient_at(parameter, i) ==
                made_up_gradient(0, 0, element) + made_up_gradient(1, 0, element));
        }
      }
    });
  }
}

std::string refusal(const ExchangeKind& kind, const ExchangeSetting& setting) {
  const std::unique_ptr<Communicator> communicator = make_self_communicator();
  std::vector<Parameter> parameters = some_parameters();
  return message_of([&] { GradientBuckets(parameters, *communicator, codec_buckets(kind, {setting})); });
}

TEST(RememberingCodecs, RefuseInvalidSettings) {
  const struct {
    const ExchangeKind& kind;
    ExchangeSetting setting;
    std::multiset<double> numbers;  // the value, the least and the most that is allowed, and the nearest
  } cases[] = {
      {kPowerSgdCodec, {"rank", 0}, {0, 1, 64, 1}},
      {kPowerSgdCodec, {"rank", 2.4}, {2.4, 1, 64, 2}},
      {kPowerSgdCodec, {"error_feedback", 0.4}, {0.4, 0, 1, 0}},
      {kTopKCodec, {"density", 0}, {0, 1e-6, 1, 1e-6}},
      {kTopKCodec, {"density", 1.5}, {1.5, 1e-6, 1, 1}},
      {kDgcCodec, {"density", -1}, {-1, 1e-6, 1, 1e-6}},
      {kDgcCodec, {"warmup_steps", -1}, {-1, 0, 1e9, 0}},
      {kDgcCodec, {"warmup_density", 2}, {2, 1e-6, 1, 1}},
      {kDgcCodec, {"clip", -1}, {-1, 0, 1e30, 0}},
  };
  for (const auto& [kind, setting, numbers] : cases) {
    const std::string message = refusal(kind, setting);
    expect_parts(message, {std::string(kind.name), std::string(setting.option)});
    const std::vector<double> named = numbers_named_in(message);
    EXPECT_TRUE(std::ranges::includes(std::multiset<double>(named.begin(), named.end()), numbers)) << message;
  }
  expect_parts(refusal(kPowerSgdCodec, {"rank", 64}),
               {"comm.codec", "powersgd", std::to_string(kLeastCompressed)});
}

}  // namespace
}  // namespace lockstep
