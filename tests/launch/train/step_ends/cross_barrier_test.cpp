// SPDX-License-Identifier: Apache-2.0
//
// An exchange of gradients that overlaps the next step's forward pass, on threads. Its state always has the
// bits of a training that waits, and a gradient that is not finite leaves the state before its step.
#include <filesystem>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "comm/agreement.h"
#include "comm/codecs/codec.h"
#include "data/sample_order.h"
#include "launch/train/trainer.h"
#include "launch/train/training_observer.h"
#include "models/network_state.h"
#include "models/networks/networks.h"
#include "tests/comm/keeps_its_share.h"
#include "tests/comm/thread_ranks.h"
#include "tests/launch/train/grays.h"
#include "tests/launch/train/state_of.h"
#include "tests/message_of.h"
#include "tests/temporary_folder.h"
#include "tests/thinning.h"

namespace lockstep {
namespace {

constexpr ImageShape kThreeChannels{8, 8, 3};
constexpr std::int64_t kSamplesOfARank = 4, kStepsOfAnEpoch = 8, kFirstCrossing = 4;

struct Way {
  int ranks = 2;
  std::int64_t accumulation = 1;
  OptimizerOptions optimizer = SgdOptions{.weight_decay = 1e-3};
  Precision precision = Precision::fp32;
  ExchangeChoice exchange = {.kind = &kDenseSum};
};

// Gray images in two channels. The third channel is black except in one image, whose values are too large to
// be squared.
class OneInfinite final : public Dataset {
 public:
  OneInfinite(std::int64_t size, std::int64_t infinite) : grays_(kThreeChannels, size), infinite_(infinite) {}
  std::int64_t size() const override { return grays_.size(); }
  ImageShape image_shape() const override { return kThreeChannels; }
  std::int64_t classes() const override { return grays_.classes(); }
  std::int32_t read(std::int64_t index, std::span<std::uint8_t> image) const override {
    const std::int32_t label = grays_.read(index, image);
    for (std::size_t i = 2; i < image.size(); i += 3) image[i] = index == infinite_ ? 255 : 0;
    return label;
  }

 private:
  Grays grays_;
  std::int64_t infinite_;
};

class CrossingRank {
 public:
  CrossingRank(Communicator& communicator, const Dataset& dataset, const Way& way, bool crosses,
               const std::filesystem::path& last_good = {})
      : network_(graph_of(kSamplesOfARank / way.accumulation), {.precision = way.precision,
                                                                .seed = 3,
                                                                .mean = {0, 0, 0},
                                                                .deviation = {1, 1, 1e-36},
                                                                .choices = &first_}),
        buckets_(network_.parameters(), communicator, bucket_options(way, crosses)),
        optimizer_(make_optimizer(
            trained_memory(network_, crosses ? buckets_.bucket_gradients() : buckets_.gradients()),
            way.optimizer)),
        train_(dataset, {.rank = communicator.rank(), .size = communicator.size()},
               {.batch = kSamplesOfARank / way.accumulation, .accumulation = way.accumulation, .seed = 3}),
        test_(dataset, {.rank = communicator.rank(), .size = communicator.size()},
              {.batch = kSamplesOfARank / way.accumulation, .tail = Tail::pad}),
        trainer_({.network = network_,
                  .buckets = buckets_,
                  .optimizer = *optimizer_,
                  .train = train_,
                  .test = test_,
                  .communicator = communicator,
                  .timeline = &timeline_},
                 {.base = 0.01},
                 {.accumulation = way.accumulation,
                  .epochs = 100,
                  .cross_barrier = crosses,
                  .last_good = last_good}) {}

  Trainer& trainer() { return trainer_; }
  GradientBuckets& buckets() { return buckets_; }
  Network& network() { return network_; }
  void step_until(std::int64_t steps) {
    while (trainer_.steps() < steps) trainer_.step();
  }
  StateCopy state() { return state_of(trainer_); }
  void go_on_from(const StateCopy& state) { set_state(trainer_, state); }
  // The number of compute's waits for buckets in a step, counted from 0.
  std::int64_t waits(std::int32_t step) const {
    return std::ranges::count_if(timeline_.spans(), [&](const Span& span) {
      return span.index == step && span.name == std::string_view("exchange");
    });
  }

 private:
  static Graph graph_of(std::int64_t batch) {
    Graph graph({.batch = batch, .height = 8, .width = 8, .channels = 3, .classes = 4});
    cnn(graph, {.batch_norm = true, .dropout = 0.3});
    return graph;
  }
  static BucketOptions bucket_options(const Way& way, bool crosses) {
    return {.first_bytes = 256,
            .middle_bytes = 2048,
            .last_bytes = 256,
            .exchange = way.exchange,
            .momentum = {.momentum = 0.9},
            .one_by_one = crosses};
  }

