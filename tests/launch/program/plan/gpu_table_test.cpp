// SPDX-License-Identifier: Apache-2.0
#include "launch/program/plan/gpus/gpu_table.h"

#include <regex>
#include <set>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "core/error.h"
#include "core/files/file_text.h"
#include "tests/message_of.h"
#include "tests/source_folder.h"

namespace lockstep {
namespace {

const GpuFigures& gpu_named(const std::string& name) {
  return *find_gpus(std::vector<std::string>{name}).front();
}

std::vector<std::string> names_found(const std::vector<std::string>& names) {
  std::vector<std::string> found;
  for (const GpuFigures* gpu : find_gpus(names)) found.emplace_back(gpu->name);
  return found;
}

TEST(GpuTable, EachRowIsCompleteAndNamesItsSource) {
  std::set<std::string_view> names;
  for (const GpuFigures& gpu : gpu_table()) {
    EXPECT_TRUE(names.insert(gpu.name).second) << gpu.name;
    EXPECT_FALSE(gpu.product.empty() || gpu.source.empty()) << gpu.name;
    EXPECT_EQ(gpu.dollars > 0, !gpu.price_from.empty()) << gpu.name;
    EXPECT_EQ(gpu.ring_gigabytes_per_second > 0, !gpu.links_from.empty()) << gpu.name;
    EXPECT_TRUE(gpu.nvls_gigabytes_per_second == 0 ||
                gpu.nvls_gigabytes_per_second > gpu.ring_gigabytes_per_second)
        << gpu.name;
    EXPECT_GT(std::min({gpu.gigabytes, gpu.gigabytes_per_second, gpu.fp32_tflops, gpu.watts}), 0) << gpu.name;
    EXPECT_LE(gpu.tf32_tflops, gpu.fp16_tflops) << gpu.name;
  }
}

TEST(GpuTable, FindsNamesInAnySpellingOnceAndInTheTablesOrder) {
  EXPECT_EQ(names_found({"l4", "H200", "RTX 4090", "h-200"}),
            (std::vector<std::string>{"h200", "l4", "rtx4090"}));
  EXPECT_EQ(names_found({"l4", "all"}).size(), gpu_table().size());
  EXPECT_TRUE(names_found({}).empty());
}

TEST(GpuTable, UnknownNameListsAllAndSuggestsTheNearest) {
  const std::string message = message_of<UsageError>([] { names_found({"h200", "rtx4080"}); });
  expect_parts(message, {"rtx4080", "did you mean rtx4090?", "h200", "k80", "all"});
}

// The default build decides on which GPUs the kernels run.
TEST(GpuTable, LowestCapabilityIsThatOfTheBuild) {
  const std::string text = file_text(source_folder() + "/CMakeLists.txt");
  std::smatch lowest;
  ASSERT_TRUE(std::regex_search(text, lowest, std::regex("CMAKE_CUDA_ARCHITECTURES ([0-9]+)([0-9]) ")));
  EXPECT_EQ(lowest[1], fmt::format("{}", kLowestBuilt.major));
  EXPECT_EQ(lowest[2], fmt::format("{}", kLowestBuilt.minor));
}

TEST(GpuTable, OlderGpusAreUnsupportedForAReason) {
  for (const char* name : {"b200", "h200", "a100", "a40", "l4", "rtx4090"}) {
    EXPECT_EQ(why_unsupported(gpu_named(name)), "") << name;
    EXPECT_EQ(precision_words(missing_precisions(gpu_named(name))), "") << name;
  }
  expect_parts(why_unsupported(gpu_named("t4")), {"7.5", "8.0", "-DCMAKE_CUDA_ARCHITECTURES=75"});
  expect_parts(why_unsupported(gpu_named("v100")), {"7.0", "8.0", "CUDA 13", "9.10.2"});
  expect_parts(why_unsupported(gpu_named("p100")), {"6.0", "CUDA 13"});
  expect_parts(why_unsupported(gpu_named("k80")), {"3.7", "CUDA 12"});
  EXPECT_EQ(precision_words(missing_precisions(gpu_named("v100"))), "tf32, bf16");
  EXPECT_EQ(precision_words(missing_precisions(gpu_named("k80"))), "tf32, bf16, fp16");
}

TEST(GpuTable, PricesHaveClasses) {
  EXPECT_EQ(price_class(gpu_named("rtx4090")), "below $2,000");
  EXPECT_EQ(price_class(gpu_named("h200")), "above $25,000");
  EXPECT_EQ(price_class(GpuFigures{}), "not found");
}

}  // namespace
}  // namespace lockstep
