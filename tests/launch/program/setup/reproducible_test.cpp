// SPDX-License-Identifier: Apache-2.0
#include "launch/program/setup/reproducible.h"

#include <gtest/gtest.h>

#include "core/error.h"
#include "tests/message_of.h"

namespace lockstep {
namespace {

Config wanted(std::int64_t accumulation) {
  Config config;
  config.reproducible = true;
  config.loader.accumulation = accumulation;
  return config;
}

TEST(MakeReproducible, FixesOnlyMachineDependentSettings) {
  Config config = wanted(4);
  make_reproducible(config, {}, 2);
  EXPECT_EQ(config.threads, 1);
  EXPECT_EQ(config.kernels.choose, "direct");
  config.threads = 3;
  config.kernels.choose = "winograd";
  make_reproducible(config, {}, 2);
  EXPECT_EQ(config.threads, 3);
  EXPECT_EQ(config.kernels.choose, "winograd");
  Config other;
  make_reproducible(other, {.kind = DeviceKind::cuda}, 2);
  EXPECT_EQ(other.threads, 0);
  EXPECT_EQ(other.kernels.choose, "time");
}

TEST(MakeReproducible, RefusesSumsOutsideTheTree) {
  const auto refusal = [](std::int64_t accumulation, int ranks, Device device = {}) {
    Config config = wanted(accumulation);
    return message_of<ConfigError>([&] { make_reproducible(config, device, ranks); });
  };
  expect_parts(refusal(3, 2), {"train.reproducible = true", "2 ranks", "train.accumulation = 3"});
  EXPECT_EQ(refusal(3, 1), "");
  EXPECT_EQ(refusal(4, 3), "");
  expect_parts(refusal(1, 2, {.kind = DeviceKind::cuda}),
               {"train.reproducible = true", "cuda:0", "world.device = \"cpu\""});
}

}  // namespace
}  // namespace lockstep