  KernelChoices first_;
  Timeline timeline_;
  Network network_;
  GradientBuckets buckets_;
  std::unique_ptr<Optimizer> optimizer_;
  BatchLoader train_;
  BatchLoader test_;
  Trainer trainer_;
};

void on_ranks_of(const Way& way, const std::function<void(Communicator&, const Dataset&)>& body,
                 std::int64_t infinite = -1) {
  const OneInfinite dataset(kSamplesOfARank * way.ranks * kStepsOfAnEpoch, infinite);
  std::vector<int> nodes;  // each rank on a separate node, so that codecs are active
  for (int rank = 0; rank < way.ranks; ++rank) nodes.push_back(rank);
  run_thread_ranks(
      way.ranks,
      [&](Communicator& communicator) {
        backend_for({}).set_threads(1);
        body(communicator, dataset);
      },
      nodes);
}

// Compares after steps that wait, steps that cross, an epoch's last step, and again.
void expect_the_same_bits(const Way& way, const std::string& what) {
  on_ranks_of(way, [&](Communicator& communicator, const Dataset& dataset) {
    CrossingRank plain(communicator, dataset, way, false), crossing(communicator, dataset, way, true);
    for (const std::int64_t steps : {3, 4, 6, 8, 13}) {
      plain.step_until(steps);
      crossing.step_until(steps);
      EXPECT_TRUE(crossing.state() == plain.state())
          << what << ", rank " << communicator.rank() << " of " << way.ranks << " after step " << steps;
    }
    const auto buckets = std::ssize(crossing.buckets().buckets());
    CHECK(buckets > 3, "{} buckets", buckets);
    for (const std::int32_t step : {0, 1, 2})
      EXPECT_EQ(crossing.waits(step), 1) << "the first steps do not cross";
    EXPECT_EQ(crossing.waits(10), buckets + 1) << "waits only for the previous step";
  });
}

TEST(CrossBarrier, ChangesNoBit) {
  for (const int ranks : Thinning().taken({3, 2, 4})) expect_the_same_bits({.ranks = ranks}, "sgd");
  expect_the_same_bits({.accumulation = 2}, "two micro-batches");
  expect_the_same_bits({.optimizer = AdamWOptions{}}, "adamw");
  expect_the_same_bits({.optimizer = LarsOptions{.weight_decay = 1e-3}}, "lars");
  expect_the_same_bits({.precision = Precision::bf16}, "bf16");
}

TEST(CrossBarrier, ChangesNoBitWithCodecs) {
  const ExchangeChoice choices[] = {
      {.kind = &kFp16Codec},
      {.kind = &kInt8Codec, .settings = {{"stochastic", 1}}},
      {.kind = &kSignCodec},
      {.kind = &kPowerSgdCodec, .settings = {{"rank", 1}, {"start_step", 5}}},
      {.kind = &kTopKCodec, .settings = {{"density", 0.05}}},
      {.kind = &kDgcCodec, .settings = {{"density", 0.01}, {"warmup_steps", 8}}}};
  for (const ExchangeChoice& choice : choices) expect_the_same_bits({.exchange = choice}, choice.describe());
}

// All pending exchanges finish before an evaluation, and training continues as if there were none.
TEST(CrossBarrier, EndsBeforeAnEvaluation) {
  const Way way;
  on_ranks_of(way, [&](Communicator& communicator, const Dataset& dataset) {
    CrossingRank plain(communicator, dataset, way, false), crossing(communicator, dataset, way, true);
    for (std::int64_t steps = 1; steps <= 12; ++steps) {
      plain.step_until(steps);
      crossing.step_until(steps);
      if (steps % 5 > 0) continue;
      const Evaluation evaluation = crossing.trainer().evaluate();
      EXPECT_EQ(evaluation.loss, plain.trainer().evaluate().loss) << "after step " << steps;
    }
    EXPECT_TRUE(crossing.state() == plain.state());
  });
}

// comm.cross_barrier may differ from the saved one.
TEST(CrossBarrier, ResumesWithinARun) {
  const Way way{.exchange = {.kind = &kInt8Codec, .settings = {{"stochastic", 1}}}};
  on_ranks_of(way, [&](Communicator& communicator, const Dataset& dataset) {
    CrossingRank whole(communicator, dataset, way, false);
    whole.step_until(13);
    for (const std::int64_t stop : Thinning().taken({5, 1, 6, 8})) {
      StateCopy saved;
      {
        CrossingRank first(communicator, dataset, way, true);
        first.step_until(stop);
        saved = first.state();
      }
      for (const bool crosses : {true, false}) {
        CrossingRank second(communicator, dataset, way, crosses);
        second.go_on_from(saved);
        second.step_until(13);
        EXPECT_TRUE(second.state() == whole.state()) << "stopped after " << stop << ", " << crosses;
      }
    }
  });
}

class FullDisk final : public TrainingObserver {
 public:
  explicit FullDisk(std::int64_t steps) : steps_(steps) {}
  void step_done(const StepRecord& record) override { step_ = record.step; }
  bool goes_on() override {
    if (step_ == steps_) throw_agreed(IoError("full"));
    return true;
  }

