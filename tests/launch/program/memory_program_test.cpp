// SPDX-License-Identifier: Apache-2.0
//
// Settings that save or limit memory, from the user's view.
#include <fstream>
#include <regex>
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

// Deep, and without residual blocks.
const std::string kDeepNetwork = R"(
[[model.layer]]
kind = "block"
repeat = 6
residual = false
[[model.layer.layer]]
kind = "convolution"
channels = 8
kernel = 3
padding = "same"
bias = false
[[model.layer.layer]]
kind = "batch_norm"
activation = "relu"
[[model.layer]]
kind = "dropout"
rate = 0.2
[[model.layer]]
kind = "dense"
)";

class MemorySettings : public testing::Test {
 protected:
  MemorySettings() : workplace_("memory") {
    std::string text = text_of(workplace_.path("config.toml"));
    text.replace(text.find("name = \"mlp\""), 12, "name = \"layers\"");
    std::ofstream(workplace_.path("config.toml")) << text << kDeepNetwork;
  }

  // The run's planned bytes of this rank's memory by name, after a training of four steps.
  nlohmann::json planned(const std::vector<std::string>& settings, std::string* output = nullptr,
                         int ranks = 2) {
    std::vector<std::string> all = {"train.steps=4"};
    all.insert(all.end(), settings.begin(), settings.end());
    const ProgramResult result =
        run_ranks(ranks, workplace_.train(all, "--digest " + workplace_.path("digest").string()));
    EXPECT_EQ(result.exit_code, 0) << result.output;
    if (output != nullptr) *output = result.output;
    return run_record(workplace_.path("run"))["planned_bytes"];
  }
  // The digest of the last training.
  std::string last_digest() const { return text_of(workplace_.path("digest")); }
  // Without the memory of messages, which the limit does not cover.
  static double total(const nlohmann::json& planned) {
    double bytes = 0;
    for (const auto& place : planned)
      for (const auto& [name, part] : place.items())
        if (name != "staging") bytes += part.get<double>();
    return bytes;
  }
  static double activations(const nlohmann::json& planned) {
    for (const auto& place : planned)
      if (place.contains("activations")) return place["activations"].get<double>();
    return 0;
  }
  static std::string limit(double bytes) { return fmt::format("world.memory_limit={:.9f}", bytes * 0x1p-30); }

  Workplace workplace_;
};

TEST_F(MemorySettings, RecomputationSavesMemoryWithoutBlocksAndChangesNoBit) {
  const auto activations_with = [&](const std::string& setting) {
    return activations(planned({"train.batch=16", "train.accumulation=2", setting}, nullptr, 1));
  };
  const double kept = activations_with("train.recompute=false");
  const std::string digest = last_digest();
  for (const char* value : {"4", "least"}) {
    const std::string setting = fmt::format("train.recompute={}", value);
    EXPECT_LT(activations_with(setting), 0.8 * kept) << setting;
    EXPECT_EQ(last_digest(), digest) << setting;
  }
  EXPECT_EQ(activations_with("train.recompute=auto"), kept) << "everything fits";
  const ProgramResult refused = run_shell(workplace_.train({"train.recompute=1"}));
  expect_failure(refused, exit_code::config, {"train.recompute = 1"});
  expect_failure(run_shell(workplace_.train({"train.recompute=most"})), exit_code::config,
                 {"train.recompute = \"most\""});
}

// What does not fit is refused with the change that makes it fit, and "auto" makes this change.
TEST_F(MemorySettings, LimitRefusesOrRecomputes) {
  const nlohmann::json kept = planned({"train.batch=64"});
  const std::string digest = last_digest();
  const std::string little = limit(total(kept) - 0.3 * activations(kept));
  const ProgramResult refused = run_ranks(2, workplace_.train({"train.batch=64", little}));
  expect_failure(refused, exit_code::io, {"(world.memory_limit)", "train.recompute=auto", "largest batch"});

  std::string output;
  const std::vector<std::string> fitting = {"train.batch=64", little, "train.recompute=auto"};
  const nlohmann::json recomputed = planned(fitting, &output);
  EXPECT_LT(activations(recomputed), 0.7 * activations(kept));
  EXPECT_TRUE(std::regex_search(output, std::regex("memory: recomputation of segments"))) << output;
  EXPECT_EQ(last_digest(), digest);

  const ProgramResult plan = run_shell(
      fmt::format("{} plan {} --set train.batch=64 --set {} --set train.recompute=auto", program("lockstep"),
                  workplace_.path("config.toml").string(), limit(total(kept) - 0.45 * activations(kept))));
  EXPECT_EQ(plan.exit_code, 0) << plan.output;
  EXPECT_EQ(count(plan.output, "without recomputation"), 1) << plan.output;
}

TEST_F(MemorySettings, LimitBoundsPreloadedImages) {
  expect_failure(run_ranks(2, workplace_.train({"data.loader=preload", limit(20000)})), exit_code::config,
                 {"data.loader = \"preload\"", "world.memory_limit"});
}

TEST_F(MemorySettings, LimitBoundsFindBatch) {
  const double small = total(planned({"train.batch=8"})), large = total(planned({"train.batch=64"}));
  const std::string found = workplace_.path("found").string();
  const ProgramResult result =
      run_ranks(2, fmt::format("{} find-batch {} --seconds 1 --set {} --out {}", program("lockstep"),
                               workplace_.path("config.toml").string(), limit((small + large) / 2), found));
  ASSERT_EQ(result.exit_code, 0) << result.output;
  const auto json = nlohmann::json::parse(text_of(found + "/found_batch.json"));
  EXPECT_LT(json["largest"]["batch"].get<int>(), 64) << json;
  EXPECT_LE(json["recommended"]["batch"].get<int>(), json["largest"]["batch"].get<int>()) << json;
}

}  // namespace
}  // namespace lockstep
