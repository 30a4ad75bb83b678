// SPDX-License-Identifier: Apache-2.0
//
// Networks described by [[model.layer]] tables, without C++.
#include <algorithm>
#include <fstream>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "tests/data/jpeg_files.h"
#include "tests/launch/program/program.h"
#include "tests/launch/program/run_json.h"
#include "tests/message_of.h"
#include "tests/source_folder.h"

namespace lockstep {
namespace {

constexpr const char* kMlp = R"(
[[model.layer]]
kind = "dense"
features = 64
activation = "relu"
[[model.layer]]
kind = "dropout"
name = "dropout1"
rate = 0.25
[[model.layer]]
kind = "dense"
features = 32
activation = "relu"
[[model.layer]]
kind = "dropout"
name = "dropout2"
rate = 0.25
[[model.layer]]
kind = "dense"
)";

constexpr const char* kCnn = R"(
[[model.layer]]
kind = "convolution"
channels = 32
kernel = 3
padding = "same"
bias = false
[[model.layer]]
kind = "batch_norm"
activation = "relu"
[[model.layer]]
kind = "pooling"
[[model.layer]]
kind = "convolution"
channels = 64
kernel = 3
padding = 1
bias = false
[[model.layer]]
kind = "batch_norm"
activation = "relu"
[[model.layer]]
kind = "pooling"
[[model.layer]]
kind = "flatten"
[[model.layer]]
kind = "dense"
features = 128
[[model.layer]]
kind = "activation"
activation = "relu"
[[model.layer]]
kind = "dense"
)";

std::string stage(int number, int channels, int stride) {
  return fmt::format(R"(
[[model.layer]]
kind = "block"
name = "layer{0}"
repeat = 3
residual = true
activation = "relu"
[[model.layer.layer]]
kind = "convolution"
channels = {1}
kernel = 3
stride = {2}
padding = "same"
bias = false
initialization = "he_normal"
[[model.layer.layer]]
kind = "batch_norm"
activation = "relu"
[[model.layer.layer]]
kind = "convolution"
channels = {1}
kernel = 3
padding = "same"
bias = false
initialization = "he_normal"
[[model.layer.layer]]
kind = "batch_norm"
)",
                     number, channels, stride);
}

std::string resnet20_in_toml() {
  return R"(
[[model.layer]]
kind = "convolution"
channels = 16
kernel = 3
padding = "same"
bias = false
initialization = "he_normal"
[[model.layer]]
kind = "batch_norm"
activation = "relu"
)" + stage(1, 16, 1) +
         stage(2, 32, 2) + stage(3, 64, 2) + R"(
[[model.layer]]
kind = "pooling"
pool = "average"
global = true
[[model.layer]]
kind = "dense"
name = "fc"
)";
}

// Appends the layers to the workplace's configuration, without its model.name.
std::string with_layers(const Workplace& workplace, const std::string& layers) {
  std::string text = text_of(workplace.path("config.toml"));
  const std::string model = "[model]\nname = \"mlp\"\n";
  EXPECT_TRUE(text.starts_with(model));
  std::ofstream(workplace.path("layers.toml")) << text.substr(model.size()) << layers;
  return workplace.path("layers.toml").string();
}

std::string command_on(const std::string& command, const std::string& config, const std::string& flags = "") {
  return fmt::format("{} {} {} {}", program("lockstep"), command, config, flags);
}

std::string digest_of_layers(const Workplace& workplace, const std::string& layers,
                             const std::string& flags = "") {
  const auto file = workplace.path("digest");
  const ProgramResult result =
      run_shell(command_on("train", with_layers(workplace, layers), "--digest " + file.string() + flags));
  EXPECT_EQ(result.exit_code, 0) << result.output;
  return text_of(file);
}

TEST(Layers, EqualBuiltInNetworksBitForBit) {
  const Workplace workplace("layers");
  EXPECT_EQ(digest_of_layers(workplace, kMlp),
            digest_of(workplace, 1, {"model.mlp.width=64", "model.dropout=0.25"}));
  EXPECT_EQ(digest_of_layers(workplace, kCnn), digest_of(workplace, 1, {"model.name=cnn"}));
  EXPECT_EQ(digest_of_layers(workplace, resnet20_in_toml(), " --set train.steps=3"),
            digest_of(workplace, 1, {"model.name=resnet20", "train.steps=3"}));
}

TEST(Layers, FieldsAndRepeatsCanBeOverridden) {
  const Workplace workplace("overridden_layers");
  const std::string cnn =
      " --set model.layer.conv1.channels=8 --set model.layer.conv2.channels=16 --set "
      "model.layer.fc1.features=24 --set model.layer.conv2.padding=same";
  EXPECT_EQ(digest_of_layers(workplace, kCnn, cnn),
            digest_of(workplace, 1, {"model.name=cnn", "model.cnn.width=8", "model.cnn.hidden=24"}));
  const std::string config = with_layers(workplace, resnet20_in_toml());
  const ProgramResult profile =
      run_shell(command_on("profile", config, "--set model.layer.layer2.repeat=1 --steps 2 --rows 0"));
  EXPECT_EQ(profile.exit_code, 0) << profile.output;
  EXPECT_EQ(count(profile.output, "layer2.1.conv1"), 0) << profile.output;
  expect_failure(
      run_shell(command_on("train", config,
                           "--set model.layer.layer2.conv1.channel=4 --set model.layer.conv1.a.channels=4 "
                           "--set model.layer.layer9.repeat=4")),
      78,
      {"model.layer.layer2.conv1.channel=4", "did you mean channels?", "layer conv1 holds no layers",
       "model.layer.layer9.repeat=4", "did you mean layer1?"});
}

