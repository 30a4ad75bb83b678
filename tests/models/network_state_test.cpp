// SPDX-License-Identifier: Apache-2.0
#include "models/network_state.h"

#include <filesystem>

#include <gtest/gtest.h>

#include "core/error.h"
#include "models/networks/networks.h"
#include "tests/models/network_fixture.h"

namespace lockstep {
namespace {

const GraphInput kStateInput{.batch = 4, .height = 8, .width = 8, .channels = 3, .classes = 5};

class NetworkStateTest : public testing::Test {
 protected:
  NetworkStateTest() { std::filesystem::create_directories(folder_); }
  ~NetworkStateTest() override { std::filesystem::remove_all(folder_); }
  std::filesystem::path folder_ =
      std::filesystem::path(testing::TempDir()) /
      (std::string("state_") + testing::UnitTest::GetInstance()->current_test_info()->name());
  std::filesystem::path file_ = folder_ / "state.safetensors";
};

TEST_F(NetworkStateTest, SavesAndLoadsTheSameNetwork) {
  const auto build = [](Graph& graph) { cifar_resnet(graph, 1); };
  NetworkFixture trained(kStateInput, build, 1);
  trained.forward();  // moves the running statistics
  StateSnapshot(trained.network()).save(file_);
  NetworkFixture fresh(kStateInput, build, 2);
  load_state(fresh.network(), file_);
  const StateSnapshot expected(trained.network());
  const StateSnapshot loaded(fresh.network());
  ASSERT_EQ(expected.entries().size(), loaded.entries().size());
  for (std::size_t i = 0; i < expected.entries().size(); ++i) {
    EXPECT_EQ(expected.entries()[i].name, loaded.entries()[i].name);
    EXPECT_EQ(expected.entries()[i].values, loaded.entries()[i].values) << expected.entries()[i].name;
  }
}

TEST_F(NetworkStateTest, NamesAndShapesArePyTorchs) {
  NetworkFixture fixture(kStateInput, [](Graph& graph) { cnn(graph); });
  const StateSnapshot snapshot(fixture.network());
  std::vector<std::string> names;
  for (const auto& entry : snapshot.entries()) names.push_back(entry.name + to_string(entry.shape));
  const std::vector<std::string> expected = {"conv1.weight[32, 3, 3, 3]",
                                             "bn1.weight[32]",
                                             "bn1.bias[32]",
                                             "bn1.running_mean[32]",
                                             "bn1.running_var[32]",
                                             "conv2.weight[64, 32, 3, 3]",
                                             "bn2.weight[64]",
                                             "bn2.bias[64]",
                                             "bn2.running_mean[64]",
                                             "bn2.running_var[64]",
                                             "fc1.weight[128, 256]",
                                             "fc1.bias[128]",
                                             "fc2.weight[5, 128]",
                                             "fc2.bias[5]"};
  EXPECT_EQ(names, expected);
}

TEST_F(NetworkStateTest, RefusesAnotherNetworksFileAndChangesNothing) {
  NetworkFixture small(kStateInput, [](Graph& graph) { cnn(graph, {.batch_norm = false}); });
  StateSnapshot(small.network()).save(file_);
  NetworkFixture other(kStateInput, [](Graph& graph) { cnn(graph); });
  const auto before = StateSnapshot(other.network()).entries()[0].values;
  try {
    load_state(other.network(), file_);
    FAIL() << "a file without batch norm was taken for one with it";
  } catch (const DataError& error) {
    EXPECT_NE(std::string(error.what()).find("conv1.bias"), std::string::npos) << error.what();
  }
  EXPECT_EQ(StateSnapshot(other.network()).entries()[0].values, before);
  EXPECT_THROW(load_state(other.network(), folder_ / "absent.safetensors"), IoError);
}

}  // namespace
}  // namespace lockstep
