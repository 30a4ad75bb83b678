// SPDX-License-Identifier: Apache-2.0
#include "launch/program/devices/kernel_table.h"

#include <regex>

#include <gtest/gtest.h>

#include "tests/matches_in.h"
#include "tests/message_of.h"

namespace lockstep {
namespace {

constexpr std::int64_t kMoment = 1'700'000'000;  // in November 2023

// The key of a convolution on the CPU.
std::string convolution(const std::string& direction) {
  return "convolution " + direction +
         ", 128x32x14x14 fp32 [128, 32, 14, 14] blocked 128:6272 32:3136 14:224 1 16b to 64, kernel 3 "
         "stride 1 padding 1 dilation 1 groups 1";
}

std::string table(const std::map<std::string, KernelChoice>& choices) {
  const KeptKernels kept{
      .file = "cache/kernels-1.json", .identity = "library 1, 2 threads", .choices = choices};
  return kernel_table(std::span(&kept, 1));
}

TEST(KernelTable, GroupsTheDirectionsOfAShape) {
  const KernelChoice choice{.candidate = "tiled winograd", .microseconds = 50, .first_microseconds = 75};
  const std::string text = table({{convolution("forward"), choice},
                                  {convolution("backward data"), choice},
                                  {convolution("backward weights"), choice}});
  expect_in_order(text, {"library 1, 2 threads", "cache/kernels-1.json", "direction",
                         "convolution, 128x32x14x14 fp32 blocked 16b to 64, kernel 3 stride 1 padding 1\n",
                         "  forward ", "  backward data ", "  backward weights "});
  EXPECT_EQ(lines_naming(text, "convolution"),
            "convolution, 128x32x14x14 fp32 blocked 16b to 64, kernel 3 stride 1 padding 1\n");
}

TEST(KernelTable, ShowsTimeGainDateAndDoubt) {
  const std::string text =
      table({{"linear forward, fp32 [128, 64] plain to 10 features",
              {.candidate = "quick", .microseconds = 50, .first_microseconds = 75, .chosen_at = kMoment}},
             {"linear backward data, fp32 [128, 64] plain to 10 features",
              {.candidate = "usual", .microseconds = 20, .first_microseconds = 20, .waited = 0.5}},
             {"linear backward weights, fp32 [128, 64] plain to 10 features",
              {.candidate = "loaded", .microseconds = 20, .waited = 0.5, .contests = 5}},
             {"linear forward, fp32 [128, 10] plain to 5 features", {.candidate = "only one"}}});
  expect_parts(text, {"linear, fp32 [128, 64] plain to 10 features\n"});
  EXPECT_TRUE(std::regex_search(
      text, std::regex(R"(forward +quick +50\.0 us +1\.50x  2023-11-1[45] \d\d:\d\d +settled)")))
      << text;
  EXPECT_TRUE(std::regex_search(text, std::regex(R"(data +usual +20\.0 us +first  - +doubtful)"))) << text;
  EXPECT_TRUE(std::regex_search(text, std::regex(R"(weights +loaded +20\.0 us +-  - +busy)"))) << text;
  expect_parts(lines_naming(text, "not timed"), {"1 kernel "});
  EXPECT_EQ(text.find("only one"), std::string::npos);
}

// A GPU library's names are long, and a file may contain anything.
TEST(KernelTable, LinesHaveAtMost100Characters) {
  std::string words;
  for (int i = 0; i < 60; ++i) words += " word";
  const std::string text =
      table({{convolution("backward weights"),
              {.candidate = "alg66_tile20_stages35_splitk1_reduction0_swizzle0_custom0_inner0_cluster2",
               .microseconds = 1234567.8,
               .first_microseconds = 1e7,
               .waited = 1,
               .chosen_at = kMoment}},
             {"convolution forward" + words, {.candidate = "direct", .microseconds = 1}}});
  for (const std::string& line : lines_of(text)) {
    EXPECT_LE(line.size(), 100u) << line;
    EXPECT_FALSE(line.ends_with(' ')) << line;
  }
  expect_parts(text, {"alg66_tile20_", ".. ", "doubtful"});
}

TEST(KernelTable, PrintsARowForAnyKeyWithoutControlCharacters) {
  const KernelChoice choice{.candidate = "\x1b[2J", .microseconds = 1};
  const std::string text =
      table({{"", choice}, {" forward", choice}, {"convolution [", choice}, {"blocked  groups", choice}});
  EXPECT_EQ(matches_in(text, R"(\b1\.0 us)"), 4) << text;
  EXPECT_EQ(text.find('\x1b'), std::string::npos);
}

}  // namespace
}  // namespace lockstep
