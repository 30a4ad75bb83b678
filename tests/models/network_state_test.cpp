// SPDX-License-Identifier: Apache-2.0
#include "models/network_state.h"

#include <filesystem>
#include <fstream>
#include <functional>

#include <gtest/gtest.h>

#include "core/error.h"
#include "core/files/safetensors.h"
#include "models/networks/networks.h"
#include "tests/message_of.h"
#include "tests/models/network_fixture.h"
#include "tests/temporary_folder.h"

namespace lockstep {
namespace {

const GraphInput kStateInput{.batch = 4, .height = 8, .width = 8, .channels = 3, .classes = 5};

std::string error_of_loading(Network& network, const std::filesystem::path& path) {
  return message_of<DataError>([&] { load_state(network, path); });
}

class NetworkStateTest : public testing::Test {
 protected:
  const TemporaryFolder temporary_{"state"};
  const std::filesystem::path folder_ = temporary_.path(), file_ = folder_ / "state.safetensors";
};

TEST_F(NetworkStateTest, SavesAndLoadsTheSameNetwork) {
  const auto build = [](Graph& graph) { cifar_resnet(graph, 1); };
  NetworkFixture trained(kStateInput, build, 1);
  trained.forward();  // updates the running statistics
  StateSnapshot(trained.network()).save(file_);
  NetworkFixture fresh(kStateInput, build, 2);
  load_state(fresh.network(), file_);
  EXPECT_TRUE(StateSnapshot(fresh.network()).entries() == StateSnapshot(trained.network()).entries());
}

TEST_F(NetworkStateTest, NamesAndShapesEqualPyTorch) {
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

TEST_F(NetworkStateTest, RefusesTheFileOfAnotherNetworkAndChangesNothing) {
  NetworkFixture small(kStateInput, [](Graph& graph) { cnn(graph, {.batch_norm = false}); });
  StateSnapshot(small.network()).save(file_);
  NetworkFixture other(
      kStateInput, [](Graph& graph) { cnn(graph); }, 2);
  const StateSnapshot before(other.network());
  expect_parts(error_of_loading(other.network(), file_), {"conv1.bias"});  // a network without batch norm
  EXPECT_TRUE(StateSnapshot(other.network()).entries() == before.entries());
  EXPECT_THROW(load_state(other.network(), folder_ / "absent.safetensors"), IoError);
}

// Writes a file of another program: other names, in one type.
void write_foreign(const std::filesystem::path& path, const StateSnapshot& snapshot,
                   const std::function<std::string(const std::string&)>& renamed) {
  std::vector<NamedTensor> tensors;
  for (const auto& entry : snapshot.entries())
    tensors.push_back({renamed(entry.name), {const_cast<float*>(entry.values.data()), entry.shape}});
  write_safetensors(path, tensors);
}

std::vector<float> values_of(Network& network, const std::string& name) {
  const StateSnapshot snapshot(network);
  for (const auto& entry : snapshot.entries())
    if (entry.name == name) return entry.values;
  ADD_FAILURE() << "no " << name;
  return {};
}

TEST_F(NetworkStateTest, AHeadWithOtherClassesIsInitialisedOnRequest) {
  const auto build = [](Graph& graph) { cnn(graph); };
  NetworkFixture trained(kStateInput, build, 1);
  StateSnapshot(trained.network()).save(file_);
  GraphInput other = kStateInput;
  other.classes = 3;
  NetworkFixture fresh(other, build, 2), untouched(other, build, 2);
  const std::string refused = error_of_loading(fresh.network(), file_);
  expect_parts(refused, {"fc2.weight", "[5, 128]", "[3, 128]", "model.reset_head"});
  load_state(fresh.network(), file_, ResetHead::always);
  for (const char* name : {"conv1.weight", "bn2.running_var", "fc1.bias"})
    EXPECT_EQ(values_of(fresh.network(), name), values_of(trained.network(), name)) << name;
  for (const char* name : {"fc2.weight", "fc2.bias"})
    EXPECT_EQ(values_of(fresh.network(), name), values_of(untouched.network(), name)) << name;
  EXPECT_NE(values_of(fresh.network(), "fc1.bias"), values_of(untouched.network(), "fc1.bias"));
}

// PyTorch's Sequential(Dropout(), Linear()) as the head, for example.
TEST_F(NetworkStateTest, AHeadOfOtherLayersIsNotReadOnRequest) {
  const auto build = [](Graph& graph) { cnn(graph); };
  NetworkFixture trained(kStateInput, build, 1), fresh(kStateInput, build, 2),
      untouched(kStateInput, build, 2);
  write_foreign(file_, StateSnapshot(trained.network()), [](const std::string& name) {
    return name.starts_with("fc2.") ? "fc2.1." + name.substr(4) : name;
  });
  expect_parts(error_of_loading(fresh.network(), file_), {"fc2.1.weight"});
  load_state(fresh.network(), file_, ResetHead::always);
  EXPECT_EQ(values_of(fresh.network(), "fc1.bias"), values_of(trained.network(), "fc1.bias"));
  EXPECT_EQ(values_of(fresh.network(), "fc2.bias"), values_of(untouched.network(), "fc2.bias"));
}

TEST_F(NetworkStateTest, AutomaticResetReplacesOnlyAHeadWithOtherClasses) {
  const auto build = [](Graph& graph) { cnn(graph); };
  NetworkFixture trained(kStateInput, build, 1);
  StateSnapshot(trained.network()).save(file_);
  NetworkFixture same(kStateInput, build, 2);
  EXPECT_EQ(load_state(same.network(), file_, ResetHead::automatic), "");
  EXPECT_EQ(values_of(same.network(), "fc2.weight"), values_of(trained.network(), "fc2.weight"));
  GraphInput input = kStateInput;
  input.classes = 3;
  NetworkFixture other(input, build, 2), untouched(input, build, 2);
  const std::string note = load_state(other.network(), file_, ResetHead::automatic);
  expect_parts(note, {"\"fc2.weight\"", " 5 classes in the file", " 3 in the network"});
  EXPECT_EQ(values_of(other.network(), "fc1.bias"), values_of(trained.network(), "fc1.bias"));
  for (const char* name : {"fc2.weight", "fc2.bias"})
    EXPECT_EQ(values_of(other.network(), name), values_of(untouched.network(), name)) << name;
}

// A head that reads other features belongs to another network.
TEST_F(NetworkStateTest, AutomaticResetRefusesAHeadWithOtherFeatures) {
  NetworkFixture trained(kStateInput, [](Graph& graph) { cnn(graph, {.hidden = 64}); });
  StateSnapshot(trained.network()).save(file_);
  GraphInput input = kStateInput;
  input.classes = 3;
  NetworkFixture other(input, [](Graph& graph) { cnn(graph); });
  EXPECT_THROW(load_state(other.network(), file_, ResetHead::automatic), DataError);
}

TEST_F(NetworkStateTest, OnlyTheLastLayerIsAHead) {
  NetworkFixture trained(kStateInput, [](Graph& graph) { cnn(graph); });
  StateSnapshot(trained.network()).save(file_);
  GraphInput larger = kStateInput;
  larger.height = larger.width = 16;
  NetworkFixture other(larger, [](Graph& graph) { cnn(graph); });
  const std::string refused = error_of_loading(other.network(), file_);
  expect_parts(refused, {"\"fc1.weight\""});
  EXPECT_EQ(refused.find("reset_head"), std::string::npos) << refused;
  EXPECT_THROW(load_state(other.network(), file_, ResetHead::always), DataError);
}

TEST_F(NetworkStateTest, PrefixesOfWrappersAreRemovedFromNames) {
  const auto build = [](Graph& graph) { cnn(graph); };
  NetworkFixture trained(kStateInput, build, 1);
  const StateSnapshot snapshot(trained.network());
  for (const std::string wrapper : {"module.", "model.", "module._orig_mod.", "backbone."}) {
    write_foreign(file_, snapshot, [&](const std::string& name) { return wrapper + name; });
    NetworkFixture fresh(kStateInput, build, 2);
    load_state(fresh.network(), file_);
    EXPECT_EQ(values_of(fresh.network(), "fc2.weight"), values_of(trained.network(), "fc2.weight"));
  }
  write_foreign(file_, snapshot,
                [&](const std::string& name) { return name == "fc2.bias" ? name : "module." + name; });
  NetworkFixture fresh(kStateInput, build, 2);
  const std::string odd = error_of_loading(fresh.network(), file_);
  expect_parts(odd, {"\"module.fc2.bias\"", "\"fc2.bias\""});
}

// torch's AveragedModel stores a counter beside the network, and training scripts store losses and optimizers
// in the same file.
TEST_F(NetworkStateTest, OtherTensorsInTheFileAreIgnored) {
  const auto build = [](Graph& graph) { cnn(graph); };
  NetworkFixture trained(kStateInput, build, 1);
  const StateSnapshot snapshot(trained.network());
  std::int32_t count = 1234;
  float weights[] = {1, 3};
  const auto write = [&](const std::string& prefix, const std::vector<NamedTensor>& others) {
    std::vector<NamedTensor> tensors = others;  // first: writers sort differently
    for (const auto& entry : snapshot.entries())
      tensors.push_back({prefix + entry.name, {const_cast<float*>(entry.values.data()), entry.shape}});
    write_safetensors(file_, tensors);
  };
  const NamedTensor averaged{"n_averaged", {.data = &count, .shape = {}, .dtype = DType::i32}};
  const NamedTensor loss{"criterion.weight", {.data = weights, .shape = {2}}};
  const NamedTensor foreign{"module.fc9.weight", {.data = weights, .shape = {2}}};
  for (const std::string prefix : {"module.", "net.encoder.", ""}) {
    write(prefix, {averaged, loss});
    NetworkFixture fresh(kStateInput, build, 2);
    testing::internal::CaptureStderr();
    load_state(fresh.network(), file_);
    expect_parts(testing::internal::GetCapturedStderr(), {"n_averaged", "criterion.weight"});
    EXPECT_EQ(values_of(fresh.network(), "fc2.weight"), values_of(trained.network(), "fc2.weight"));
  }
  write("module.", {foreign});  // nothing of the network itself
  NetworkFixture fresh(kStateInput, build, 2);
  expect_parts(error_of_loading(fresh.network(), file_), {file_.string(), "module.fc9.weight"});
}

TEST_F(NetworkStateTest, ALayerNamedLikeALossIsLoadedAndNotReportedAsIgnored) {
  const auto build = [](Graph& graph) {
    graph.classify(graph.linear(graph.input(), {.features = kStateInput.classes}, "loss"));
  };
  NetworkFixture trained(kStateInput, build, 1), fresh(kStateInput, build, 2);
  StateSnapshot(trained.network()).save(file_);
  testing::internal::CaptureStderr();
  load_state(fresh.network(), file_);
  EXPECT_EQ(testing::internal::GetCapturedStderr().find("loss.weight"), std::string::npos);
  EXPECT_EQ(values_of(fresh.network(), "loss.weight"), values_of(trained.network(), "loss.weight"));
}

// The values are within fp16's range; both types round them.
TEST_F(NetworkStateTest, SixteenBitValuesAreReadAndRoundedToTheNearest) {
  const auto build = [](Graph& graph) { cnn(graph); };
  NetworkFixture trained(kStateInput, build, 1);
  trained.forward();
  for (const DType type : {DType::f16, DType::bf16}) {
    EXPECT_TRUE(StateSnapshot(trained.network()).save(file_, {}, type).empty());
    const SafetensorsReader reader(file_);
    for (const SafetensorsEntry& entry : reader.entries())
      EXPECT_EQ(entry.dtype, entry.name.find(".running_") == std::string::npos ? type : DType::f32)
          << entry.name;
    NetworkFixture fresh(kStateInput, build, 2);
    load_state(fresh.network(), file_);
    const auto rounded = [&](float value) {
      return type == DType::f16 ? static_cast<float>(Half(value)) : static_cast<float>(BFloat16(value));
    };
    std::vector<float> expected = values_of(trained.network(), "conv2.weight");
    for (float& value : expected) value = rounded(value);
    EXPECT_EQ(values_of(fresh.network(), "conv2.weight"), expected);
    EXPECT_EQ(values_of(fresh.network(), "bn1.running_var"), values_of(trained.network(), "bn1.running_var"));
  }
}

TEST_F(NetworkStateTest, AParameterThatFp16CannotHoldStaysFp32AndIsNamed) {
  const auto build = [](Graph& graph) { cnn(graph); };
  NetworkFixture trained(kStateInput, build, 1);
  for (Parameter& parameter : trained.network().parameters())
    if (parameter.name == "bn1.weight") parameter.value[0] = 65520.0f;  // rounds to infinity
  const std::vector<std::string> kept = StateSnapshot(trained.network()).save(file_, {}, DType::f16);
  EXPECT_EQ(kept, std::vector<std::string>{"bn1.weight"});
  NetworkFixture fresh(kStateInput, build, 2);
  load_state(fresh.network(), file_);
  EXPECT_EQ(values_of(fresh.network(), "bn1.weight"), values_of(trained.network(), "bn1.weight"));
  EXPECT_TRUE(StateSnapshot(trained.network()).save(file_, {}, DType::bf16).empty())
      << "bf16 can represent the value";
}

TEST_F(NetworkStateTest, AnotherStemIsRefusedWithTheKeyOfTheStem) {
  const auto with_kernel = [](std::int64_t kernel) {
    return [kernel](Graph& graph) {
      const Value x =
          graph.convolution(graph.input(), {.channels = 4, .kernel = kernel, .padding = kernel / 2}, "conv1");
      graph.classify(graph.linear(x, {.features = graph.input_shape().classes}, "fc"));
    };
  };
  NetworkFixture large(kStateInput, with_kernel(7)), small(kStateInput, with_kernel(3));
  StateSnapshot(large.network()).save(file_);
  expect_parts(error_of_loading(small.network(), file_),
               {"conv1.weight", "[4, 3, 7, 7]", "[4, 3, 3, 3]", "model.stem = \"imagenet\""});
  StateSnapshot(small.network()).save(file_);
  expect_parts(error_of_loading(large.network(), file_), {"model.stem = \"cifar\""});
}

// A checkpoint also holds the state of other owners, which may have changed.
TEST_F(NetworkStateTest, RestoringRefusesParametersThatTheNetworkLacks) {
  NetworkFixture fixture(kStateInput, [](Graph& graph) { cnn(graph); });
  StateReader reader(fixture.network().device());
  fixture.network().visit_state(reader);
  StateCopy saved = reader.copy();
  const auto add = [&](const std::string& name) {
    saved.tensors.push_back({.name = name, .scope = StateScope::replicated, .shape = {1}, .values = {1}});
  };
  for (const char* name : {"fc1.weight.momentum", "fc1.bias.ema", "exchange.scale"}) add(name);
  EXPECT_NO_THROW(restore_network(fixture.network(), saved));
  add("fc9.bias");
  expect_parts(message_of<DataError>([&] { restore_network(fixture.network(), saved); }), {"fc9.bias"});
}

TEST_F(NetworkStateTest, OtherTypesAreRefusedByName) {
  Graph graph({.batch = 1, .height = 1, .width = 1, .channels = 2, .classes = 2});
  graph.classify(graph.linear(graph.input(), {.features = 2, .bias = false}, "fc"));
  Network network(graph, {});
  std::ofstream(file_, std::ios::binary)
      << std::string("\x42\0\0\0\0\0\0\0", 8)
      << R"({"fc.weight":{"dtype":"F64","shape":[2,2],"data_offsets":[0,32]}} )" << std::string(32, '\0');
  const std::string refused = error_of_loading(network, file_);
  expect_parts(refused, {"fc.weight", "F64", "F32", "F16", "BF16"});
}

}  // namespace
}  // namespace lockstep