 private:
  std::int64_t steps_, step_ = 0;
};

// An abandoned job would end by MPI_Abort(), which may end rank 0 before it prints the error.
TEST(CrossBarrier, AgreedErrorBetweenStepsDoesNotAbandonTheJob) {
  const Way way;
  on_ranks_of(way, [&](Communicator& communicator, const Dataset& dataset) {
    FullDisk disk(kFirstCrossing + 1);
    {
      CrossingRank rank(communicator, dataset, way, true);
      TrainingObserver* const observers[] = {&disk};
      EXPECT_EQ(message_of<IoError>([&] { rank.trainer().fit(observers); }), "full");
    }
    EXPECT_FALSE(communicator.job()->abandoned());
  });
}

// The account's parts add up to the elapsed time and include the waits in the ledger.
TEST(CrossBarrier, CountsWaitsWithinForwardAsExposed) {
  const Way way;
  on_ranks_of(way, [&](Communicator& communicator, const Dataset& dataset) {
    CrossingRank rank(communicator, dataset, way, true);
    rank.step_until(kFirstCrossing - 1);
    const auto seconds = [](std::int64_t from, std::int64_t to) {
      return static_cast<double>(to - from) * 1e-9;
    };
    // This thread may lose its core between reading the clock and taking the account.
    const std::int64_t before = now_ns();
    rank.trainer().take_account();
    const std::int64_t begin = now_ns();
    rank.step_until(7);
    const std::int64_t end = now_ns();
    const StepAccount account = rank.trainer().take_account();
    EXPECT_LE(account.total(), seconds(before, now_ns()) + 1e-6);
    EXPECT_GE(account.total(), seconds(begin, end) * 0.99 - 1e-6);
    EXPECT_GT(account[Phase::exposed_communication], 0);
    EXPECT_GT(account[Phase::optimizer], 0);
  });
}

// In a step that waits, the first that crosses, a later one, and the last of an epoch.
TEST(CrossBarrier, NonFiniteGradientKeepsTheStateBeforeItsStep) {
  const Way way{.precision = Precision::fp16};
  const TemporaryFolder folder("cross_barrier");
  const std::filesystem::path file = folder.path() / "last_good.safetensors";
  for (const std::int64_t failing : {std::int64_t{2}, kFirstCrossing, std::int64_t{6}, kStepsOfAnEpoch}) {
    const std::int64_t samples = kSamplesOfARank * way.ranks;
    // Rank 1's second sample.
    const std::int64_t infinite =
        SampleOrder(samples * kStepsOfAnEpoch, 3, 0)(samples * (failing - 1) + kSamplesOfARank + 1);
    on_ranks_of(
        way,
        [&](Communicator& communicator, const Dataset& dataset) {
          CrossingRank plain(communicator, dataset, way, false),
              crossing(communicator, dataset, way, true, file);
          plain.step_until(failing - 1);
          const std::string error = message_of([&] {
            crossing.step_until(kStepsOfAnEpoch);
            crossing.state();
          });
          expect_parts(error, {fmt::format("step {}", failing), "rank 1", file.string()});
          // The error would name the next step if the saved state had been the one after it.
          EXPECT_EQ(error.find(fmt::format("step {}", failing + 1)), std::string::npos) << error;
          plain.trainer().evaluate();  // averages the running statistics over the ranks
          const StateCopy expected = state_of(plain.network());
          load_state(crossing.network(), file);
          const StateCopy found = state_of(crossing.network());
          ASSERT_EQ(found.tensors.size(), expected.tensors.size());
          for (std::size_t i = 0; i < found.tensors.size(); ++i) {
            if (found.tensors[i].scope != StateScope::replicated) continue;
            EXPECT_TRUE(found.tensors[i] == expected.tensors[i])
                << found.tensors[i].name << ", step " << failing;
          }
          communicator.barrier();  // only one rank writes the file
          communicator.stream().synchronize();
        },
        infinite);
  }
}

TEST(CrossBarrier, RefusesCodecsThatLeaveRanksDifferentValues) {
  run_thread_ranks(2, [](Communicator& communicator) {
    const Grays dataset({8, 8, 3});
    const Way way{.exchange = {.kind = &kKeepsItsShare}};
    expect_parts(message_of<ConfigError>([&] { CrossingRank rank(communicator, dataset, way, true); }),
                 {"comm.cross_barrier", "comm.codec", "\"share\""});
  });
}

}  // namespace
}  // namespace lockstep
