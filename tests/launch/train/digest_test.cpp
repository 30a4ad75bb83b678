// SPDX-License-Identifier: Apache-2.0
#include "launch/train/digest.h"

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
    cnn(graph);
    return graph;
  }
  std::unique_ptr<Optimizer> optimizer(const OptimizerOptions& options) {
    return make_optimizer(trained_memory(network_, std::span(&range_, 1)), options);
  }

  Network network_{graph(), {}};
  std::vector<float> gradients_ = std::vector<float>(network_.values().size());
  FlatRange range_{.end = static_cast<std::int64_t>(gradients_.size()), .data = gradients_.data()};
};

TEST_F(Digest, CoversEveryValueAndState) {
  const auto adamw = optimizer(AdamWOptions{});
  const std::string before = digest(network_, *adamw);
  EXPECT_EQ(digest(network_, *adamw), before);
  std::vector<float*> elements = {&adamw->state().front(), &adamw->state().back(),
                                  &network_.evaluation_statistics().front(),
                                  &network_.evaluation_statistics().back()};
  for (const Parameter& parameter : network_.parameters()) {
    elements.push_back(network_.values().data() + parameter.offset);
    elements.push_back(network_.values().data() + parameter.offset + parameter.layout.physical_elements() -
                       1);
  }
  for (float* element : elements) {
    const float kept = *element;
    *element = kept + 1;
    EXPECT_NE(digest(network_, *adamw), before);
    *element = kept;
  }
  EXPECT_EQ(digest(network_, *adamw), before);
}

// With equal parameters and moments but another bias correction, training would continue differently.
TEST_F(Digest, CoversTheStepCountOfAdamW) {
  const auto adamw = optimizer(AdamWOptions{});
  const std::string before = digest(network_, *adamw);
  Stream stream({}, StreamUse::compute);
  adamw->restore_control(stream, {.step = 2});
  EXPECT_NE(digest(network_, *adamw), before);
  adamw->restore_control(stream, {.step = 1});
  EXPECT_EQ(digest(network_, *adamw), before);
}

}  // namespace
}  // namespace lockstep
