// SPDX-License-Identifier: Apache-2.0
#include "models/optimizer.h"

#include <vector>

#include <gtest/gtest.h>

namespace lockstep {
namespace {

TEST(Sgd, FollowsPyTorchsFormOverSeveralSteps) {
  std::vector<float> values = {1.0f, -2.0f, 0.5f};
  std::vector<float> gradients = {0.1f, 0.2f, -0.3f};
  std::vector<double> expected(values.begin(), values.end());
  std::vector<double> momentum(3, 0.0);
  Sgd sgd({}, values, gradients, {.momentum = 0.9f, .weight_decay = 0.01f});
  Stream stream({}, StreamUse::compute);
  for (int step = 0; step < 5; ++step) {
    sgd.step(stream, 0.1f);
    for (std::size_t i = 0; i < values.size(); ++i) {
      momentum[i] = 0.9 * momentum[i] + gradients[i] + 0.01 * expected[i];
      expected[i] -= 0.1 * momentum[i];
      EXPECT_NEAR(values[i], expected[i], 1e-6) << "step " << step << ", element " << i;
      EXPECT_NEAR(sgd.state()[i], momentum[i], 1e-6);
    }
  }
}

}  // namespace
}  // namespace lockstep
