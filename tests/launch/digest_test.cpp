// SPDX-License-Identifier: Apache-2.0
#include "launch/digest.h"

#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "models/networks/networks.h"

namespace lockstep {
namespace {

class Digest : public testing::Test {
 protected:
  static Graph graph() {
    Graph graph({.batch = 2, .height = 4, .width = 4, .channels = 1, .classes = 3});
    mlp(graph);
    return graph;
  }
  std::unique_ptr<Optimizer> optimizer(const OptimizerOptions& options) {
    return make_optimizer(
        {.parameters = network_.parameters(), .values = network_.values(), .gradients = gradients_}, options);
  }

  Network network_{graph(), {}};
  std::vector<float> gradients_ = std::vector<float>(network_.values().size());
};

TEST_F(Digest, HoldsEveryValueAndState) {
  const auto adamw = optimizer(AdamWOptions{});
  const std::string before = digest(network_, *adamw);
  EXPECT_EQ(digest(network_, *adamw), before);
  for (float* element : {network_.values().data(), &adamw->state().front(), &adamw->state().back()}) {
    const float kept = *element;
    *element = kept + 1;
    EXPECT_NE(digest(network_, *adamw), before);
    *element = kept;
  }
  EXPECT_EQ(digest(network_, *adamw), before);
}

// Same parameters, same moments, another bias correction: training would go on differently.
TEST_F(Digest, HoldsTheStepsOfAdamW) {
  const auto adamw = optimizer(AdamWOptions{});
  const std::string before = digest(network_, *adamw);
  adamw->restore_steps(1);
  EXPECT_NE(digest(network_, *adamw), before);
  adamw->restore_steps(0);
  EXPECT_EQ(digest(network_, *adamw), before);
}

}  // namespace
}  // namespace lockstep