// The other commands read the network from the file, the export and the checkpoint.
TEST(Layers, CommandsReadThem) {
  const Workplace workplace("layer_commands");
  const std::string config = with_layers(workplace, resnet20_in_toml());
  const auto succeeds = [&](const std::string& command) {
    const ProgramResult result = run_shell(command);
    EXPECT_EQ(result.exit_code, 0) << command << '\n' << result.output;
    return result.output;
  };
  const std::string file = workplace.path("own.safetensors").string();
  succeeds(command_on("train", config, "--set train.steps=3 --set run.checkpoint_every=2 --export " + file));
  expect_parts(text_of(workplace.path("run") / "config.toml"),
               {"name = \"layers\"", "kind = \"block\", name = \"layer1\", repeat = 3"});
  expect_parts(succeeds(command_on("plan", config)), {"parameters"});
  expect_parts(succeeds(command_on("profile", config, "--steps 2 --rows 0")),
               {"layer1.0.conv1", "layer2.1.conv1", "layer3.0.downsample.0"});
  const std::string traces = workplace.path("traces").string();
  succeeds(command_on("train", config,
                      "--set train.steps=6 --set run.dir=" + traces +
                          "_run --set profile.active=1 --set profile.wait=1 --set profile.warmup=1 --set "
                          "profile.dir=" +
                          traces));
  EXPECT_GT(count(run_shell("cat " + traces + "/*").output, "layers.toml("), 0) << "the place of each layer";
  succeeds(command_on("eval", config, "--init " + file));
  const auto photo = workplace.path("photo.jpg");
  const Bytes jpeg = encode(kGray, Bytes(static_cast<std::size_t>(kGray.bytes()), 100));
  std::ofstream(photo, std::ios::binary).write(reinterpret_cast<const char*>(jpeg.data()), std::ssize(jpeg));
  expect_parts(succeeds(command_on("predict", file, photo.string())), {"\"probability\""});
  expect_parts(succeeds(command_on("predict", workplace.path("run").string(), photo.string())),
               {"\"probability\""});
  succeeds(command_on("train", config, "--set train.steps=3 --set run.checkpoint_every=2 --resume auto"));
  succeeds(
      command_on("train", config,
                 "--set train.steps=3 --init " + file + " --set 'model.freeze=[\"conv1\", \"layer1.1\"]'"));
}

// The remaining layers have the saved shapes.
TEST(Layers, CheckpointWithMoreLayersIsRefused) {
  const Workplace workplace("fewer_layers");
  const auto dense = [](const std::string& fields) { return "[[model.layer]]\nkind = \"dense\"\n" + fields; };
  const std::string first = dense("name = \"first\"\nfeatures = 16\n"),
                    inner = dense("name = \"inner\"\nfeatures = 16\n"), last = dense("name = \"last\"\n"),
                    flags = "--set train.steps=2 --set run.checkpoint_every=2";
  const ProgramResult trained =
      run_shell(command_on("train", with_layers(workplace, first + inner + last), flags));
  ASSERT_EQ(trained.exit_code, 0) << trained.output;
  const std::string config = with_layers(workplace, first + last);
  for (const char* command : {"train", "eval"})
    expect_failure(run_shell(command_on(command, config, flags + " --resume auto --resume-with model.layer")),
                   78, {"\"inner.", "another network"});
}

// The first example of many Keras courses. PyTorch's losses of the same model from the same weights are in
// the golden files (tests/peers/make_dense_binary.py).
TEST(Layers, PresetDenseBinaryFollowsPyTorch) {
  const Workplace workplace("dense_binary");
  const std::filesystem::path golden = source_folder() + "/tests/peers/golden/dense_binary";
  const ProgramResult result = run_shell(
      command_on("train", "dense_binary",
                 fmt::format("--set run.dir={} --set world.device=cpu --set run.measure_peak=false --init {}",
                             workplace.path("run").string(), (golden / "start.safetensors").string())));
  ASSERT_EQ(result.exit_code, 0) << result.output;
  const auto expected = nlohmann::json::parse(text_of(golden / "losses.json"));
  const std::vector<nlohmann::json> epochs = metrics_of(workplace.path("run"));
  ASSERT_EQ(epochs.size(), 20u);
  for (std::size_t epoch = 0; epoch < epochs.size(); ++epoch) {
    for (const auto& [key, loss] : {std::pair{"train_loss", "loss"}, {"test_loss", "test_loss"}})
      EXPECT_NEAR(epochs[epoch].at(key).get<double>(), expected.at(loss)[epoch].get<double>(), 1e-4)
          << loss << " of epoch " << epoch + 1;
  }
  EXPECT_NEAR(epochs.back().at("test_accuracy").get<double>(), expected.at("test_accuracy").get<double>(),
              1e-6);
  EXPECT_NEAR(epochs.back().at("test_accuracy").get<double>(), 0.95, 0.01);
}

