// SPDX-License-Identifier: Apache-2.0
#include "launch/program/network/layer_table.h"

#include <algorithm>
#include <vector>

#include <gtest/gtest.h>

#include "tests/message_of.h"

namespace lockstep {
namespace {

using Row = LayerProfile::Row;

const std::vector<Row> kRows = {{.name = "layer3.0.conv1",
                                 .kind = "convolution",
                                 .direction = "gradient of weights",
                                 .kernel = "tiled winograd",
                                 .milliseconds = 12345.67,
                                 .gigaflops = 654321,
                                 .gigabytes_per_second = 4800.5,
                                 .share_of_peak = 1.25},
                                {.name = "average pooling after features.17.conv.1.1",
                                 .kind = "average pooling",
                                 .direction = "backward",
                                 .kernel = "",
                                 .milliseconds = 1.5,
                                 .gigabytes_per_second = 12.5,
                                 .share_of_peak = 0.5},
                                {.name = "layer3.0.downsample.0",
                                 .kind = "convolution",
                                 .direction = "recomputation",
                                 .kernel = "a_kernel_of_so_long_a_name_that_it_has_a_line_of_its_own",
                                 .milliseconds = 0.5,
                                 .gigaflops = 10,
                                 .gigabytes_per_second = 1,
                                 .share_of_peak = 0.25}};

std::vector<std::string> lines_for(int columns, std::size_t shown = 3) {
  return lines_of(layer_table(kRows, shown, {.present = columns > 0, .columns = columns}));
}

std::size_t longest(const std::vector<std::string>& lines) {
  return std::ranges::max_element(lines, {}, &std::string::size)->size();
}

TEST(LayerTable, NarrowTerminalsGetShortNamesAndAllNumbers) {
  const std::vector<std::string> lines = lines_for(80);
  const std::vector<std::string> expected = {
      "  layer3.0.conv1 (tiled winograd)    wgrad  12345.67 100.0  654321 4800.5    125",
      "  average pooling after              bwd        1.50   0.0           12.5     50",
      "    features.17.conv.1.1",
      "  layer3.0.downsample.0              recomp     0.50   0.0      10    1.0     25",
      "    (a_kernel_of_so_long_a_name_that_it_has_a_line_of_its_own)"};
  ASSERT_EQ(lines.size(), 2 + expected.size());
  EXPECT_EQ(std::vector(lines.begin() + 2, lines.end()), expected);
  expect_parts(lines[0], {"fwd", "bwd", "wgrad", "dgrad"});
  expect_parts(lines[1], {"ms", "GFLOP/s", "GB/s"});
  EXPECT_EQ(lines[1].size(), lines[2].size());
  EXPECT_EQ(longest(lines), 80u);
}

TEST(LayerTable, IsCompleteOnAWideTerminal) {
  const std::vector<std::string> plain = lines_for(0);
  ASSERT_EQ(plain.size(), 4u);
  expect_parts(plain[0], {" ms ", " GFLOP/s ", " GB/s "});
  EXPECT_EQ(plain[0].size(), plain[1].size());
  EXPECT_EQ(plain[1],
            "  layer3.0.conv1                 gradient of weights  tiled winograd         12345.67  100.0   "
            "654321  4800.5    125");
  const int width = static_cast<int>(longest(plain));
  EXPECT_EQ(lines_for(width), plain);
  EXPECT_LE(longest(lines_for(width - 1)), static_cast<std::size_t>(width - 1));
}

TEST(LayerTable, AnUnknownShareOfThePeakIsADash) {
  const Row row{.name = "fc1", .direction = "forward", .milliseconds = 1};
  const std::string table = layer_table(std::span(&row, 1), 1, {});
  EXPECT_TRUE(table.ends_with("     -\n")) << table;
}

TEST(LayerTable, PercentagesIncludeHiddenRows) {
  const std::vector<std::string> lines = lines_for(0, 1);
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_NE(lines[1].find(" 100.0 "), std::string::npos) << lines[1];
  EXPECT_EQ(lines_for(0, 100).size(), 4u);
}

}  // namespace
}  // namespace lockstep
