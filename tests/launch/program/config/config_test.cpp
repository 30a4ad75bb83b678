// SPDX-License-Identifier: Apache-2.0
#include "launch/program/config/config.h"

#include <algorithm>
#include <fstream>
#include <map>
#include <regex>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "core/error.h"
#include "launch/program/config/config_conflicts.h"
#include "launch/program/config/config_keys.h"
#include "launch/program/config/suggestions.h"
#include "launch/program/own_command.h"
#include "launch/train/compatibility.h"
#include "tests/message_of.h"
#include "tests/source_folder.h"
#include "tests/temporary_folder.h"

namespace lockstep {
namespace {

constexpr const char* kPreset = "fashion_mnist_cnn";

// A file that exists as long as the object.
class TemporaryFile {
 public:
  explicit TemporaryFile(const std::string& text) { std::ofstream(path_, std::ios::binary) << text; }
  const std::string& path() const { return path_; }

 private:
  TemporaryFolder folder_{"config"};
  std::string path_ = (folder_.path() / "config.toml").string();
};

Config with(const std::vector<std::string>& overrides) { return load_config(kPreset, overrides); }
Config from_text(const std::string& text) { return load_config(TemporaryFile(text).path(), {}); }

template <typename Action>
std::string config_error(const Action& action) {
  try {
    action();
  } catch (const ConfigError& error) {
    EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos) << error.what();
    return error.what();
  }
  ADD_FAILURE() << "no ConfigError";
  return {};
}
std::string set_error(const std::string& override_text) {
  return config_error([&] { with({override_text}); });
}
// The error for a file with this text, which is called FILE. data.path is set.
std::string text_error(const std::string& text) {
  const TemporaryFile file(text);
  const std::vector<std::string> overrides = {"data.path=x"};
  std::string message = config_error([&] { load_config(file.path(), overrides); });
  if (message.starts_with(file.path())) message.replace(0, file.path().size(), "FILE");
  return message;
}

const detail::Key& key_called(const std::string& name) {
  return *std::ranges::find(detail::keys(), name, &detail::Key::name);
}
// "train.batch" of "train.batch=0".
const detail::Key& key_set_by(const std::string& text) { return key_called(text.substr(0, text.find('='))); }
void expect_no_suggestion(const std::string& message, const std::vector<std::string>& words) {
  for (const std::string& word : words)
    EXPECT_EQ(message.find(did_you_mean(word)), std::string::npos) << message;
}

TEST(Config, FormatWithoutFilesNeedsNoPath) {
  EXPECT_EQ(from_text("[data]\nformat = \"synthetic\"\n").dataset.path, "none");
  EXPECT_NE(config_error([] { from_text("[data]\nformat = \"idx\"\n"); }).find("data.path"),
            std::string::npos);
}

TEST(Config, PresetSetsTheValuesOfItsFile) {
  const Config config = with({});
  EXPECT_EQ(config.model.name, "cnn");
  EXPECT_EQ(config.dataset.path, "/usr/share/datasets/fashion-mnist");
  EXPECT_EQ(config.network.mean, std::vector<double>{0.2860});
  EXPECT_EQ(config.loader.batch, 64);
  EXPECT_EQ(config.optimizer.weight_decay, 5e-4);
  EXPECT_EQ(config.schedule.warmup_epochs, 0.5);
  EXPECT_EQ(config.loader.accumulation, 1) << "a key that the preset omits keeps its default";
}

TEST(Config, EveryPresetFileIsBuiltIn) {
  std::vector<std::string> files;
  for (const auto& entry : std::filesystem::directory_iterator(source_folder() + "/launch/presets"))
    if (entry.path().extension() == ".toml") files.push_back(entry.path().stem());
  std::ranges::sort(files);
  EXPECT_EQ(preset_names(), files);
  EXPECT_GE(files.size(), 3u);
}

TEST(Config, PresetEqualsItsFile) {
  for (const std::string& name : preset_names()) {
    const std::string path = fmt::format("{}/launch/presets/{}.toml", source_folder(), name);
    EXPECT_EQ(to_toml(load_config(name, {})), to_toml(load_config(path, {}))) << name;
  }
}

TEST(Config, TextOfEveryPresetLoadsToTheSameText) {
  for (const std::string& name : preset_names()) {
    const std::string text = to_toml(load_config(name, {}));
    EXPECT_EQ(to_toml(from_text(text)), text) << name;
  }
}

TEST(Config, TextKeepsSpecialCharactersAndExtremeNumbers) {
  Config config = with({});
  config.dataset.path = "a \"b\" \\ #c = [d]\n\te\x7f \xc3\xa9";
  config.schedule.learning_rate = 0.1 + 0.2;
  config.optimizer.weight_decay = 1e-300;
  config.schedule.warmup_epochs = 1e-20;
  config.schedule.milestones = {1, 2.5, 999999.75};
  config.model.freeze = {"conv1", "a \"quoted\" name"};
  config.network.seed = INT64_MAX;
  config.trainer.max_steps = 999999999999;
  config.gradients.overlap = false;
  const Config again = from_text(to_toml(config));
  EXPECT_EQ(again.dataset.path, config.dataset.path);
  EXPECT_EQ(again.schedule.learning_rate, config.schedule.learning_rate);
  EXPECT_EQ(again.optimizer.weight_decay, config.optimizer.weight_decay);
  EXPECT_EQ(again.schedule.warmup_epochs, config.schedule.warmup_epochs);
  EXPECT_EQ(again.schedule.milestones, config.schedule.milestones);
  EXPECT_EQ(again.model.freeze, config.model.freeze);
  EXPECT_EQ(again.network.seed, config.network.seed);
  EXPECT_EQ(again.trainer.max_steps, config.trainer.max_steps);
  EXPECT_FALSE(again.gradients.overlap);
  EXPECT_EQ(to_toml(again), to_toml(config));
}

TEST(Config, OverridesApplyInOrder) {
  EXPECT_EQ(with({"train.batch=16", "train.batch=8"}).loader.batch, 8);
  EXPECT_EQ(with({"train.batch=auto"}).loader.batch, 0);
  EXPECT_EQ(with({"train.batch=\"auto\""}).loader.batch, 0);
  EXPECT_EQ(with({"train.batch=0", "train.batch=8"}).loader.batch, 8) << "only the last value counts";
}

TEST(Config, OverrideValuesAreTomlOrABareWord) {
  const Config config = with({"model.name=mlp", "world.device = \"cpu\"", "comm.overlap=false",
                              "comm.bucket_mib=[2, 0.5, 1]", "optimizer.learning_rate=1", "train.seed=1_000",
                              "data.path=/data/x=y #1", "run.dir=2024-01-02", "data.mean=[]"});
  EXPECT_EQ(config.model.name, "mlp");
  EXPECT_EQ(config.device.device, "cpu");
  EXPECT_FALSE(config.gradients.overlap);
  EXPECT_EQ(config.gradients.bucket_mib, (std::array<double, 3>{2, 0.5, 1}));
  EXPECT_EQ(config.schedule.learning_rate, 1.0) << "an integer is a number";
  EXPECT_EQ(config.network.seed, 1000);
  EXPECT_EQ(config.dataset.path, "/data/x=y #1");
  EXPECT_EQ(config.run_dir, "2024-01-02") << "a string, though TOML would read a date";
  EXPECT_TRUE(config.network.mean.empty());
}

// A file of an earlier version contains a bool.
TEST(Config, WordsTrueAndFalseAreReadAndPrintedAsBools) {
  for (const auto& [value, expected] : std::map<std::string, ResetHead>{
           {"true", ResetHead::always}, {"false", ResetHead::never}, {"\"auto\"", ResetHead::automatic}}) {
    const Config config = from_text(fmt::format("[data]\npath = \"x\"\n[model]\nreset_head = {}\n", value));
    EXPECT_EQ(config.model.reset_head, expected) << value;
    EXPECT_EQ(with({"model.reset_head=" + value}).model.reset_head, expected) << value;
    expect_parts(to_toml(config), {fmt::format("reset_head = {}\n", value)});
  }
  expect_parts(set_error("model.reset_head=yes"), {"model.reset_head = \"yes\"", "false, true, auto"});
  expect_parts(text_error("[model]\nstem = true\n"), {"FILE:2: ", "model.stem = true", "cifar"});
}

TEST(Config, BoundaryValuesAreAllowed) {
  for (const char* text :
       {"train.batch=1", "train.steps=0", "train.threads=0", "train.seed=0", "data.loader_threads=0",
        "optimizer.momentum=0", "optimizer.weight_decay=0", "optimizer.beta1=0", "optimizer.beta2=0",
        "optimizer.name=adamw", "optimizer.name=lars", "optimizer.nesterov=true", "schedule.gamma=1",
        "schedule.final_fraction=1", "schedule.warmup_epochs=0", "schedule.milestones=[1, 2]",
        "schedule.milestones=[]"})
    EXPECT_NO_THROW(with({text})) << text;
}

// The printed configuration reads back to the same text, and names the unnamed layers.
TEST(Config, LayersArePrintedAndReadBack) {
  const std::string layers =
      "model.layer=[{ kind = \"block\", repeat = 2, residual = true, layer = [{ kind = \"convolution\", "
      "channels = 4, kernel = 3, padding = \"same\", l2 = 0.01 }, { kind = \"batch_norm\", epsilon = 1e-3 "
      "}] }, { kind = \"dense\", name = \"head\" }]";
  const Config config = with(
      {"model.name=layers", layers, "model.layer.block1.conv1.channels=8", "model.layer.block1.repeat=3"});
  EXPECT_EQ(config.model.name, "layers");
  const std::string text = to_toml(config);
  expect_parts(text, {"name = \"block1\", repeat = 3, residual = true",
                      "name = \"conv1\", channels = 8, kernel = 3, padding = \"same\", l2 = 0.01",
                      "name = \"bn1\", epsilon = 0.001", "name = \"head\""});
  std::vector<std::string> settings;
  for (const KeyDifference& each : differences(text, ""))
    if (each.key.starts_with("model.")) settings.push_back(each.key + "=" + each.value);
  EXPECT_EQ(to_toml(with(settings)), text);
}

// The message names the value and the bounds.
TEST(Config, ValuesOutOfRangeAreRefused) {
  const std::map<std::string, std::vector<std::string>> errors = {
      {"train.batch=0", {"train.batch = 0", "1", "1048576", "\"auto\""}},
      {"train.accumulation=0", {"train.accumulation = 0", "1", "1048576"}},
      {"train.epochs=0", {"train.epochs = 0", "1", "1000000"}},
      {"train.steps=-1", {"train.steps = -1", "0", "1000000000000"}},
      {"model.cnn.width=2.5", {"model.cnn.width = 2.5", "1", "4096"}},
      {"train.until_epoch=-1", {"train.until_epoch = -1", "0", "1000000"}},
      {"train.staleness=2", {"train.staleness = 2", "0", "1"}},
      {"train.threads=-1", {"train.threads = -1", "0", "4096"}},
      {"train.seed=-5", {"train.seed = -5", "0"}},
      {"data.loader_threads=-1", {"data.loader_threads = -1", "0", "64"}},
      {"data.loader_threads=65", {"data.loader_threads = 65", "0", "64"}},
      {"optimizer.learning_rate=0", {"optimizer.learning_rate = 0", "0", "1e+30"}},
      {"optimizer.learning_rate=-0.0", {"optimizer.learning_rate = 0", "0", "1e+30"}},
      {"optimizer.momentum=1", {"optimizer.momentum = 1", "0", "1"}},
      {"optimizer.beta1=1", {"optimizer.beta1 = 1", "0", "1"}},
      {"optimizer.beta2=-0.1", {"optimizer.beta2 = -0.1", "0", "1"}},
      {"optimizer.epsilon=0", {"optimizer.epsilon = 0", "1e-30", "1e+30"}},
      {"optimizer.trust_coefficient=0", {"optimizer.trust_coefficient = 0", "0", "1e+30"}},
      {"optimizer.weight_decay=-1e-4", {"optimizer.weight_decay = -0.0001", "0", "1e+30"}},
      {"optimizer.clip_norm=-1", {"optimizer.clip_norm = -1", "0", "1e+30"}},
      {"train.ema_decay=1", {"train.ema_decay = 1", "0", "1"}},
      {"schedule.warmup_epochs=-1", {"schedule.warmup_epochs = -1", "0", "1000000"}},
      {"schedule.gamma=0", {"schedule.gamma = 0", "0", "1"}},
      {"schedule.gamma=1.5", {"schedule.gamma = 1.5", "0", "1"}},
      {"schedule.final_fraction=2", {"schedule.final_fraction = 2", "0", "1"}},
      {"model.freeze=[\"conv1\", \"\"]", {"model.freeze = [\"conv1\", \"\"]"}},
      {"schedule.milestones=[2, 1]", {"schedule.milestones = [2, 1]", "0", "1000000"}},
      {"schedule.milestones=[1, 1]", {"schedule.milestones = [1, 1]", "0", "1000000"}},
      {"schedule.milestones=[0]", {"schedule.milestones = [0]", "0", "1000000"}},
      {"comm.bucket_mib=[1, 0, 1]", {"comm.bucket_mib = [1, 0, 1]", "3", "0", "65536"}},
      {"data.deviation=[0]", {"data.deviation = [0]", "1e-12", "1000000000000"}}};
  for (const auto& [text, parts] : errors) {
    const std::string error = set_error(text);
    expect_in_order(error, parts);
    expect_parts(error, {detail::allowed(key_set_by(text))});
  }
  for (const char* value : {"nan", "inf"})
    expect_parts(set_error(fmt::format("optimizer.learning_rate={}", value)),
                 {fmt::format("optimizer.learning_rate = {}", value), "finite"});
  expect_parts(set_error("data.mean=[inf]"), {"data.mean = [inf]", "finite"});
  expect_parts(set_error("data.path="), {"data.path", "--set data.path="});
  expect_parts(set_error("run.dir=\"\""), {"run.dir", "--set run.dir="});
  expect_in_order(set_error("data.mean=[0.5, 0.5]"), {"data.mean", " 2 ", "data.deviation", " 1 "});
}

// The message names both keys.
TEST(Config, CrossBarrierRefusesIncompatibleKeys) {
  const std::pair<const char*, const char*> others[] = {
      {"comm.overlap=false", "comm.overlap = true"},
      {"train.staleness=1", "train.staleness = 0"},
      {"train.average_every=4", "train.average_every = 0"},
      {"train.reproducible=true", "train.reproducible = false"},
      {"comm.topology=ring", "comm.topology = \"all\""},
      {"comm.check=step", "comm.check = \"plan\""},
      {"train.precision=fp16", "train.loss_scale_interval = 0"}};
  for (const auto& [other, allowed] : others) {
    const std::string error = config_error([&] { with({"comm.cross_barrier=true", other}); });
    expect_in_order(error, {"comm.cross_barrier = true", allowed});
  }
  for (const char* other :
       {"train.average_every=1", "comm.check=collective", "train.precision=bf16", "comm.codec=auto"})
    with({"comm.cross_barrier=true", other});
  with({"comm.cross_barrier=true", "train.precision=fp16", "train.loss_scale_interval=0"});
}

// The message names both keys.
TEST(Config, ShardedExchangeRefusesIncompatibleKeys) {
  const std::pair<const char*, const char*> others[] = {
      {"comm.codec=int8", "comm.codec = \"none\""},
      {"comm.codec_for=fc.*=fp16", "comm.codec_for = \"none\""},
      {"comm.topology=ring", "comm.topology = \"all\""},
      {"comm.cross_barrier=true", "comm.cross_barrier = false"},
      {"train.staleness=1", "train.staleness = 0"},
      {"train.average_every=4", "train.average_every = 0"},
      {"train.reproducible=true", "train.reproducible = false"},
      {"optimizer.clip_norm=1", "optimizer.clip_norm = 0"},
      {"optimizer.name=lars", "optimizer.name"}};
  for (const auto& [other, allowed] : others) {
    const std::string error = config_error([&] { with({"comm.exchange=sharded", other}); });
    expect_in_order(error, {"comm.exchange = \"sharded\"", allowed});
  }
  for (const char* other : {"train.ema_decay=0.9", "optimizer.name=adamw", "train.precision=fp16",
                            "comm.overlap=false", "model.sync_batch_norm=true"})
    with({"comm.exchange=sharded", other});
}

TEST(Config, CrossBarrierDefaultsToSmallBuckets) {
  using Mib = std::array<double, 3>;
  EXPECT_EQ(with({"comm.cross_barrier=true"}).gradients.bucket_mib, (Mib{1, 1, 1}));
  EXPECT_EQ(with({"comm.cross_barrier=true", "comm.bucket_mib=[1, 25, 1]"}).gradients.bucket_mib,
            (Mib{1, 25, 1}));
}

TEST(Config, ClippingNeedsTheMeanOfAllGradients) {
  const std::pair<const char*, const char*> refused[] = {
      {"comm.cross_barrier=true", "comm.cross_barrier = false"},
      {"train.staleness=1", "train.staleness = 0"},
      {"train.average_every=8", "train.average_every = 0"},
      {"comm.topology=ring", "comm.topology = \"all\""}};
  for (const auto& [other, allowed] : refused) {
    const std::string error = config_error([&] { with({"optimizer.clip_norm=0.5", other}); });
    expect_in_order(error, {"optimizer.clip_norm = 0.5", allowed});
  }
  expect_parts(config_error([] {
                 with({"optimizer.clip_norm=1", "train.staleness=1"});
               }),
               {std::string(find_exclusion(Feature::clip_norm, Feature::staleness)->reason)});
  EXPECT_EQ(with({"optimizer.clip_norm=1", "train.average_every=1", "comm.codec=topk"}).trainer.clip_norm, 1);
}

TEST(Config, WeightAverageNeedsSharedWeights) {
  const std::pair<const char*, const char*> refused[] = {
      {"comm.cross_barrier=true", "comm.cross_barrier = false"},
      {"train.average_every=8", "train.average_every = 0"},
      {"comm.topology=ring", "comm.topology = \"all\""}};
  for (const auto& [other, allowed] : refused) {
    const std::string error = config_error([&] { with({"train.ema_decay=0.75", other}); });
    expect_in_order(error, {"train.ema_decay = 0.75", allowed});
  }
  EXPECT_EQ(with({"train.ema_decay=0.999", "train.staleness=1"}).trainer.ema_decay, 0.999);
}

TEST(Config, EarlyStoppingNeedsEvaluations) {
  const std::string error = config_error([] { with({"run.stop_after_epochs=3", "run.evaluate_every=0"}); });
  expect_in_order(error, {"run.stop_after_epochs = 3", "run.evaluate_every"});
  with({"run.keep_best=true", "run.evaluate_every=0"});
}

TEST(Config, RateScalingNeedsALearningRate) {
  const auto scaled = [](const std::string& text) { return from_text("[data]\npath = \"x\"\n" + text); };
  expect_parts(text_error("[optimizer]\nscale_rate = \"linear\"\n"),
               {"FILE:2: ", "optimizer.scale_rate = \"linear\"", "optimizer.learning_rate"});
  const Config config = scaled("[optimizer]\nscale_rate = \"sqrt\"\nlearning_rate = 0.5\n");
  EXPECT_EQ(config.schedule.learning_rate, 0.5);
  EXPECT_EQ(to_toml(from_text(to_toml(config))), to_toml(config));
}

std::string error_with(const std::vector<std::string>& overrides) {
  return config_error([&] { with(overrides); });
}

TEST(Config, NesterovNeedsSgdWithMomentum) {
  expect_in_order(error_with({"optimizer.nesterov=true", "optimizer.momentum=0"}),
                  {"optimizer.nesterov = true", "optimizer.momentum", "0"});
  for (const char* name : {"adamw", "lars"})
    expect_in_order(error_with({"optimizer.nesterov=true", fmt::format("optimizer.name={}", name)}),
                    {"optimizer.nesterov = true", "optimizer.name = \"sgd\"", detail::quoted(name)});
}

TEST(Config, StepScheduleNeedsMilestones) {
  expect_in_order(error_with({"schedule.name=step"}), {"schedule.name = \"step\"", "schedule.milestones"});
  EXPECT_NO_THROW(with({"schedule.name=step", "schedule.milestones=[1]"}));
}

TEST(Config, NcclHasNoLargerSmallestThanLargestNumberOfThreadBlocks) {
  expect_in_order(error_with({"comm.min_ctas=9", "comm.max_ctas=8"}),
                  {"comm.min_ctas = 9", "comm.max_ctas = 8"});
  expect_in_order(error_with({"comm.ctas_beside_compute=9", "comm.max_ctas=8"}),
                  {"comm.ctas_beside_compute = 9", "comm.max_ctas = 8"});
  expect_in_order(error_with({"comm.ctas_beside_compute=9", "comm.cta_policy=efficiency"}),
                  {"comm.ctas_beside_compute = 9", "comm.cta_policy"});
  expect_in_order(error_with({"comm.kernel_times=true"}), {"comm.kernel_times", "train.cuda_graph = false"});
  EXPECT_EQ(with({"comm.min_ctas=9"}).device_communicator.max_ctas, 0) << "NCCL's own choice";
}

TEST(Config, ConflictingKeysAreNamedWithTheAllowedValue) {
  expect_in_order(error_with({"train.reproducible=true", "model.sync_batch_norm=true"}),
                  {"train.reproducible = true", "model.sync_batch_norm = false"});
  expect_in_order(error_with({"train.reproducible=true", "comm.between_nodes=mpi"}),
                  {"train.reproducible = true", "comm.between_nodes"});
  expect_in_order(error_with({"train.average_every=8", "train.staleness=1"}),
                  {"train.average_every = 8", "train.staleness = 0"});
  for (const char* other : {"train.staleness=1", "train.average_every=8"})
    expect_in_order(error_with({other, "comm.codec=auto"}),
                    {"comm.codec = \"auto\"", "train.staleness = 0", "train.average_every = 0"});
  expect_in_order(error_with({"train.staleness=1", "train.reproducible=true"}),
                  {"train.staleness = 1", "train.reproducible = false"});
  expect_in_order(error_with({"train.average_every=8", "train.reproducible=true"}),
                  {"train.average_every = 8", "train.reproducible = false"});
  expect_in_order(error_with({"data.tail=exact", "train.average_every=2"}),
                  {"data.tail = \"exact\"", "train.average_every = 0", "comm.topology = \"all\""});
  for (const char* key : {"data.mixup", "data.cutmix"})
    expect_in_order(error_with({fmt::format("{}=0.2", key), "train.batch=31"}), {key, "train.batch"});
  expect_in_order(error_with({"data.mixup=0.2", "data.tail=exact"}),
                  {"data.mixup", "data.tail", "\"exact\""});
  expect_in_order(error_with({"train.average_every=2", "model.sync_batch_norm=true"}),
                  {"train.average_every = 2", "model.sync_batch_norm = false"});
}

TEST(Config, SettingsWithoutEffectAreNamed) {
  struct Case {
    std::vector<std::string> overrides, named;
  };
  const Case cases[] = {
      {{"train.average_after=5"}, {"train.average_after", "train.average_every = 0", "above 1"}},
      {{"train.average_after=5", "train.average_every=2"}, {}},
      {{"run.stop_min_delta=0.1"}, {"run.stop_min_delta", "run.stop_after_epochs = 0", "above 0"}},
      {{"run.stop_min_delta=0.1", "run.stop_after_epochs=2"}, {}},
      {{"schedule.milestones=[1]", "schedule.name=cosine"},
       {"schedule.milestones", "\"cosine\"", "\"step\""}},
      {{"schedule.milestones=[1, 4]", "schedule.name=step", "train.epochs=4"},
       {"epoch 4 of schedule.milestones", "train.epochs = 4", "above 4"}},
      {{"schedule.milestones=[1, 4]", "schedule.name=step", "train.epochs=5"}, {}}};
  for (const Case& each : cases) {
    const std::vector<std::string> found = settings_without_effect(with(each.overrides));
    ASSERT_EQ(found.size(), each.named.empty() ? 0u : 1u) << each.overrides.front();
    if (!found.empty()) expect_in_order(found.front(), each.named);
  }
}

TEST(Config, MonitorPausesBetweenSamples) {
  EXPECT_EQ(with({"run.monitor_seconds=0"}).monitor_seconds, 0);
  EXPECT_EQ(with({"run.monitor_seconds=0.001"}).monitor_seconds, 0.001);
  expect_in_order(error_with({"run.monitor_seconds=1e-9"}), {"run.monitor_seconds = 1e-09", "0.001"});
}

TEST(Config, RingRefusesKeysThatSynchronizeRanks) {
  const std::pair<const char*, const char*> refused[] = {
      {"train.average_every=8", "train.average_every = 0"},
      {"train.staleness=1", "train.staleness = 0"},
      {"comm.codec=fp16", "comm.codec = \"none\""},
      {"comm.codec_for=fc.*=fp16", "comm.codec_for"},
      {"train.reproducible=true", "train.reproducible = false"},
      {"model.sync_batch_norm=true", "model.sync_batch_norm = false"},
      {"run.checkpoint_every=10", "run.checkpoint_every = 0"},
      {"run.metrics_every=10", "run.metrics_every = 0"},
      {"comm.check=step", "comm.check = \"plan\""},
      {"world.device=cuda", "world.device = \"cpu\""},
      {"world.device=idle", "world.device = \"cpu\""}};
  for (const auto& [other, allowed] : refused) {
    const std::string error = config_error([&] { with({"comm.topology=ring", other}); });
    expect_in_order(error, {"comm.topology = \"ring\"", allowed});
  }
  EXPECT_EQ(with({"comm.topology=ring"}).trainer.topology, Topology::ring);
  expect_parts(set_error("comm.topology=line"),
               {"comm.topology = \"line\"", "all, ring", did_you_mean("ring")});
}

// The message names the value, and the type and the range of the key.
TEST(Config, ValuesOfTheWrongTypeAreRefused) {
  const std::map<std::string, std::vector<std::string>> errors = {
      {"train.batch=1.5", {"train.batch = 1.5", "1", "1048576", "\"auto\""}},
      {"train.batch=64.0", {"train.batch = 64.0", "1", "1048576", "\"auto\""}},
      {"train.batch=many", {"train.batch = \"many\"", "1", "1048576", "\"auto\""}},
      {"train.batch=[1]", {"train.batch = [ 1 ]", "1", "1048576", "\"auto\""}},
      {"optimizer.learning_rate=fast", {"optimizer.learning_rate = \"fast\"", "0", "1e+30"}},
      {"optimizer.learning_rate=true", {"optimizer.learning_rate = true", "0", "1e+30"}},
      {"comm.overlap=1", {"comm.overlap = 1", "true", "false"}},
      {"comm.overlap=yes", {"comm.overlap = \"yes\"", "true", "false"}},
      {"comm.bucket_mib=[1, 25]", {"comm.bucket_mib = [ 1, 25 ]", "3", "0", "65536"}},
      {"comm.bucket_mib=25", {"comm.bucket_mib = 25", "3", "0", "65536"}},
      {"comm.bucket_mib=[0.01, [-0.5], { \"a b\" = 1, c = [] }]",
       {"comm.bucket_mib = [ 0.01, [ -0.5 ], { \"a b\" = 1, c = [] } ]", "3", "0", "65536"}},
      {"model.freeze=conv1", {"model.freeze = \"conv1\""}},
      {"model.freeze=[1]", {"model.freeze = [ 1 ]"}},
      {"schedule.milestones=[\"a\"]", {"schedule.milestones = [ \"a\" ]", "0", "1000000"}},
      {"data.mean=0.5", {"data.mean = 0.5", "-1000000000000", "1000000000000"}}};
  for (const auto& [text, parts] : errors) {
    const std::string error = set_error(text);
    expect_in_order(error, parts);
    expect_parts(error, {detail::expected(key_set_by(text))});
  }
  expect_parts(text_error("[data]\npath = 3\n"), {"FILE:2: ", "data.path = 3", "string"});
  expect_parts(text_error("[model]\nname = 3\n"),
               {"FILE:2: ", "model.name = 3",
                "mlp, cnn, resnet20, resnet18, resnet34, resnet50, vgg11_bn, mobilenet_v2, unet"});
}

TEST(Config, WordListsAreParsedAndChecked) {
  EXPECT_EQ(with({"run.metrics=top5, f1"}).metrics, "top5, f1");
  EXPECT_EQ(with({"run.metrics=confusion"}).metrics, "confusion");
  EXPECT_EQ(with({"run.metrics=none"}).metrics, "none");
  const std::string words = "top5, f1, confusion";
  expect_parts(set_error("run.metrics=top5, confuson"), {"run.metrics = \"top5, confuson\"", " \"confuson\"",
                                                         "none", words, did_you_mean("confusion")});
  expect_parts(set_error("run.metrics=,"), {"run.metrics = \",\"", "none", words});
  expect_parts(set_error("run.metrics="), {"run.metrics = \"\"", "none", words});
}

TEST(Config, UnknownWordsSuggestTheNearest) {
  const std::string
      networks = "mlp, cnn, resnet20, resnet18, resnet34, resnet50, vgg11_bn, mobilenet_v2, unet",
      formats = "idx, cifar_binary, image_folder, tfrecord, webdataset, records, hdf5, csv, synthetic",
      devices = "auto, cpu, cuda, idle";
  const std::map<std::string, std::vector<std::string>> errors = {
      {"model.name=ccn", {"model.name = \"ccn\"", networks, did_you_mean("cnn")}},
      {"model.name=resnet-20", {"model.name = \"resnet-20\"", networks, did_you_mean("resnet20")}},
      {"optimizer.name=adam", {"optimizer.name = \"adam\"", "sgd, adamw, lars", did_you_mean("adamw")}},
      {"schedule.name=cosin",
       {"schedule.name = \"cosin\"", "constant, step, cosine", did_you_mean("cosine")}},
      {"data.format=cifar10", {"data.format = \"cifar10\"", formats, did_you_mean("cifar_binary")}},
      {"data.format=fake", {"data.format = \"fake\"", formats, did_you_mean("synthetic")}},
      {"data.tail=carri", {"data.tail = \"carri\"", "drop, carry, repeat, exact", did_you_mean("carry")}},
      {"world.device=gpu", {"world.device = \"gpu\"", devices, did_you_mean("cuda")}}};
  for (const auto& [text, parts] : errors) expect_parts(set_error(text), parts);

  const std::map<std::string, std::vector<std::string>> far = {
      {"data.format=parquet", {"data.format = \"parquet\"", formats}},
      {"world.device=", {"world.device = \"\"", devices}}};
  for (const auto& [text, parts] : far) {
    const std::string error = set_error(text);
    expect_parts(error, parts);
    expect_no_suggestion(error, key_set_by(text).words);
  }
}

TEST(Config, UnknownKeysSuggestTheNearest) {
  expect_parts(set_error("train.bacth=1"), {"train.bacth", did_you_mean("train.batch")});
  expect_parts(set_error("model.batch=1"), {"model.batch", did_you_mean("train.batch")});
  expect_parts(set_error("learning_rate=1"), {" learning_rate", did_you_mean("optimizer.learning_rate")});
  expect_parts(text_error("[train]\nbacth = 1\n"), {"FILE:2: ", "train.bacth", did_you_mean("train.batch")});
  EXPECT_EQ(text_error("[train.batch]\nx = 1\n").substr(0, 22), "FILE:1: train.batch = ");
  expect_parts(text_error("batch = 1\n"), {"FILE:1: ", " batch", did_you_mean("train.batch")});
  expect_parts(text_error("[trian]\nbatch = 1\n"), {"FILE:1: ", "[trian]", did_you_mean("[train]")});
  expect_parts(text_error("train = 3\n"), {"FILE:1: ", "train = 3", "[train]"});
  EXPECT_EQ(text_error("[[train]]\nbatch = 3\n").substr(0, 16), "FILE:1: train = ");

  std::vector<std::string> names, sections;
  for (const detail::Key& key : detail::keys()) {
    names.push_back(key.name);
    sections.push_back("[" + key.section() + "]");
  }
  const std::string far_key = set_error("zzzzzzzzzzzzzzzz=1"), far_section = text_error("[elsewhere]\n");
  expect_parts(far_key, {"zzzzzzzzzzzzzzzz"});
  expect_no_suggestion(far_key, names);
  expect_parts(far_section, {"FILE:1: ", "[elsewhere]"});
  expect_no_suggestion(far_section, sections);
}

TEST(Config, MalformedOverridesAreRefused) {
  for (const char* text : {"train.batch", "=3", ""})
    expect_parts(set_error(text), {fmt::format("--set {}", text), "section.key=value"});
  expect_parts(set_error("train.batch="),
               {"--set train.batch=", "1048576", detail::expected(key_called("train.batch"))});
  for (const char* text : {"data.mean=[0.1", "data.path=\"x"})
    expect_parts(set_error(text), {fmt::format("--set {}", text), "TOML"});
  EXPECT_NE(set_error("train.batch=1\nother=2").find("train.batch = "), std::string::npos)
      << "one override cannot contain a second assignment";
}

TEST(Config, SyntaxErrorsNameFileAndLine) {
  const TemporaryFile file("[train]\nbatch = 1\nepochs = = 2\n");
  const std::string message = config_error([&] { load_config(file.path(), {}); });
  EXPECT_TRUE(message.starts_with(file.path() + ":3:10: ")) << message;
  EXPECT_FALSE(text_error("[train]\nbatch = 1\nbatch = 2\n").empty()) << "a key given twice";
  EXPECT_FALSE(text_error("[data]\npath = \"\xff\"\n").empty()) << "not UTF-8";
  EXPECT_FALSE(text_error(std::string(5000, '[')).empty()) << "nested too deep";
  EXPECT_FALSE(text_error("x = " + std::string(5000, '[')).empty()) << "nested too deep";
}

TEST(Config, NonAsciiIsAllowedInStringsAndComments) {
  EXPECT_EQ(
      from_text("\xef\xbb\xbf# \xc3\xa9\n[data]\npath = 'a\\' # \"\xc3\xa9\n[run]\ndir = \"\\\"\xc3\xa9\"\n")
          .run_dir,
      "\"\xc3\xa9");
  expect_parts(text_error("[train]\nbatch = 0\xc3\xa9\n"), {"FILE:2:10: ", "ASCII"});
  expect_parts(text_error("[data]\npath = '''\n\xc3\xa9'''\n"), {"FILE:2:8: "});
  expect_parts(set_error("train.batch=1\xc3\xa9"), {"train.batch = \"1\xc3\xa9\"", "1048576", "\"auto\""});
  EXPECT_EQ(with({"run.dir=\xc3\xa9"}).run_dir, "\xc3\xa9");
}

TEST(Config, EndlessFileIsNamed) {
  expect_parts(config_error([] { load_config("/dev/zero", {}); }), {"/dev/zero", "1 MiB"});
}

TEST(Config, UnknownPresetsSuggestTheNearestAndListAll) {
  const std::string message = config_error([] { load_config("fashion_mnist_cn", {}); });
  EXPECT_TRUE(std::regex_search(message, std::regex("\\bfashion_mnist_cn\\b"))) << message;
  expect_parts(message, {did_you_mean("fashion_mnist_cnn")});
  expect_parts(message, preset_names());
  expect_no_suggestion(config_error([] { load_config("x", {}); }), preset_names());
}

TEST(Config, FirstDifferenceNamesKeyAndValues) {
  const std::string base = to_toml(with({"train.batch=32"}));
  EXPECT_EQ(first_difference(base, base), "");
  expect_in_order(first_difference(base, to_toml(with({"train.batch=64"}))), {"train.batch", "32", "64"});
  expect_in_order(
      first_difference(base, to_toml(with({"train.batch=32", "run.dir=a = b", "model.batch_norm=false"}))),
      {"model.batch_norm", "true", "false"});
  const std::string one = "[a]\nx = 1\n", two = "[a]\nx = 1\ny = 2\n";
  expect_in_order(first_difference(one, two), {"a.y", "2"});
  expect_in_order(first_difference(two, one), {"a.y", "2"});
  EXPECT_NE(first_difference(one, two), first_difference(two, one))
      << "the text names the side without the key";
  expect_in_order(first_difference(one, "[b]\nx = 1\n"), {"a.x", "1"});
}

TEST(Config, FirstDifferenceNamesAKeyThatOneTextLacksInTheMiddle) {
  std::vector<std::string> overrides = {"data.path=x", "train.batch=auto"};
  const std::string chosen = to_toml(config_of(overrides));
  overrides.emplace_back("optimizer.learning_rate=0.5");
  const std::string given = to_toml(config_of(overrides));
  expect_in_order(first_difference(chosen, given), {"optimizer.learning_rate: ", " against 0.5"});
  expect_in_order(first_difference(given, chosen), {"optimizer.learning_rate: 0.5 against "});
}

TEST(Config, EveryKeyIsDescribedAndPrinted) {
  const std::string described = describe_keys();
  const detail::Key& batch = key_called("train.batch");
  expect_parts(std::regex_replace(described, std::regex("\n +"), " "),
               {fmt::format(" train.batch = 32 {} ({})", batch.description, detail::allowed(batch)),
                "(constant, step, cosine)"});
  std::vector<std::string> printed, keys;
  for (const KeyDifference& each : differences(to_toml(Config()), "")) printed.push_back(each.key);
  for (const detail::Key& key : detail::keys()) {
    keys.push_back(key.name);
    expect_parts(described, {fmt::format("  {} = ", key.name)});
  }
  EXPECT_EQ(printed, keys);
}

TEST(Config, TextHidesSecrets) {
  const Config config = with({"run.event_command=curl https://hooks.example/token"});
  EXPECT_TRUE(config.busy.runs_command());
  const std::string text = to_toml(config);
  EXPECT_EQ(text.find("token"), std::string::npos);
  EXPECT_NE(text.find("event_command = \"redacted\"\n"), std::string::npos) << text;
  const Config again = from_text(text);
  EXPECT_FALSE(again.busy.runs_command());
  EXPECT_EQ(to_toml(again), text);
  for (const auto& [word, shown] :
       {std::pair{"run.event_command=curl token", "run.event_command=redacted"},
        std::pair{"--set=run.event_command = a=b", "--set=run.event_command =redacted"},
        std::pair{"run.event_command curl token", "run.event_command redacted"},
        std::pair{"run.event_command=none", "run.event_command=none"},
        std::pair{"run.event_command = \"none\"", "run.event_command = \"none\""},
        std::pair{"run.event_command=none of it", "run.event_command=redacted"},
        std::pair{"run.dir=here", "run.dir=here"}})
    EXPECT_EQ(detail::without_secrets(word), shown);
}

TEST(Config, CommandToRepeatLeavesOutSecretsAndNamesThem) {
  std::vector<std::string> words = {"train", "--set",        "run.event_command=curl token",
                                    "--set", "run.dir=here", "--set=run.event_command=mail me"};
  expect_parts(remove_secrets(words), {"run.event_command", "LOCKSTEP_EVENT_COMMAND"});
  EXPECT_EQ(words, (std::vector<std::string>{"train", "--set", "run.dir=here"}));
  EXPECT_EQ(remove_secrets(words), "");
}

TEST(Config, PrintedCommandHidesSecretsOfMisspeltKeys) {
  EXPECT_EQ(shell_command({"lockstep", "train", "--set", "run.event_comand=token",
                           "--set=event_command=token", "--set=run.dir=here"}),
            "lockstep train --set run.event_comand=redacted --set=event_command=redacted --set=run.dir=here");
}

}  // namespace
}  // namespace lockstep
