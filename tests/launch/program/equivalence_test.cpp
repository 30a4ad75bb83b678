// SPDX-License-Identifier: Apache-2.0
//
// The program on several ranks: N ranks equal one rank with N times the accumulation, and the same command
// gives the same bits. trainer_ranks_test checks the Trainer with more networks, ranks and steps.

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

Tensors trained(const Workplace& workplace, Settings settings, const Share& share, int steps) {
  const auto file =
      workplace.path(fmt::format("{}_{}_{}.safetensors", share.ranks, share.accumulation, steps));
  for (const std::string& setting :
       {std::string("model.batch_norm=false"), std::string("train.epochs=10"),
        fmt::format("train.accumulation={}", share.accumulation), fmt::format("train.steps={}", steps)}) {
    settings.push_back(setting);
  }
  const ProgramResult result = run_ranks(share.ranks, workplace.train(settings, "--export " + file.string()));
  EXPECT_EQ(result.exit_code, 0) << result.output;
  return tensors_of(file);
}

void expect_equal(const Settings& settings, const std::vector<Share>& splits) {
  const Workplace workplace("equivalence");
  for (const auto& [steps, tolerance] : {std::pair{1, 1e-6}, std::pair{50, 1e-4}}) {
    const Tensors reference = trained(workplace, settings, splits.front(), steps);
    ASSERT_FALSE(reference.empty());
    for (std::size_t i = 1; i < splits.size(); ++i) {
      const Tensors other = trained(workplace, settings, splits[i], steps);
      ASSERT_EQ(other.size(), reference.size());
      for (const auto& [name, values] : reference) {
        EXPECT_LE(distance(other.at(name), values), tolerance)
            << settings.front() << ", " << name << " after " << steps << " steps on " << splits[i].ranks
            << " ranks";
      }
    }
  }
}

TEST(Equivalence, CnnOnFourRanks) { expect_equal({"model.name=cnn"}, {{1, 4}, {4, 1}}); }

// The comparisons between ranks change nothing, and batch norm is synchronized where configured.
TEST(Digest, CallChecksKeepItAndSyncBatchNormChangesIt) {
  const Workplace workplace("checked");
  const auto digest_with = [&](std::vector<std::string> settings) {
    settings.insert(settings.begin(), {"model.name=cnn", "train.steps=4"});
    return digest_of(workplace, 2, settings);
  };
  const std::string digest = digest_with({"comm.check=off"});
  EXPECT_EQ(digest_with({"comm.check=collective"}), digest);
  EXPECT_EQ(digest_with({"comm.check=step"}), digest);
  EXPECT_NE(digest_with({"model.sync_batch_norm=true"}), digest);
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

// The exchange overlaps a whole step, over MPI.
TEST(Digest, DelayedGradientsAreDeterministicWithAnyBuckets) {
  const Workplace workplace("delayed");
  const auto digest_with = [&](std::vector<std::string> settings) {
    settings.insert(settings.begin(), {"model.name=cnn", "train.steps=12", "train.staleness=1"});
    return digest_of(workplace, 3, settings);
  };
  const std::string digest = digest_with({});
  EXPECT_EQ(digest_with({"comm.overlap=false", "comm.bucket_mib=[0.001, 0.01, 0.001]"}), digest);
  EXPECT_NE(digest_with({"train.staleness=0"}), digest);
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
// other numbers of ranks.
TEST(Digest, ShardedExchangeEqualsTheDenseOne) {
  const Workplace workplace("sharded");
  for (const auto& [ranks, optimizer] : {std::pair{1, "adamw"}, {3, "adamw"}, {4, "sgd"}}) {
    const std::vector<std::string> settings = {"model.name=cnn", "train.steps=12", "train.batch=4",
                                               fmt::format("optimizer.name={}", optimizer),
                                               "comm.bucket_mib=[0.001, 0.01, 0.001]"};
    std::vector<std::string> sharded = settings;
    sharded.emplace_back("comm.exchange=sharded");
    EXPECT_EQ(digest_of(workplace, ranks, sharded), digest_of(workplace, ranks, settings))
        << ranks << " ranks, " << optimizer;
  }
}

// Over MPI, with a training that ends between two averages.
TEST(Digest, LocalSgdEndsWithOneDigestOnAllRanks) {
  const Workplace workplace("local_sgd");
  const auto digest_with = [&](std::vector<std::string> settings) {
    settings.insert(settings.begin(), {"model.name=cnn", "train.steps=11", "train.average_every=4"});
    return digest_of(workplace, 3, settings);  // the program compares its ranks' digests
  };
  const std::string digest = digest_with({});
  EXPECT_EQ(digest_with({"comm.overlap=false", "comm.bucket_mib=[0.001, 0.01, 0.001]"}), digest);
  EXPECT_NE(digest_with({"comm.codec=int8", "comm.compress_within_node=true"}), digest);
}

TEST(Digest, DependsOnTheSeedAndNotOnBucketsOrOverlap) {
  const Workplace workplace("digest");
  const auto digest_with = [&](std::vector<std::string> settings) {
    settings.insert(settings.begin(), {"model.name=cnn", "train.steps=12"});
    return digest_of(workplace, 3, settings);
  };
  const std::string digest = digest_with({});
  EXPECT_EQ(digest.size(), 33u) << digest;
  EXPECT_EQ(digest_with({}), digest) << "the same command twice";
  EXPECT_EQ(digest_with({"comm.overlap=false", "comm.bucket_mib=[0.001, 0.01, 0.001]"}), digest);
  EXPECT_NE(digest_with({"train.seed=2"}), digest);
}

}  // namespace
}  // namespace lockstep
