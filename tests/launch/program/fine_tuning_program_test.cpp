// SPDX-License-Identifier: Apache-2.0
//
// `lockstep train` starts from another training's weights, with a head for other classes and with frozen
// layers.
#include <filesystem>
#include <map>
#include <regex>
#include <set>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "tests/launch/program/program.h"
#include "tests/launch/program/run_json.h"
#include "tests/message_of.h"

namespace lockstep {
namespace {

using Settings = std::vector<std::string>;
using Tensors = std::map<std::string, std::vector<float>>;

// Steps that change nothing: the export equals the initial weights.
const Settings kStandStill = {"optimizer.learning_rate=1e-30", "train.steps=1", "optimizer.momentum=0"};
// Images of the first training's size, with other classes.
const Settings kOtherClasses = {"data.format=synthetic",         "data.synthetic.height=12",
                                "data.synthetic.width=12",       "data.synthetic.channels=1",
                                "data.synthetic.classes=7",      "data.synthetic.train_samples=96",
                                "data.synthetic.test_samples=24"};
const std::string kFrozen = R"(model.freeze=["conv1", "bn1", "conv2", "bn2"])";

Settings together(Settings first, const Settings& second) {
  first.insert(first.end(), second.begin(), second.end());
  return first;
}

class FineTuningCommand : public ::testing::Test {
 protected:
  Tensors exported(int ranks, const Settings& settings, const std::string& flags,
                   const std::string& name) const {
    const std::string file = workplace_.path(name).string();
    const ProgramResult result = run_ranks(ranks, command(settings, flags + " --export " + file));
    EXPECT_EQ(result.exit_code, 0) << result.output;
    return result.exit_code == 0 ? tensors_of(file) : Tensors{};
  }
  std::string command(const Settings& settings, const std::string& flags) const {
    return workplace_.train(together({"model.name=cnn", "kernels.choose=direct"}, settings), flags);
  }

  Workplace workplace_{"fine_tuning"};
};

// A network trained for a few steps.
class FineTuning : public FineTuningCommand {
 protected:
  void SetUp() override { trained_ = exported(1, {"train.steps=8"}, "", "trained.safetensors"); }
  std::string from_trained() const { return "--init " + workplace_.path("trained.safetensors").string(); }

