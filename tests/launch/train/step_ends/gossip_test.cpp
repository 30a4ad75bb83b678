// SPDX-License-Identifier: Apache-2.0
//
// Ranks on a ring, on threads: the number of steps of each rank if one is slow, the average with the
// neighbours, and that training learns. Between processes: gossip_ranks.cpp.
#include "launch/train/step_ends/gossip.h"

#include <algorithm>
#include <numeric>

#include <gtest/gtest.h>

#include "comm/agreement.h"
#include "launch/train/digest.h"
#include "tests/comm/thread_ranks.h"
#include "tests/launch/train/on_ring.h"
#include "tests/launch/train/state_of.h"

namespace lockstep {
namespace {

void on_ring(const RingTraining& training, const std::function<void(Communicator&, OnRing&)>& body) {
  run_thread_ranks(training.ranks, [&](Communicator& communicator) {
    backend_for({}).set_threads(1);
    OnRing rank(training, communicator);
    body(communicator, rank);
  });
}

TEST(Gossip, SlowRankTakesAtMostOneStepAndItsPeersTheOthers) {
  constexpr int kSlow = 1;
  on_ring({.epochs = 2}, [&](Communicator& communicator, OnRing& rank) {
    SlowRank slow(communicator, kSlow);
    rank.fit({&slow});
    const std::vector<std::int64_t> steps = rank.trainer().steps_by_rank();
    ASSERT_EQ(steps.size(), 3u);
    EXPECT_EQ(std::accumulate(steps.begin(), steps.end(), std::int64_t{0}), 3 * kRingSteps);
    EXPECT_LE(steps[kSlow], 1) << "rank " << communicator.rank();
    EXPECT_EQ(rank.trainer().steps(), 2 * kRingSteps) << "the mean over the ranks";
    EXPECT_EQ(rank.trainer().epochs(), 2);
  });
}

// After the first epoch the absent rank waits until its peers have taken all steps of the second one.
class AbsentRank final : public TrainingObserver {
 public:
  // Collective.
  AbsentRank(Communicator& communicator, int absent)
      : taken_(communicator, 1),
        is_absent_(communicator.rank() == absent),
        steps_of_two_epochs_(2 * communicator.size() * kRingSteps) {}
  void step_done(const StepRecord&) override {
    taken_.take_step(std::numeric_limits<std::int64_t>::max());
    ++own_steps;
  }
  void epoch_trained(const EpochRecord& record) override {
    has_ledger = record.ledger.has_value();
    steps = record.steps;
  }
  void epoch_over(const EpochRecord& record) override {
    while (is_absent_ && record.epoch == 1 && taken_.steps_taken() < steps_of_two_epochs_)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  bool has_ledger = false;     // in the last epoch; observers exchange what it holds
  std::int64_t steps = 0;      // of the last epoch's record
  std::int64_t own_steps = 0;  // of this rank

 private:
  NeighbourSlots taken_;
  bool is_absent_;
  std::int64_t steps_of_two_epochs_;
};

TEST(Gossip, RankThatTakesNoStepReportsLikeItsPeers) {
  constexpr int kAbsent = 1;
  on_ring({.epochs = 2}, [&](Communicator& communicator, OnRing& rank) {
    AbsentRank absent(communicator, kAbsent);
    rank.fit({&absent});
    const std::vector<std::int64_t> steps = rank.trainer().steps_by_rank();
    EXPECT_EQ(steps[kAbsent], 0);
    EXPECT_EQ(absent.steps, steps[static_cast<std::size_t>(communicator.rank())]) << "those of the account";
    EXPECT_EQ(rank.trainer().totals().steps, absent.own_steps);
    for (const std::int32_t has : gather_values<std::int32_t>(communicator.host(), absent.has_ledger))
      EXPECT_EQ(has, absent.has_ledger);
  });
}

// In the first epoch rank 1 takes one step and rank 0 the others; then both end the epoch.
class EndsWithinTheEpoch final : public TrainingObserver {
 public:
  // Collective. steps: of both ranks.
  EndsWithinTheEpoch(Communicator& communicator, std::int64_t steps)
      : taken_(communicator, 1), awaited_(communicator.rank() == 0 ? 2 : steps), steps_(steps) {}
  void step_done(const StepRecord& record) override {
    last_step = record.step;
    taken_.take_step(std::numeric_limits<std::int64_t>::max());
    while (taken_.steps_taken() < awaited_) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  bool wants_to_meet() override { return taken_.steps_taken() >= steps_; }
  bool goes_on() override { return false; }
  std::int64_t last_step = 0;  // that this rank has reported

 private:
  NeighbourSlots taken_;
  std::int64_t awaited_, steps_;
};

// A resumed training drops the lines of later steps from the files of the run.
TEST(Gossip, NoRankReportsAStepAfterThatOfAnEndWithinAnEpoch) {
  on_ring({.ranks = 2}, [](Communicator& communicator, OnRing& rank) {
    EndsWithinTheEpoch ends(communicator, 5);
    rank.fit({&ends});
    EXPECT_EQ(rank.trainer().steps_by_rank(), (std::vector<std::int64_t>{4, 1}));
    EXPECT_EQ(rank.trainer().steps(), 3);
    EXPECT_EQ(ends.last_step, communicator.rank() == 0 ? 3 : 1);
  });
}

TEST(Gossip, RanksLearnTogether) {
  for (const int ranks : {1, 2, 5}) {
    on_ring({.ranks = ranks, .epochs = 3}, [&](Communicator& communicator, OnRing& rank) {
      const double before = rank.trainer().evaluate().loss;
      rank.fit();
      const Evaluation evaluation = rank.trainer().evaluate();
      // How far it falls depends on the order in which the ranks take their steps.
      EXPECT_LT(evaluation.loss, before) << ranks << " ranks";
      EXPECT_EQ(evaluation.samples, 512);
      // The loss is a mean over the ranks, and so the same on each whatever they evaluate.
      for (const std::string& each : gather_texts(communicator.host(), digest(rank.network())))
        EXPECT_EQ(each, digest(rank.network())) << "every rank evaluates the average";
    });
  }
}

// Ranks average one after another without gradients. Each one gets the mean of its values and the last ones
// that its neighbours published.
TEST(Gossip, StepAveragesWithTheLastValuesOfTheNeighbours) {
  constexpr int kRingRanks = 4;
  run_thread_ranks(kRingRanks, [&](Communicator& communicator) {
    Graph graph({.batch = 1, .height = 8, .width = 8, .channels = 1, .classes = 4});
    mlp(graph);
    Network network(graph, {.precision = Precision::bf16});
    Gossip gossip(network, communicator);
    Stream stream({}, StreamUse::compute);
    const int rank = communicator.rank();
    std::ranges::fill(network.values(), static_cast<float>(rank + 1));
    network.copy_weights(stream);
    stream.synchronize();
    const auto one_after_another = [&] {
      for (int turn = 0; turn < kRingRanks; ++turn) {
        if (turn == rank) gossip.average(stream);
        communicator.barrier();
        communicator.stream().synchronize();
      }
    };
    one_after_another();
    // The ranks publish 1, 2, 3 and 4. Rank 0 sees no neighbour, 1 has seen 0, 2 has seen 1, and 3 has seen 2
    // and 0.
    const float first[] = {1, (2 + 1) / 2.0f, (3 + 2) / 2.0f, (4 + 3 + 1) / 3.0f};
    for (const float value : network.values()) ASSERT_FLOAT_EQ(value, first[rank]) << "rank " << rank;
    for (const BFloat16 copy : network.weight_copies().as<BFloat16>())
      ASSERT_EQ(copy.bits, BFloat16(first[rank]).bits) << "layers compute with the average, rank " << rank;
    one_after_another();
    const float second = rank == 0 ? (first[0] + 4 + 2) * (1 / 3.0f) : (first[1] + first[0] + 3) * (1 / 3.0f);
    for (const float value : network.values()) {
      if (rank > 1) break;
      ASSERT_FLOAT_EQ(value, second) << "rank " << rank;
    }
    if (rank == 0) {
      gossip.average(stream);  // with what 1 and 3 have published since
      const std::vector<float> third(network.values().begin(), network.values().end());
      gossip.average(stream);
      EXPECT_TRUE(std::ranges::equal(network.values(), third)) << "the neighbours have published nothing new";
    }
    communicator.barrier();  // before any rank frees its memory
    communicator.stream().synchronize();
  });
}

// Each rank continues with its own parameters; the export is their average.
TEST(Gossip, EvaluationDoesNotChangeTheStateOfARank) {
  on_ring({.ranks = 2}, [](Communicator& communicator, OnRing& rank) {
    for (int step = 0; step < 5; ++step) rank.trainer().step();
    const std::vector<float> own(rank.network().values().begin(), rank.network().values().end());
    rank.trainer().evaluate();
    const std::vector<float> shown(rank.network().values().begin(), rank.network().values().end());
    std::vector<float> both(2 * own.size());
    communicator.all_gather(own.data(), both.data(), own.size(), DType::f32);
    communicator.stream().synchronize();
    for (std::size_t i = 0; i < own.size(); ++i)
      ASSERT_FLOAT_EQ(shown[i], (both[i] + both[own.size() + i]) / 2);
    const StateCopy state = state_of(rank.trainer());
    const std::span<const Parameter> parameters = rank.network().parameters();
    const auto bias = std::ranges::find_if(parameters, [](const Parameter& parameter) {
      return parameter.layout.shape().rank() == 1;  // for these the order in a state is that in memory
    });
    bool found = false;
    for (const auto& tensor : state.tensors) {
      if (tensor.scope != StateScope::per_rank || tensor.name != bias->name) continue;
      found = true;
      EXPECT_TRUE(std::ranges::equal(
          tensor.values,
          std::span(own).subspan(static_cast<std::size_t>(bias->offset), tensor.values.size())))
          << "a checkpoint has the rank's own parameters";
    }
    EXPECT_TRUE(found);
  });
}

}  // namespace
}  // namespace lockstep
