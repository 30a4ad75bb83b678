// SPDX-License-Identifier: Apache-2.0
#include "launch/train/digest.h"

#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "models/networks/networks.h"
#include "tests/launch/train/state_of.h"

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
  for (float* element : {&adamw->state().front(), &adamw->state().back()}) {
    const float kept = *element;
    *element = kept + 1;
    EXPECT_NE(digest(network_, *adamw), before);
    *element = kept;
  }
  const StateCopy state = state_of(network_);
  for (std::size_t i = 0; i < state.tensors.size(); ++i) {
    if (state.tensors[i].scope != StateScope::replicated) continue;
    for (const std::size_t place : {std::size_t{0}, state.tensors[i].values.size() - 1}) {
      StateCopy changed = state;
      changed.tensors[i].values[place] += 1;
      set_state(network_, changed);
      EXPECT_NE(digest(network_, *adamw), before) << state.tensors[i].name << ", element " << place;
    }
  }
  set_state(network_, state);
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
