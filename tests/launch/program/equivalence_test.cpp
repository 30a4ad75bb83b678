// SPDX-License-Identifier: Apache-2.0
//
// The program on several ranks: N ranks equal one rank with N times the accumulation, and the same command
// gives the same bits. trainer_ranks_test checks the Trainer with more networks, ranks and steps.
#include <set>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "tests/distance.h"
#include "tests/launch/program/program.h"

namespace lockstep {
namespace {

struct Share {
  int ranks;
  int accumulation;
};

using Settings = std::vector<std::string>;
using Tensors = std::map<std::string, std::vector<float>>;

Tensors trained(const Workplace& workplace, const Share& share, int steps) {
  const auto file = workplace.path("weights.safetensors");
  const ProgramResult result =
      run_ranks(share.ranks, workplace.train({"model.name=cnn", "model.batch_norm=false", "train.epochs=10",
                                              fmt::format("train.accumulation={}", share.accumulation),
                                              fmt::format("train.steps={}", steps)},
                                             "--export " + file.string()));
  EXPECT_EQ(result.exit_code, 0) << result.output;
  return tensors_of(file);
}

TEST(Equivalence, CnnOnFourRanks) {
  const Workplace workplace("equivalence");
  for (const auto& [steps, tolerance] : {std::pair{1, 1e-6}, {50, 1e-4}}) {
    const Tensors reference = trained(workplace, Share{1, 4}, steps);
    const Tensors other = trained(workplace, Share{4, 1}, steps);
    ASSERT_FALSE(reference.empty());
    ASSERT_EQ(other.size(), reference.size());
    for (const auto& [name, values] : reference)
      EXPECT_LE(distance(other.at(name), values), tolerance) << name << " after " << steps << " steps";
  }
}

// The comparisons between ranks change nothing.
TEST(Digest, CallChecksKeepIt) {
  const Workplace workplace("checked");
  const auto digest_with = [&](std::vector<std::string> settings) {
    settings.insert(settings.begin(), {"model.name=cnn", "train.steps=4"});
    return digest_of(workplace, 2, settings);
  };
  const std::string digest = digest_with({"comm.check=off"});
  EXPECT_EQ(digest_with({"comm.check=collective"}), digest);
  EXPECT_EQ(digest_with({"comm.check=step"}), digest);
}

// With one thread and direct kernels, on any machine.
TEST(Digest, ReproducibleTrainingDoesNotDependOnTheNumberOfRanks) {
  const Workplace workplace("reproducible");
  const auto digest_on = [&](int ranks, std::vector<std::string> settings) {
    settings.insert(settings.begin(), {"model.name=cnn", "train.steps=2", "train.batch=2", "train.threads=0",
                                       "train.reproducible=true", "data.crop_padding=1"});
    return digest_of(workplace, ranks, settings);
  };
  const std::string digest = digest_on(1, {"train.accumulation=4"});
  EXPECT_EQ(digest_on(2, {"train.accumulation=2"}), digest);
  EXPECT_EQ(digest_on(4, {"comm.overlap=false"}), digest);
}

// The exchange overlaps the next forward pass, over MPI. cross_barrier_test.cpp has other numbers of ranks.
TEST(Digest, CrossBarrierEqualsSynchronousTraining) {
  const Workplace workplace("cross_barrier");
  for (const Share& share : {Share{1, 1}, Share{4, 2}}) {
    const std::vector<std::string> settings = {"model.name=cnn", "train.steps=12",
                                               fmt::format("train.accumulation={}", share.accumulation)};
    std::vector<std::string> crossing = settings;
    crossing.insert(crossing.end(), {"comm.cross_barrier=true", "comm.bucket_mib=[0.001, 0.01, 0.001]"});
    EXPECT_EQ(digest_of(workplace, share.ranks, crossing), digest_of(workplace, share.ranks, settings))
        << share.ranks << " ranks";
  }
}

// Over MPI, with shares of shared memory and rests of fewer cache lines than ranks. sharded_test.cpp has
// other optimizers and numbers of ranks.
TEST(Digest, ShardedExchangeEqualsTheDenseOne) {
  const Workplace workplace("sharded");
  const std::vector<std::string> settings = {"model.name=cnn", "train.steps=12", "train.batch=4",
                                             "optimizer.name=adamw", "comm.bucket_mib=[0.001, 0.01, 0.001]"};
  std::vector<std::string> sharded = settings;
  sharded.emplace_back("comm.exchange=sharded");
  EXPECT_EQ(digest_of(workplace, 3, sharded), digest_of(workplace, 3, settings));
}

// Over MPI: gradients in time, gradients whose exchange overlaps a whole step, and a training that ends
// between two averages. The program compares its ranks' digests. keys_ranks.cpp has settings that change the
// digest.
TEST(Digest, DoesNotDependOnBucketsOrOverlap) {
  const Workplace workplace("digest");
  const auto digest_with = [&](Settings settings) {
    settings.insert(settings.begin(), {"model.name=cnn", "train.steps=11"});
    return digest_of(workplace, 3, settings);
  };
  std::set<std::string> digests;
  for (Settings way : {Settings{}, {"train.staleness=1"}, {"train.average_every=4"}}) {
    const std::string digest = digest_with(way);
    EXPECT_EQ(digest.size(), 33u) << digest;
    EXPECT_TRUE(digests.insert(digest).second) << digest;
    way.insert(way.end(), {"comm.overlap=false", "comm.bucket_mib=[0.001, 0.01, 0.001]"});
    EXPECT_EQ(digest_with(way), digest) << way.front();
  }
}

}  // namespace
}  // namespace lockstep
