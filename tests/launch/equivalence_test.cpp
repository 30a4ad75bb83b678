// SPDX-License-Identifier: Apache-2.0
//
// N ranks are one rank with N times the accumulation: the same samples, the same mean, the same parameters.
#include <cmath>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "tests/launch/program.h"

namespace lockstep {
namespace {

struct Split {
  int ranks;
  int accumulation;
};

using Settings = std::vector<std::string>;
using Tensors = std::map<std::string, std::vector<float>>;

// Norm of the difference over norm.
double distance(const std::vector<float>& a, const std::vector<float>& b) {
  double difference = 0;
  double norm = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    difference += std::pow(static_cast<double>(a[i]) - b[i], 2);
    norm += std::pow(static_cast<double>(b[i]), 2);
  }
  return std::sqrt(difference / norm);
}

Tensors trained(const Workplace& workplace, Settings settings, const Split& split, int steps) {
  const auto file =
      workplace.path(fmt::format("{}_{}_{}.safetensors", split.ranks, split.accumulation, steps));
  for (const std::string& setting :
       {std::string("model.batch_norm=false"), std::string("train.epochs=10"),
        fmt::format("train.accumulation={}", split.accumulation), fmt::format("train.steps={}", steps)}) {
    settings.push_back(setting);
  }
  const ProgramResult result = run_ranks(split.ranks, workplace.train(settings, "--export " + file.string()));
  EXPECT_EQ(result.exit_code, 0) << result.output;
  return tensors_of(file);
}

void expect_equal(const Settings& settings, const std::vector<Split>& splits) {
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

const std::vector<Split> kFour = {{1, 4}, {2, 2}, {4, 1}};
const std::vector<Split> kThree = {{1, 3}, {3, 1}};
const std::vector<Split> kFive = {{1, 5}, {5, 1}};

TEST(Equivalence, MlpOnFourRanks) { expect_equal({"model.name=mlp"}, kFour); }
TEST(Equivalence, MlpOnThreeRanks) { expect_equal({"model.name=mlp"}, kThree); }
TEST(Equivalence, MlpOnFiveRanks) { expect_equal({"model.name=mlp"}, kFive); }
TEST(Equivalence, CnnOnFourRanks) { expect_equal({"model.name=cnn"}, kFour); }
TEST(Equivalence, CnnOnThreeRanks) { expect_equal({"model.name=cnn"}, kThree); }
TEST(Equivalence, CnnOnFiveRanks) { expect_equal({"model.name=cnn"}, kFive); }
TEST(Equivalence, DropoutAndLabelSmoothingOnFourRanks) {
  expect_equal({"model.name=cnn", "model.dropout=0.5", "train.label_smoothing=0.1"}, kFour);
}

TEST(Equivalence, AugmentationOnFourRanks) {
  expect_equal({"model.name=cnn", "data.crop_padding=2", "data.horizontal_flip=true"}, kFour);
}

std::string digest_of(const Workplace& workplace, const std::vector<std::string>& settings) {
  const auto file = workplace.path("digest");
  std::vector<std::string> all = {"model.name=cnn", "train.steps=12"};
  all.insert(all.end(), settings.begin(), settings.end());
  const ProgramResult result = run_ranks(3, workplace.train(all, "--digest " + file.string()));
  EXPECT_EQ(result.exit_code, 0) << result.output;
  return text_of(file);
}

TEST(Digest, DependsOnTheSeedAndNotOnBucketsOverlapOrChance) {
  const Workplace workplace("digest");
  const std::string digest = digest_of(workplace, {});
  EXPECT_EQ(digest.size(), 33u) << digest;
  EXPECT_EQ(digest_of(workplace, {}), digest) << "the same command twice";
  EXPECT_EQ(digest_of(workplace, {"comm.bucket_mib=[0.001, 0.01, 0.001]"}), digest);
  EXPECT_EQ(digest_of(workplace, {"train.recompute=true", "model.name=resnet20"}),
            digest_of(workplace, {"model.name=resnet20"}))
      << "recomputation";
  EXPECT_EQ(digest_of(workplace, {"comm.overlap=false"}), digest);
  EXPECT_EQ(digest_of(workplace, {"comm.overlap=false", "comm.bucket_mib=[100, 100, 100]"}), digest);
  EXPECT_NE(digest_of(workplace, {"train.seed=2"}), digest);
  const std::string augmented = digest_of(workplace, {"data.crop_padding=2", "data.horizontal_flip=true"});
  EXPECT_NE(augmented, digest);
  EXPECT_NE(augmented, digest_of(workplace, {"data.crop_padding=2"}));
}

}  // namespace
}  // namespace lockstep
