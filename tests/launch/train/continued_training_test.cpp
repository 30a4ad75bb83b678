// SPDX-License-Identifier: Apache-2.0
//
// Training depends on its state only: stopped after any step and continued by new objects, it ends with the
// bits of an uninterrupted training. Evaluations in between change nothing.
#include <algorithm>
#include <memory>

#include <gtest/gtest.h>

#include "comm/agreement.h"
#include "comm/codecs/auto_exchange.h"
#include "launch/train/digest.h"
#include "launch/train/step_ends/local_sgd.h"
#include "launch/train/trainer.h"
#include "launch/train/trials/thread_trial.h"
#include "models/networks/networks.h"
#include "tests/comm/thread_ranks.h"
#include "tests/launch/train/grays.h"
#include "tests/launch/train/state_of.h"
#include "tests/message_of.h"
#include "tests/thinning.h"

namespace lockstep {
namespace {

constexpr int kRanks = 2;
constexpr ImageShape kImage{8, 8, 1};
constexpr std::int64_t kRankBatch = 4, kAccumulation = 2, kStepsInEpoch = 5, kSteps = 13;
// An epoch ends with samples left over.
constexpr std::int64_t kSamples = kRanks * kRankBatch * kAccumulation * kStepsInEpoch + 3;

Graph cnn_graph() {
  Graph graph({.batch = kRankBatch,
               .height = kImage.height,
               .width = kImage.width,
               .channels = kImage.channels,
               .classes = 4});
  cnn(graph, {.batch_norm = true, .dropout = 0.3});
  return graph;
}

// The objects that one rank trains with: everything a step can depend on.
class Objects {
 public:
  Objects(Communicator& communicator, const Dataset& dataset, std::int64_t max_steps, std::uint64_t seed = 3,
          const BucketOptions& buckets = {}, const LocalSgdOptions& local = {.every = 0})
      : network_(cnn_graph(), {.precision = Precision::fp16,
                               .seed = seed,
                               .augmentation = {.crop_padding = 2, .horizontal_flip = true},
                               .choices = &first_}),
        buckets_(network_.parameters(), communicator, buckets),
        // A scale so large that gradients overflow at first and after each doubling.
        optimizer_(make_optimizer(trained_memory(network_, buckets_.gradients()), AdamWOptions{},
                                  {.initial = 0x1p18f, .rule = {.interval = 2}})),
        train_(dataset, {.rank = communicator.rank(), .size = communicator.size()},
               {.batch = kRankBatch, .accumulation = kAccumulation, .seed = seed, .threads = 2}),
        test_(dataset, {.rank = communicator.rank(), .size = communicator.size()},
              {.batch = kRankBatch, .tail = Tail::pad}),
        trainer_({network_, buckets_, *optimizer_, train_, test_, communicator},
                 {.kind = schedule_kind("cosine"), .base = 0.01, .total_steps = kSteps, .warmup_steps = 2},
                 {.accumulation = kAccumulation,
                  .epochs = 100,
                  .max_steps = max_steps,
                  .average_every = local.every,
                  .average_after = local.after}) {}

  Network& network() { return network_; }
  GradientBuckets& buckets() { return buckets_; }
  Trainer& trainer() { return trainer_; }
  std::string state_digest() { return digest(network_, *optimizer_); }
  void fit(std::initializer_list<TrainingObserver*> observers = {}) { trainer_.fit(observers); }
  StateCopy state() { return state_of(trainer_); }
  void go_on_from(const StateCopy& state) { set_state(trainer_, state); }