// Each loss, with an output for each class and with a single one, and with metrics of classes.
TEST(Layers, LearnWithEachLoss) {
  const Workplace workplace("losses");
  const auto trained = [&](const std::string& loss, const std::string& last, const std::string& others) {
    const std::string layers =
        "[[model.layer]]\nkind = \"dense\"\nfeatures = 16\nactivation = \"tanh\"\n"
        "[[model.layer]]\nkind = \"dense\"\n" +
        last;
    const ProgramResult result = run_shell(
        command_on("train", with_layers(workplace, layers),
                   fmt::format("--set model.loss={} --set run.metrics=f1,confusion --set train.epochs=2 {}",
                               loss, others)));
    EXPECT_EQ(result.exit_code, 0) << result.output;
    return last_metrics_of(workplace.path("run"));
  };
  for (const auto& [loss, last] : {std::pair{"cross_entropy", "activation = \"softmax\"\n"},
                                   {"binary_cross_entropy", "activation = \"sigmoid\"\n"},
                                   {"mean_squared_error", ""}}) {
    EXPECT_GT(trained(loss, last, "").at("test_accuracy").get<double>(), 0.6) << loss;
  }
  // The labels 0 to 3 as a number; the confusion agrees with the accuracy.
  const auto number = trained("mean_squared_error", "features = 1\n", "--set optimizer.learning_rate=0.002");
  std::int64_t right = 0;
  for (std::size_t k = 0; k < 4; ++k) right += number.at("confusion")[k][k].get<std::int64_t>();
  EXPECT_NEAR(number.at("test_accuracy").get<double>(), static_cast<double>(right) / 103, 1e-9);
  expect_failure(
      run_shell(command_on("train", with_layers(workplace, kMlp),
                           "--set model.loss=binary_cross_entropy --set model.layer.fc3.features=1")),
      78, {"[8, 1]", "binary_cross_entropy of 4 classes"});
  expect_failure(
      run_shell(command_on("train", with_layers(workplace, kMlp), "--set model.layer.fc3.activation=relu")),
      78, {"fc3: activation = \"relu\"", "softmax or none"});
}

TEST(Layers, ErrorsNameTheLine) {
  const Workplace workplace("wrong_layers");
  const auto fails = [&](const std::string& layers, const std::vector<std::string>& parts) {
    const std::string config = with_layers(workplace, layers);
    expect_failure(run_shell(command_on("train", config)), 78, parts);
  };
  // The lines of the configuration, without those of [model].
  const auto lines = std::ranges::count(text_of(workplace.path("config.toml")), '\n') - 2;
  const auto at = [&](int line) { return fmt::format("layers.toml:{}:", lines + line); };
  fails(
      "[[model.layer]]\nkind = \"convolutoin\"\n[[model.layer]]\nkind = \"dense\"\nunits = "
      "3\n[[model.layer]]\nkind = \"dropout\"\n",
      {at(2), "did you mean convolution?", at(5), "units", "features", at(6), "rate"});
  fails(
      "[[model.layer]]\nkind = \"convolution\"\nchannels = 8\nkernel = 15\n[[model.layer]]\nkind = "
      "\"dense\"\n",
      {at(1), "conv1", "kernel 15"});
  fails(
      "[[model.layer]]\nkind = \"flatten\"\n[[model.layer]]\nkind = \"pooling\"\n[[model.layer]]\nkind = "
      "\"dense\"\n",
      {at(3), "[8, 144]"});
  fails(
      "[[model.layer]]\nkind = \"block\"\nresidual = true\n[[model.layer.layer]]\nkind = \"convolution\"\n"
      "channels = 4\nkernel = 3\n[[model.layer]]\nkind = \"dense\"\n",
      {at(1), "block1", "shortcut"});
  fails("[[model.layer]]\nkind = \"pooling\"\n", {at(1), "last layer", "dense"});
  // Refused before a million layers are appended.
  fails(
      "[[model.layer]]\nkind = \"block\"\nrepeat = 1000\n[[model.layer.layer]]\nkind = \"block\"\nresidual = "
      "true\nrepeat = 1000\n[[model.layer.layer.layer]]\nkind = \"batch_norm\"\n[[model.layer]]\nkind = "
      "\"dense\"\n",
      {"5000 layers", "repeat"});
  fails(
      "[[model.layer]]\nkind = \"block\"\nrepeat = 10\n[[model.layer.layer]]\nkind = \"upsample\"\nfactor = "
      "64\n[[model.layer]]\nkind = \"dense\"\n",
      {at(4), "up"});
}

}  // namespace
}  // namespace lockstep
