// SPDX-License-Identifier: Apache-2.0
#include "launch/layer_profile.h"

#include <gtest/gtest.h>

namespace lockstep {
namespace {

using Row = LayerProfile::Row;

TEST(ExplainAbovePeak, SaysNothingOfWhatIsBelow) {
  const Row rows[] = {{.kernel = "tiled winograd", .share_of_peak = 1.004}, {.share_of_peak = 0.3}};
  EXPECT_TRUE(explain_above_peak(rows).empty());
}

TEST(ExplainAbovePeak, NamesTheReasonThatApplies) {
  struct Case {
    Row row;
    std::string reason;
  };
  for (const auto& [row, reason] :
       {Case{{.kernel = "tiled winograd", .share_of_peak = 1.52}, "Winograd kernels need fewer"},
        Case{{.kernel = "tiled winograd", .share_of_peak = 1.52, .memory_bound = true}, "in a cache"},
        Case{{.share_of_peak = 2.5, .memory_bound = true}, "in a cache"},
        Case{{.kernel = "direct", .share_of_peak = 1.2}, "had other work"}}) {
    const std::vector<std::string> lines = explain_above_peak(std::span(&row, 1));
    ASSERT_EQ(lines.size(), 1u);
    EXPECT_NE(lines[0].find("above 100 % of peak: "), std::string::npos) << lines[0];
    EXPECT_NE(lines[0].find(reason), std::string::npos) << lines[0];
  }
}

TEST(ExplainAbovePeak, GivesEachReasonOnce) {
  const Row winograd{.kernel = "winograd", .share_of_peak = 2};
  const Row cached{.share_of_peak = 2, .memory_bound = true};
  const Row rows[] = {winograd, cached, winograd, cached};
  EXPECT_EQ(explain_above_peak(rows).size(), 2u);
}

}  // namespace
}  // namespace lockstep