 private:
  KernelChoices first_;
  Network network_;
  GradientBuckets buckets_;
  std::unique_ptr<Optimizer> optimizer_;
  BatchLoader train_;
  BatchLoader test_;
  Trainer trainer_;
};

const StateCopy::Value& value_of(const StateCopy& state, const std::string& name) {
  const auto found = std::ranges::find(state.values, name, &StateCopy::Value::name);
  CHECK(found != state.values.end(), "{}", name);
  return *found;
}

void expect_equal_states(const StateCopy& state, const StateCopy& expected, const std::string& what) {
  ASSERT_EQ(state.tensors.size(), expected.tensors.size());
  ASSERT_EQ(state.values.size(), expected.values.size());
  for (std::size_t i = 0; i < expected.tensors.size(); ++i) {
    EXPECT_TRUE(state.tensors[i] == expected.tensors[i])
        << what << ": " << expected.tensors[i].name << ", scope "
        << static_cast<int>(expected.tensors[i].scope);
  }
  for (std::size_t i = 0; i < expected.values.size(); ++i)
    EXPECT_TRUE(state.values[i] == expected.values[i]) << what << ": " << expected.values[i].name;
}

void on_ranks(const std::function<void(Communicator&, const Dataset&)>& body,
              std::span<const int> node_of_rank = {}) {
  const Grays dataset(kImage, kSamples);
  run_thread_ranks(
      kRanks,
      [&](Communicator& communicator) {
        backend_for({}).set_threads(1);
        body(communicator, dataset);
      },
      node_of_rank);
}

using MakeObjects = std::function<std::unique_ptr<Objects>(std::int64_t max_steps)>;

// Trains without a stop, and with a stop after each of `stops`, from which new objects continue. Expects the
// same bits at the end, and returns that state.
StateCopy expect_resumable(const MakeObjects& make, const std::vector<std::int64_t>& stops,
                           const std::string& what) {
  const auto whole = make(kSteps);
  whole->fit();
  const StateCopy expected = whole->state();
  for (const std::int64_t stop : stops) {
    StateCopy saved;
    {
      const auto first = make(stop);
      first->fit();
      saved = first->state();
    }
    const auto second = make(kSteps);
    second->go_on_from(saved);
    second->fit();
    const std::string where = fmt::format("{}, stopped after {}", what, stop);
    EXPECT_EQ(second->trainer().steps(), kSteps) << where;
    expect_equal_states(second->state(), expected, where);
    EXPECT_EQ(second->state_digest(), whole->state_digest()) << where;
  }
  return expected;
}

TEST(ContinuedTraining, EqualsAnUninterruptedTraining) {
  on_ranks([](Communicator& communicator, const Dataset& dataset) {
    // Stops within the second epoch, within the first, at the end of the second, and within the last.
    const StateCopy end = expect_resumable(
        [&](std::int64_t steps) { return std::make_unique<Objects>(communicator, dataset, steps); },
        Thinning().taken<std::int64_t>({7, 1, 2 * kStepsInEpoch, kSteps - 1}), "plain");
    const auto done = std::get<std::int64_t>(value_of(end, "optimizer.steps").value);
    EXPECT_GE(done, kSteps / 2) << "too many steps were skipped";
    EXPECT_LE(done, kSteps - 3) << "too few steps were skipped";
  });
}

class StopsAfter final : public TrainingObserver {
 public:
  explicit StopsAfter(std::int64_t steps) : steps_(steps) {}
  bool goes_on() override { return ++seen_ != steps_; }
  void epoch_over(const EpochRecord& record) override { evaluations_ += record.evaluation.has_value(); }
  int evaluations() const { return evaluations_; }

 private:
  std::int64_t steps_, seen_ = 0;
  int evaluations_ = 0;
};

class ExpectsOwnGradients final : public TrainingObserver {
 public:
  explicit ExpectsOwnGradients(const Trainer& trainer) : trainer_(trainer) {}
  void epoch_trained(const EpochRecord& record) override {
    EXPECT_EQ(trainer_.holds_gradients(), record.steps > 0) << "epoch " << record.epoch;
  }