  Tensors trained_;
};

TEST_F(FineTuning, HeadForOtherClassesIsInitialisedFromTheSeed) {
  const Settings still = together(kOtherClasses, kStandStill);
  const Tensors anew = exported(1, still, "", "anew.safetensors");
  const std::string file = workplace_.path("begun.safetensors").string();
  const ProgramResult result =
      run_ranks(3, command(together(still, {"model.reset_head=auto"}), from_trained() + " --export " + file));
  ASSERT_EQ(result.exit_code, 0) << result.output;
  EXPECT_EQ(count(lines_naming(result.output, "\"fc2.weight\"", "4 classes in the file and 7"), "\n"), 1)
      << result.output;
  const Tensors begun = tensors_of(file);
  ASSERT_EQ(begun.size(), trained_.size());
  for (const auto& [name, values] : begun) {
    if (name.ends_with("running_mean") || name.ends_with("running_var")) continue;  // updated by training
    EXPECT_EQ(values, (name.starts_with("fc2.") ? anew : trained_).at(name)) << name;
  }
}

// The preset, with small images and few of them. Its file has the tensors of torchvision's resnet18.
TEST(FineTuningPreset, TrainsFromImageNetsClassesAndProfilesTwoCycles) {
  const Workplace workplace("fine_tuning_preset");
  const auto settings = [&](int classes, int steps, const Settings& more) {
    std::string text;
    for (const std::string& setting :
         together({"data.format=synthetic", "data.synthetic.height=32", "data.synthetic.width=32",
                   "data.synthetic.channels=3", "data.synthetic.train_samples=1000",
                   fmt::format("data.synthetic.test_samples={}", classes),
                   fmt::format("data.synthetic.classes={}", classes), fmt::format("train.steps={}", steps),
                   "data.resize=40", "train.batch=2", "train.threads=1", "kernels.choose=direct",
                   "world.device=cpu", "run.measure_peak=false", "run.checkpoint_minutes=0",
                   "run.dir=" + workplace.path("run").string()},
                  more))
      text += " --set '" + setting + "'";
    return text;
  };
  const std::string train = program("lockstep") + " train cifar10_resnet18_finetune",
                    file = workplace.path("imagenet.safetensors").string(),
                    tuned = workplace.path("tuned.safetensors").string();
  // Evaluates a thousand images, so they are small.
  const ProgramResult first =
      run_ranks(1, train + settings(1000, 1, {"profile.active=0", "data.resize=16"}) + " --export " + file);
  ASSERT_EQ(first.exit_code, 0) << first.output;
  ASSERT_EQ(tensors_of(file).at("fc.bias").size(), 1000u);
  EXPECT_EQ(count(first.output, "model.reset_head = auto without --init"), 1) << first.output;
  const ProgramResult result =
      run_ranks(1, train + settings(10, 10, {}) + " --init " + file + " --export " + tuned);
  ASSERT_EQ(result.exit_code, 0) << result.output;
  EXPECT_EQ(count(lines_naming(result.output, "\"fc.weight\"", "1000 classes in the file and 10"), "\n"), 1)
      << result.output;
  EXPECT_EQ(tensors_of(tuned).at("fc.bias").size(), 10u);
  std::multiset<std::string> steps;
  for (const auto& entry : std::filesystem::directory_iterator(workplace.path("run/profile"))) {
    std::int64_t most = 0, blocks = 0, layers = 0;
    const nlohmann::json trace = nlohmann::json::parse(text_of(entry.path()));
    for (const nlohmann::json& event : trace.at("traceEvents")) {
      const std::string name = event.at("name");
      if (name.starts_with("ProfilerStep#")) steps.insert(name.substr(name.find('#') + 1));
      if (event.at("ph") == "C")
        most = std::max(most, event.at("args").at("activations").get<std::int64_t>());
      blocks += name == "[memory]";
      if (name != "convolution forward") continue;
      ++layers;
      EXPECT_TRUE(event.at("args").at("place").get<std::string>().starts_with("models/networks/")) << event;
    }
    EXPECT_GT(most, 0) << entry.path();
    EXPECT_GT(blocks, 0) << entry.path();
    EXPECT_EQ(layers, 3 * 20) << "steps and convolutions of ResNet-18: " << entry.path();
  }
  EXPECT_EQ(steps, (std::multiset<std::string>{"3", "4", "5", "8", "9", "10"}));
}

// With every feature that stores, averages, restores or predicts parameters and statistics.
TEST_F(FineTuning, FrozenLayersStayBitForBitWithEveryTrainingMode) {
  const std::string frozen = R"(model.freeze=["conv1", "bn1", "fc1"])";
  for (const Settings& way :
       std::vector<Settings>{{"train.staleness=1", "train.precision=fp16"},
                             {"comm.cross_barrier=true", "train.precision=bf16"},
                             {"train.average_every=2", "train.recompute=true", "optimizer.name=lars"},
                             {"comm.topology=ring"},
                             {"comm.codec=powersgd", "comm.powersgd.start_step=0",
                              "comm.compress_within_node=true", "model.sync_batch_norm=true"}}) {
    SCOPED_TRACE(way.front());
    for (const auto& [name, values] :
         exported(2, together({frozen, "train.steps=12"}, way), from_trained(), "tuned.safetensors")) {
      const bool stays = name.starts_with("conv1.") || name.starts_with("bn1.") || name.starts_with("fc1.");
      EXPECT_EQ(values == trained_.at(name), stays) << name;
    }
  }
}

TEST_F(FineTuning, IsReproducibleAndKeepsFrozenLayersOnAnyNumberOfRanks) {
  std::vector<std::string> digests;
  for (const int ranks : {1, 4}) {
    const std::string file = workplace_.path("digest").string();
    const Tensors tuned =
        exported(ranks,
                 together(kOtherClasses,
                          {kFrozen, "model.reset_head=true", "train.reproducible=true", "train.epochs=2",
                           "optimizer.weight_decay=0.1", "train.accumulation=" + std::to_string(4 / ranks)}),
                 from_trained() + " --digest " + file, "tuned.safetensors");
    digests.push_back(text_of(file));
    ASSERT_EQ(tuned.size(), trained_.size());
    for (const auto& [name, values] : tuned)
      EXPECT_EQ(values == trained_.at(name), !name.starts_with("fc")) << name;
  }
  EXPECT_EQ(digests[0], digests[1]);
}

TEST_F(FineTuningCommand, FrozenLayersAreInNoBucketAndHaveNoStateOfTheOptimizer) {
  const auto planned = [&](const Settings& settings) {
    std::string text = command(settings, "");
    text.replace(text.find(" train "), 7, " plan ");
    const ProgramResult result = run_ranks(2, text);
    EXPECT_EQ(result.exit_code, 0) << result.output;
    return result.output;
  };
  // True if the memory table has a row of this name.
  const auto has_row = [](const std::string& text, const std::string& name) {
    return std::regex_search(text, std::regex("\\n +" + name + " +[\\d.]+ MiB"));
  };
  const std::string whole = planned({}), part = planned({kFrozen});
  EXPECT_TRUE(has_row(part, "frozen")) << part;
  EXPECT_FALSE(has_row(whole, "frozen")) << whole;
  EXPECT_EQ(count(whole, "10 tensors"), 1) << whole;
  EXPECT_EQ(count(part, "4 tensors"), 1) << part;
  EXPECT_TRUE(has_row(whole, "statistics")) << whole;
  EXPECT_FALSE(has_row(part, "statistics")) << "no statistics change:\n" << part;
}

TEST_F(FineTuning, ResumesBitForBit) {
  const Settings settings = together(kOtherClasses, {kFrozen, "model.reset_head=true", "train.epochs=2",
                                                     "run.checkpoint_every=4", "optimizer.momentum=0.9"});
  const std::string whole = workplace_.path("whole").string(), resumed = workplace_.path("resumed").string();
  const auto train = [&](const Settings& more, const std::string& flags) {
    const ProgramResult result = run_ranks(2, command(together(settings, more), flags));
    EXPECT_EQ(result.exit_code, 0) << result.output;
  };
  train({"run.dir=" + workplace_.path("run_whole").string()}, from_trained() + " --digest " + whole);
  train({"run.checkpoint_every=4"}, from_trained());
  EXPECT_GT(std::filesystem::remove_all(workplace_.path("run/checkpoints/step-000000012")), 0u);
  train({}, "--resume auto --digest " + resumed);
  EXPECT_EQ(text_of(whole), text_of(resumed));
  expect_failure(run_ranks(2, command(together(settings, {"model.freeze=[]"}),
                                      "--resume auto --resume-with model.freeze")),
                 exit_code::config, {"[\"conv1\", \"bn1\", \"conv2\", \"bn2\"]", "--init"});
  // Its checkpoint is evaluated with the trained head, whatever model.reset_head says.
  std::string evaluation = command(together(settings, {"train.accumulation=2"}), "--resume auto --json");
  evaluation.replace(evaluation.find(" train "), 7, " eval ");
  const ProgramResult evaluated = run_shell(evaluation);  // accumulates for the batch of 2 ranks
  EXPECT_EQ(evaluated.exit_code, 0) << evaluated.output;
}

TEST_F(FineTuningCommand, InvalidPrefixesAreRefused) {
  const ProgramResult unknown = run_shell(command({R"(model.freeze=["conv"])"}, ""));
  expect_failure(unknown, exit_code::config, {"\"conv\"", "bn1, conv2, bn2, fc1, fc2"});
  EXPECT_EQ(count(unknown.output, "conv1"), 2) << "the suggestion, and the list:\n" << unknown.output;
  const ProgramResult parameter = run_shell(command({R"(model.freeze=["fc1.weight"])"}, ""));
  expect_failure(parameter, exit_code::config, {"\"fc1.weight\"", "\"fc1\""});
  const ProgramResult all =
      run_shell(command({R"(model.freeze=["conv1", "bn1", "conv2", "bn2", "fc1", "fc2"])"}, ""));
  EXPECT_EQ(all.exit_code, exit_code::config) << all.output;
  EXPECT_EQ(count(all.output, "fc2"), 2) << "the given list, and the layer to leave out:\n" << all.output;
  for (const ProgramResult* each : {&unknown, &parameter, &all}) expect_parts(each->output, {"model.freeze"});
}

TEST_F(FineTuningCommand, WarnsAboutFineTuningKeysWithoutInit) {
  const ProgramResult result = run_ranks(2, command({kFrozen, "model.reset_head=true", "train.steps=1"}, ""));
  EXPECT_EQ(result.exit_code, 0) << result.output;
  EXPECT_EQ(count(lines_naming(result.output, "model.freeze", "--init"), "\n"), 1) << result.output;
  EXPECT_EQ(count(lines_naming(result.output, "model.reset_head", "--init"), "\n"), 1) << result.output;
}

// With the settings of a training that reset its head, eval still loads the trained head.
TEST_F(FineTuning, HalfPrecisionExportIsEvaluatedWithItsHead) {
  const Settings settings = together(
      kOtherClasses, {kFrozen, "model.reset_head=true", "train.epochs=8", "optimizer.learning_rate=0.05"});
  std::map<std::string, double> losses;
  std::map<std::string, std::uintmax_t> bytes;
  for (const std::string precision : {"fp32", "fp16", "bf16"}) {
    const std::string file = workplace_.path(precision + ".safetensors").string();
    const ProgramResult trained =
        run_ranks(1, command(together(settings, {"run.export_precision=" + precision}),
                             from_trained() + " --export " + file));
    ASSERT_EQ(trained.exit_code, 0) << trained.output;
    std::string evaluation = command(settings, "--json --init " + file);
    evaluation.replace(evaluation.find(" train "), 7, " eval ");
    const ProgramResult result = run_ranks(1, evaluation);
    EXPECT_EQ(result.exit_code, 0) << result.output;
    losses[precision] = json_lines_of(result).at(0).at("test_loss").get<double>();
    bytes[precision] = std::filesystem::file_size(file);
  }
  EXPECT_LT(losses["fp32"], 1.5) << "a new head would have ln 7 = 1.95";
  EXPECT_NEAR(losses["fp16"], losses["fp32"], 0.01);
  EXPECT_NEAR(losses["bf16"], losses["fp32"], 0.05);
  EXPECT_LT(bytes["fp16"], bytes["fp32"] * 6 / 10);
  EXPECT_LT(bytes["bf16"], bytes["fp32"] * 6 / 10);
}

}  // namespace
}  // namespace lockstep
