// SPDX-License-Identifier: Apache-2.0
//
// Training in half precision on real data.
#include <filesystem>

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/launch/program/program.h"
#include "tests/launch/program/run_json.h"

namespace lockstep {
namespace {

constexpr const char* kDataset = "/usr/share/datasets/fashion-mnist";  // Debian's dataset-fashion-mnist

// Test accuracy in per cent after half an epoch.
double accuracy_in(const std::string& precision) {
  const Workplace workplace("half_training");
  const auto folder = workplace.path("run");
  const ProgramResult result =
      run_ranks(2, fmt::format("{} train fashion_mnist_cnn --set train.epochs=1 --set train.steps=230 "
                               "--set kernels.choose=direct --set train.precision={} --set run.dir={}",
                               program("lockstep"), precision, folder.string()));
  EXPECT_EQ(result.exit_code, 0) << result.output;
  return 100 * last_metrics_of(folder).at("test_accuracy").get<double>();
}

// So early the accuracy of one seed varies by two points with the order of a sum.
// benchmarks/results/half_precision_cnn.json has three seeds of five epochs.
TEST(HalfTraining, ReachesTheAccuracyOfFp32) {
  if (!std::filesystem::exists(kDataset)) GTEST_SKIP() << "dataset-fashion-mnist is not installed";
  const double fp32 = accuracy_in("fp32");
  EXPECT_GT(fp32, 80);
  for (const char* half : {"bf16", "fp16"}) EXPECT_GT(accuracy_in(half), fp32 - 4) << half;
}

// Sums over ranks are rounded to 16 bits, independent of bucket boundaries and send times.
TEST(HalfTraining, BucketsAndOverlapChangeNoBit) {
  const Workplace workplace("half_digest");
  for (const std::string precision : {"train.precision=fp16", "train.precision=bf16"}) {
    const std::string digest = digest_of(workplace, 2, {precision, "train.steps=10"});
    EXPECT_EQ(digest_of(workplace, 2,
                        {precision, "train.steps=10", "comm.bucket_mib=[0.001, 0.01, 0.001]",
                         "comm.overlap=false"}),
              digest);
  }
}

}  // namespace
}  // namespace lockstep