 private:
  const Trainer& trainer_;
};

// An epoch is evaluated once: where it ends, or after a resume if training was stopped exactly there. The
// gradients of its last step are then not known.
TEST(ContinuedTraining, EvaluatesEachEpochOnce) {
  on_ranks([](Communicator& communicator, const Dataset& dataset) {
    StopsAfter never(0);
    Objects whole(communicator, dataset, kSteps);
    whole.fit({&never});
    EXPECT_EQ(never.evaluations(), 3);
    EXPECT_TRUE(whole.trainer().done());
    for (const std::int64_t stop : Thinning().taken({kStepsInEpoch, std::int64_t{3}, kSteps})) {
      StopsAfter after(stop), not_again(0), nor_then(0);
      Objects first(communicator, dataset, kSteps);
      first.fit({&after});
      EXPECT_EQ(first.trainer().steps(), stop);
      EXPECT_EQ(after.evaluations(), (stop - 1) / kStepsInEpoch);
      EXPECT_FALSE(first.trainer().done());
      Objects second(communicator, dataset, kSteps);
      second.go_on_from(first.state());
      ExpectsOwnGradients gradients(second.trainer());
      second.fit({&not_again, &gradients});
      EXPECT_EQ(after.evaluations() + not_again.evaluations(), 3) << "stopped after " << stop;
      EXPECT_EQ(second.state_digest(), whole.state_digest()) << "stopped after " << stop;
      Objects third(communicator, dataset, kSteps);
      third.go_on_from(second.state());
      third.fit({&nor_then});
      EXPECT_EQ(nor_then.evaluations(), 0) << "no evaluation is left";
    }
  });
}

// A codec's residuals are part of the state. A skipped step does not change them.
TEST(ContinuedTraining, RestoresTheResidualsOfCodecs) {
  const auto stochastic = ExchangeChoice{.kind = &kInt8Codec, .settings = {{"stochastic", 1}}};
  const ExchangeChoice choices[] = {
      stochastic,
      {.kind = &kSignCodec},
      {.kind = &kPowerSgdCodec, .settings = {{"rank", 1}, {"start_step", 3}}},
      {.kind = &kTopKCodec, .settings = {{"density", 0.05}}},
      {.kind = &kDgcCodec, .settings = {{"density", 0.01}, {"warmup_steps", 8}}}};
  for (const ExchangeChoice& choice : choices) {
    on_ranks(
        [&](Communicator& communicator, const Dataset& dataset) {
          const BucketOptions buckets{
              .first_bytes = 1024, .middle_bytes = 8192, .exchange = choice, .momentum = {.momentum = 0.9}};
          const StateCopy end = expect_resumable(
              [&](std::int64_t steps) {
                return std::make_unique<Objects>(communicator, dataset, steps, 3, buckets);
              },
              {7}, choice.describe());
          const auto is_residual = [](const StateCopy::Tensor& tensor) {
            return tensor.name.find("residual") != std::string::npos;
          };
          CHECK(std::ranges::any_of(end.tensors, is_residual));
        },
        std::vector<int>{0, 1});
  }
}

// Between two averages each rank has its own parameters, moments and loss scale.
TEST(ContinuedTraining, ResumesBetweenTwoAveragesOfLocalSgd) {
  constexpr LocalSgdOptions kLocal{.every = 3, .after = 2};  // averages after steps 5, 8 and 11
  const ExchangeChoice choices[] = {{.kind = &kDenseSum},
                                    {.kind = &kInt8Codec, .settings = {{"stochastic", 1}}},
                                    {.kind = &kPowerSgdCodec, .settings = {{"rank", 1}, {"start_step", 2}}}};
  Thinning thinning;
  for (const ExchangeChoice& choice : choices) {
    const std::vector<std::int64_t> stops = thinning.taken<std::int64_t>({1, 2, 4, 5, 7, 12});
    on_ranks(
        [&](Communicator& communicator, const Dataset& dataset) {
          const BucketOptions buckets{.first_bytes = 1024, .middle_bytes = 8192, .exchange = choice};
          expect_resumable(
              [&](std::int64_t steps) {
                return std::make_unique<Objects>(communicator, dataset, steps, 3, buckets, kLocal);
              },
              stops, choice.describe());
        },
        std::vector<int>{0, 1});
  }
}

// The state contains the gradients that the next step applies and their loss scale.
TEST(ContinuedTraining, RestoresPendingGradients) {
  const ExchangeChoice choices[] = {
      {.kind = &kDenseSum},
      {.kind = &kInt8Codec, .settings = {{"stochastic", 1}}},
      {.kind = &kTopKCodec, .settings = {{"density", 0.01}, {"warmup_steps", 8}}}};
  for (const ExchangeChoice& choice : choices) {
    on_ranks(
        [&](Communicator& communicator, const Dataset& dataset) {
          const BucketOptions buckets{
              .first_bytes = 1024, .middle_bytes = 8192, .exchange = choice, .delayed = true};
          expect_resumable(
              [&](std::int64_t steps) {
                return std::make_unique<Objects>(communicator, dataset, steps, 3, buckets);
              },
              Thinning().taken<std::int64_t>({4, 1, 5, 12}), choice.describe());
        },
        std::vector<int>{0, 1});
  }
}

TEST(ContinuedTraining, BeginsToDelayGradientsWithNoneUnderWay) {
  on_ranks([](Communicator& communicator, const Dataset& dataset) {
    Objects first(communicator, dataset, 4);
    first.fit();
    Objects second(communicator, dataset, kSteps, 3, {.delayed = true});
    second.go_on_from(first.state());
    EXPECT_EQ(std::get<std::int64_t>(value_of(second.state(), "train.gradients_under_way").value), 0);
    second.fit();
    EXPECT_EQ(second.trainer().steps(), kSteps);
  });
}

// The residuals of these codecs have the learning rate as a factor only if gradients are not delayed.
TEST(ContinuedTraining, ResidualsOfDelayedGradientsHaveAnotherName) {
  const ExchangeChoice choices[] = {{.kind = &kPowerSgdCodec, .settings = {{"rank", 1}, {"start_step", 0}}},
                                    {.kind = &kTopKCodec, .settings = {{"density", 0.05}}}};
  for (const ExchangeChoice& choice : choices) {
    for (const bool delayed : {true, false}) {
      on_ranks(
          [&](Communicator& communicator, const Dataset& dataset) {
            BucketOptions buckets{
                .first_bytes = 1024, .middle_bytes = 8192, .exchange = choice, .delayed = delayed};
            Objects first(communicator, dataset, 4, 3, buckets);
            first.fit();
            const StateCopy saved = first.state();
            buckets.delayed = !delayed;
            Objects second(communicator, dataset, kSteps, 3, buckets);
            expect_parts(message_of<DataError>([&] { second.go_on_from(saved); }),
                         {delayed ? ".update_residual" : ".delayed_residual"});
          },
          std::vector<int>{0, 1});
    }
  }
}

// An evaluation, which averages the parameters, and reading the state change nothing.
TEST(Evaluation, DoesNotChangeLocalSgd) {
  on_ranks([](Communicator& communicator, const Dataset& dataset) {
    constexpr LocalSgdOptions kLocal{.every = 4};
    Objects plain(communicator, dataset, kSteps, 3, {}, kLocal);
    Objects evaluated(communicator, dataset, kSteps, 3, {}, kLocal);
    for (int step = 1; step <= 6; ++step) {
      plain.trainer().step();
      evaluated.trainer().step();
      evaluated.trainer().evaluate();
      const std::vector<std::string> digests = gather_texts(communicator, evaluated.state_digest());
      EXPECT_EQ(digests[1], digests[0]) << "after step " << step;
      evaluated.state();
    }
    EXPECT_EQ(plain.trainer().evaluate().loss, evaluated.trainer().evaluate().loss);
    expect_equal_states(evaluated.state(), plain.state(), "evaluated after every step");
  });
}

// Steps without an exchange send nothing.
TEST(LocalSgdTraffic, IsDividedByTheStepsBetweenAverages) {
  on_ranks([](Communicator& communicator, const Dataset& dataset) {
    const auto sent = [&](std::int64_t every) {
      Objects objects(communicator, dataset, kSteps, 3, {}, {.every = every});
      const std::uint64_t before = communicator.traffic().sent_bytes;
      for (int step = 0; step < 12; ++step) objects.trainer().step();
      return static_cast<double>(communicator.traffic().sent_bytes - before);
    };
    const double all = sent(0);
    EXPECT_GT(all, 0);
    EXPECT_NEAR(all / sent(4), 4, 0.05);
    EXPECT_NEAR(all / sent(12), 12, 0.3);
  });
}

// The codec chosen for each bucket is part of the state.
TEST(ContinuedTraining, RestoresTheChosenCodecs) {
  on_ranks(
      [](Communicator& communicator, const Dataset& dataset) {
        BucketOptions options{.first_bytes = 1024, .middle_bytes = 8192, .exchange = {.kind = &kAutoCodec}};
        options.codecs.candidates = {{.kind = &kBf16Codec},
                                     {.kind = &kInt8Codec},
                                     {.kind = &kPowerSgdCodec, .settings = {{"start_step", 0}}}};
        const auto begin = [](Objects& objects) {
          for (int step = 0; step < 3; ++step) objects.trainer().step();
          std::vector<int> by_bucket;
          for (int i = 0; i < std::ssize(objects.buckets().buckets()); ++i) by_bucket.push_back((i + 2) % 4);
          objects.trainer().choose_codecs(by_bucket);
          return by_bucket;
        };
        Objects whole(communicator, dataset, kSteps, 3, options);
        const std::vector<int> chosen = begin(whole);
        whole.fit();
        const StateCopy expected = whole.state();
        StateCopy saved;
        {
          Objects first(communicator, dataset, 7, 3, options);
          begin(first);
          first.fit();
          saved = first.state();
        }
        Objects second(communicator, dataset, kSteps, 3, options);
        second.go_on_from(saved);
        const AutoExchange& exchange = *second.buckets().exchange().to_choose();
        EXPECT_TRUE(std::ranges::equal(exchange.chosen(), chosen));
        second.fit();
        expect_equal_states(second.state(), expected, "with codecs");
        EXPECT_EQ(second.state_digest(), whole.state_digest());
        const std::vector<std::string> digests = gather_texts(communicator, whole.state_digest());
        EXPECT_EQ(digests.front(), digests.back());

        // The choice alone determines the state of the exchange, which a resume on other ranks merges first.
        Objects chooses(communicator, dataset, kSteps, 3, options);
        StateWriter writer({}, saved);
        chooses.trainer().visit_codecs(writer);
        const auto names = [](Objects& objects) {
          std::vector<std::string> all;
          for (const ExchangeState& state : objects.buckets().exchange().state()) all.push_back(state.name);
          return all;
        };
        EXPECT_FALSE(names(whole).empty());
        EXPECT_EQ(names(chooses), names(whole));

        // Saved on one node, where there is nothing to choose.
        StateCopy of_one_node = saved;
        std::erase_if(of_one_node.values, [](const StateCopy::Value& value) {
          return value.name == "train.codec_decided" || value.name.ends_with(".codec");
        });
        Objects begins(communicator, dataset, kSteps, 3, options);
        begins.go_on_from(of_one_node);
        EXPECT_EQ(std::get<std::int64_t>(value_of(begins.state(), "train.codec_decided").value), 0);

        // With fewer candidates the saved choice may be invalid, so the trial starts again.
        options.codecs.candidates = {{.kind = &kBf16Codec}};
        Objects limited(communicator, dataset, kSteps, 3, options);
        limited.go_on_from(saved);
        EXPECT_EQ(std::get<std::int64_t>(value_of(limited.state(), "train.codec_decided").value), 0);
        EXPECT_EQ(std::ranges::count(limited.buckets().exchange().to_choose()->chosen(), 0),
                  std::ssize(limited.buckets().buckets()));
      },
      std::vector<int>{0, 1});
}

// Restoring an earlier state into objects that have trained discards what they have prefetched, counted and
// summed since.
TEST(ContinuedTraining, RestoresAnEarlierStep) {
  on_ranks([](Communicator& communicator, const Dataset& dataset) {
    Objects objects(communicator, dataset, kSteps);
    for (int step = 0; step < 4; ++step) objects.trainer().step();
    const StateCopy saved = objects.state();
    const auto train_on = [&] {
      for (int step = 0; step < 3; ++step) objects.trainer().step();  // into the next epoch
      return objects.state();
    };
    const StateCopy expected = train_on();
    objects.go_on_from(saved);
    expect_equal_states(objects.state(), saved, "restored");
    expect_equal_states(train_on(), expected, "three steps later");
  });
}

// Whichever thread count is faster, the trial's steps are undone, and training continues with the same bits.
TEST(ThreadTrial, ChangesNoBit) {
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "computes with two threads, whose barriers ThreadSanitizer does not see";
#endif
  on_ranks([](Communicator& communicator, const Dataset& dataset) {
    Objects plain(communicator, dataset, kSteps), tried(communicator, dataset, kSteps);
    const auto try_it = [&] {
      return try_sparing_a_core(tried.trainer(), backend_for({}), communicator, 2,
                                {.turns = 2, .steps = kStepsInEpoch / 2});
    };
    const ThreadTrial trial = try_it();
    EXPECT_EQ(trial.threads, trial.spares ? 1 : 2);
    EXPECT_EQ(trial.spares, trial.spared_seconds <= 0.97 * trial.all_seconds);
    const std::vector<std::int32_t> of_all = gather_values<std::int32_t>(communicator, trial.threads);
    EXPECT_EQ(of_all.front(), of_all.back()) << "every rank makes the same choice";
    backend_for({}).set_threads(1);
    expect_equal_states(tried.state(), plain.state(), "before the first step");
    plain.fit();
    tried.fit();
    expect_equal_states(tried.state(), plain.state(), "at the end");
    EXPECT_EQ(tried.state_digest(), plain.state_digest());
  });
}

TEST(ThreadTrial, RunsOnlyIfItCanGain) {
  run_thread_ranks(kRanks, [](Communicator& communicator) {
    EXPECT_TRUE(sparing_is_open(communicator, communicator.rank() == 0 ? 1 : 2, 1000));
    EXPECT_FALSE(sparing_is_open(communicator, 1, 1000)) << "the only thread cannot be spared";
    EXPECT_FALSE(sparing_is_open(communicator, 2, 999)) << "the trial would take longer than it gains";
  });
  EXPECT_FALSE(sparing_is_open(*make_self_communicator(), 2, 1000)) << "a single rank does not communicate";
}

TEST(ContinuedTraining, RefusesAnotherSeedAStepBeyondTheEpochAndAMissingValue) {
  on_ranks([](Communicator& communicator, const Dataset& dataset) {
    Objects objects(communicator, dataset, kSteps);
    Objects other(communicator, dataset, kSteps, 4);
    const StateCopy state = objects.state();
    EXPECT_THROW(other.go_on_from(state), ConfigError);
    StateCopy late = state;
    for (StateCopy::Value& value : late.values)
      if (value.name == "train.epoch_step" || value.name == "train.steps") value.value = kStepsInEpoch + 1;
    EXPECT_THROW(objects.go_on_from(late), DataError);
    StateCopy incomplete = state;
    incomplete.values.pop_back();
    expect_parts(message_of<DataError>([&] { objects.go_on_from(incomplete); }), {state.values.back().name});
  });
}

// Evaluation, exports and digests use the mean of running statistics over ranks, equal on all ranks. Training
// continues with each rank's own statistics.
TEST(Evaluation, DoesNotChangeTraining) {
  std::vector<std::string> digests(kRanks);
  on_ranks([&](Communicator& communicator, const Dataset& dataset) {
    Objects plain(communicator, dataset, kSteps), evaluated(communicator, dataset, kSteps);
    for (int step = 0; step < 6; ++step) {
      plain.trainer().step();
      evaluated.trainer().step();
      const auto own = [&] {
        const std::span<const float> statistics = evaluated.network().statistics();
        return std::vector<float>(statistics.begin(), statistics.end());
      };
      const std::vector<float> before = own();
      evaluated.trainer().evaluate();
      EXPECT_EQ(own(), before) << "after step " << step + 1;
    }
    EXPECT_FALSE(
        std::ranges::equal(evaluated.network().evaluation_statistics(), evaluated.network().statistics()));
    EXPECT_EQ(plain.trainer().evaluate().loss, evaluated.trainer().evaluate().loss);
    expect_equal_states(evaluated.state(), plain.state(), "evaluated after every step");
    digests[static_cast<std::size_t>(communicator.rank())] = evaluated.state_digest();
  });
  EXPECT_EQ(digests[1], digests[0]);
}

// No name appears twice in one scope, and replicated state is equal on all ranks.
TEST(Evaluation, AveragesTheStatisticsOfRanks) {
  std::vector<StateCopy> states(kRanks);
  on_ranks([&](Communicator& communicator, const Dataset& dataset) {
    Objects objects(communicator, dataset, 3);
    objects.fit();
    states[static_cast<std::size_t>(communicator.rank())] = objects.state();
  });
  std::size_t own = 0;
  for (std::size_t i = 0; i < states[0].tensors.size(); ++i) {
    const StateCopy::Tensor& zero = states[0].tensors[i];
    const StateCopy::Tensor& one = states[1].tensors[i];
    EXPECT_EQ(std::ranges::count_if(
                  states[0].tensors,
                  [&](const auto& other) { return other.name == zero.name && other.scope == zero.scope; }),
              1)
        << zero.name;
    EXPECT_EQ(zero == one, zero.scope == StateScope::replicated) << zero.name;
    if (zero.scope != StateScope::per_rank) continue;
    ++own;
    const auto mean = std::ranges::find(states[0].tensors, zero.name, &StateCopy::Tensor::name);
    for (std::size_t k = 0; k < zero.values.size(); ++k)
      EXPECT_FLOAT_EQ(mean->values[k], (zero.values[k] + one.values[k]) / 2) << zero.name;
  }
  EXPECT_EQ(own, 4u) << "mean and variance of two layers";
}

}  // namespace
}  // namespace lockstep
