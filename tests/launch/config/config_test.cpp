// SPDX-License-Identifier: Apache-2.0
#include "launch/config/config.h"

#include <algorithm>
#include <fstream>
#include <map>
#include <sstream>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "core/error.h"
#include "launch/config/config_keys.h"
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

TEST(Config, PresetSetsWhatItsFileSays) {
  const Config config = with({});
  EXPECT_EQ(config.model.name, "cnn");
  EXPECT_EQ(config.dataset.path, "/usr/share/datasets/fashion-mnist");
  EXPECT_EQ(config.network.mean, std::vector<double>{0.2860});
  EXPECT_EQ(config.loader.batch, 64);
  EXPECT_EQ(config.optimizer.weight_decay, 5e-4);
  EXPECT_EQ(config.schedule.warmup_epochs, 0.5);
  EXPECT_EQ(config.loader.accumulation, 1) << "what the preset leaves out keeps its default";
}

TEST(Config, EveryPresetFileIsBuiltIn) {
  std::vector<std::string> files;
  for (const auto& entry : std::filesystem::directory_iterator(LOCKSTEP_SOURCE_DIR "/launch/presets"))
    if (entry.path().extension() == ".toml") files.push_back(entry.path().stem());
  std::ranges::sort(files);
  EXPECT_EQ(preset_names(), files);
  EXPECT_GE(files.size(), 3u);
}

TEST(Config, PresetEqualsItsFile) {
  for (const std::string& name : preset_names()) {
    const std::string path = fmt::format("{}/launch/presets/{}.toml", LOCKSTEP_SOURCE_DIR, name);
    EXPECT_EQ(to_toml(load_config(name, {})), to_toml(load_config(path, {}))) << name;
  }
}

TEST(Config, TextOfEveryPresetLoadsToTheSameText) {
  for (const std::string& name : preset_names()) {
    const std::string text = to_toml(load_config(name, {}));
    EXPECT_EQ(to_toml(from_text(text)), text) << name;
  }
}

TEST(Config, TextKeepsAwkwardValues) {
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

TEST(Config, BoundariesThatAreAllowed) {
  for (const char* text :
       {"train.batch=1", "train.steps=0", "train.threads=0", "train.seed=0", "data.loader_threads=0",
        "optimizer.momentum=0", "optimizer.weight_decay=0", "optimizer.beta1=0", "optimizer.beta2=0",
        "optimizer.name=adamw", "optimizer.name=lars", "optimizer.nesterov=true", "schedule.gamma=1",
        "schedule.final_fraction=1", "schedule.warmup_epochs=0", "schedule.milestones=[1, 2]",
        "schedule.milestones=[]"})
    EXPECT_NO_THROW(with({text})) << text;
}

TEST(Config, EveryDatasetFormatIsAllowed) {
  for (const char* format : {"idx", "cifar_binary", "image_folder", "synthetic"}) {
    EXPECT_EQ(with({fmt::format("data.format={}", format)}).dataset.format, format);
  }
}

TEST(Config, ValuesOutOfRange) {
  const std::map<std::string, std::string> errors = {
      {"train.batch=0", "train.batch = 0: allowed are integers from 1 to 1048576, or \"auto\""},
      {"train.accumulation=0", "train.accumulation = 0: allowed are integers from 1 to 1048576"},
      {"train.epochs=0", "train.epochs = 0: allowed are integers from 1 to 1000000"},
      {"train.steps=-1", "train.steps = -1: allowed are integers from 0 to 1000000000000"},
      {"model.cnn.width=2.5", "model.cnn.width = 2.5: allowed are integers from 1 to 4096"},
      {"train.until_epoch=-1", "train.until_epoch = -1: allowed are integers from 0 to 1000000"},
      {"train.threads=-1", "train.threads = -1: allowed are integers from 0 to 4096"},
      {"train.seed=-5", "train.seed = -5: allowed are integers >= 0"},
      {"data.loader_threads=-1", "data.loader_threads = -1: allowed are integers from 0 to 64"},
      {"data.loader_threads=65", "data.loader_threads = 65: allowed are integers from 0 to 64"},
      {"optimizer.learning_rate=0", "optimizer.learning_rate = 0: allowed are numbers > 0 and <= 1e+30"},
      {"optimizer.learning_rate=-0.0", "optimizer.learning_rate = 0: allowed are numbers > 0 and <= 1e+30"},
      {"optimizer.learning_rate=nan", "optimizer.learning_rate = nan: only finite numbers are allowed"},
      {"optimizer.learning_rate=inf", "optimizer.learning_rate = inf: only finite numbers are allowed"},
      {"optimizer.momentum=1", "optimizer.momentum = 1: allowed are numbers >= 0 and < 1"},
      {"optimizer.beta1=1", "optimizer.beta1 = 1: allowed are numbers >= 0 and < 1"},
      {"optimizer.beta2=-0.1", "optimizer.beta2 = -0.1: allowed are numbers >= 0 and < 1"},
      {"optimizer.epsilon=0", "optimizer.epsilon = 0: allowed are numbers from 1e-30 to 1e+30"},
      {"optimizer.trust_coefficient=0",
       "optimizer.trust_coefficient = 0: allowed are numbers > 0 and <= 1e+30"},
      {"optimizer.weight_decay=-1e-4",
       "optimizer.weight_decay = -0.0001: allowed are numbers from 0 to 1e+30"},
      {"schedule.warmup_epochs=-1", "schedule.warmup_epochs = -1: allowed are numbers from 0 to 1000000"},
      {"schedule.gamma=0", "schedule.gamma = 0: allowed are numbers > 0 and <= 1"},
      {"schedule.gamma=1.5", "schedule.gamma = 1.5: allowed are numbers > 0 and <= 1"},
      {"schedule.final_fraction=2", "schedule.final_fraction = 2: allowed are numbers from 0 to 1"},
      {"model.freeze=[\"conv1\", \"\"]",
       "model.freeze = [\"conv1\", \"\"]: allowed are lists of strings that are not empty"},
      {"schedule.milestones=[2, 1]",
       "schedule.milestones = [2, 1]: allowed are lists of ascending numbers > 0 and <= 1000000"},
      {"schedule.milestones=[1, 1]",
       "schedule.milestones = [1, 1]: allowed are lists of ascending numbers > 0 and <= 1000000"},
      {"schedule.milestones=[0]",
       "schedule.milestones = [0]: allowed are lists of ascending numbers > 0 and <= 1000000"},
      {"comm.bucket_mib=[1, 0, 1]",
       "comm.bucket_mib = [1, 0, 1]: allowed are lists of 3 numbers > 0 and <= 65536"},
      {"data.deviation=[0]",
       "data.deviation = [0]: allowed are lists of numbers from 1e-12 to 1000000000000"},
      {"data.mean=[inf]", "data.mean = [inf]: only finite numbers are allowed"},
      {"data.path=", "data.path is empty: set it in the file or with --set data.path=..."},
      {"run.dir=\"\"", "run.dir is empty: set it in the file or with --set run.dir=..."},
      {"data.mean=[0.5, 0.5]",
       "data.mean has 2 and data.deviation has 1 values: one for each channel is expected in both, or [] for "
       "none"}};
  for (const auto& [text, message] : errors) EXPECT_EQ(set_error(text), message);
}

// The message names both keys.
TEST(Config, CrossBarrierRefusesWhatItMakesNoSenseWith) {
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
    EXPECT_EQ(error.find("comm.cross_barrier = true: allowed with "), 0u) << error;
    EXPECT_NE(error.find(allowed), std::string::npos) << error;
  }
  for (const char* other :
       {"train.average_every=1", "comm.check=collective", "train.precision=bf16", "comm.codec=auto"})
    with({"comm.cross_barrier=true", other});
  with({"comm.cross_barrier=true", "train.precision=fp16", "train.loss_scale_interval=0"});
}

TEST(Config, CrossBarrierHasSmallBucketsUnlessTheyAreGiven) {
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
    const std::string error = config_error([&] { with({"optimizer.clip_norm=0.5", std::string(other)}); });
    EXPECT_EQ(error.find(fmt::format("optimizer.clip_norm = 0.5: allowed with {}, as ", allowed)), 0u)
        << error;
    EXPECT_EQ(error.find('\n'), std::string::npos) << error;
  }
  EXPECT_EQ(set_error("optimizer.clip_norm=-1"),
            "optimizer.clip_norm = -1: allowed are numbers from 0 to 1e+30");
  EXPECT_EQ(with({"optimizer.clip_norm=1", "train.average_every=1", "comm.codec=topk"}).trainer.clip_norm, 1);
}

TEST(Config, AnAverageOfWeightsNeedsWeightsThatAllRanksShare) {
  const std::pair<const char*, const char*> refused[] = {
      {"comm.cross_barrier=true", "comm.cross_barrier = false"},
      {"train.average_every=8", "train.average_every = 0"},
      {"comm.topology=ring", "comm.topology = \"all\""}};
  for (const auto& [other, allowed] : refused) {
    const std::string error = config_error([&] { with({"train.ema_decay=0.75", std::string(other)}); });
    EXPECT_EQ(error.find(fmt::format("train.ema_decay = 0.75: allowed with {}, as ", allowed)), 0u) << error;
  }
  EXPECT_EQ(set_error("train.ema_decay=1"), "train.ema_decay = 1: allowed are numbers >= 0 and < 1");
  EXPECT_EQ(with({"train.ema_decay=0.999", "train.staleness=1"}).trainer.ema_decay, 0.999);
}

TEST(Config, WhatStopsATrainingNeedsEvaluations) {
  EXPECT_EQ(
      config_error([&] {
        with({"run.stop_after_epochs=3", "run.evaluate_every=0"});
      }),
      "run.stop_after_epochs = 3: allowed with a run.evaluate_every above 0, as it is evaluations before "
      "the last that tell when to stop");
  with({"run.keep_best=true", "run.evaluate_every=0"});
}

TEST(Config, ARateIsScaledWhereItIsGiven) {
  const auto scaled = [](const std::string& text) { return from_text("[data]\npath = \"x\"\n" + text); };
  EXPECT_EQ(
      text_error("[optimizer]\nscale_rate = \"linear\"\n"),
      "FILE:2: optimizer.scale_rate = \"linear\": allowed with an optimizer.learning_rate that is given, "
      "as one that is chosen suits the samples of each rank already");
  const Config config = scaled("[optimizer]\nscale_rate = \"sqrt\"\nlearning_rate = 0.5\n");
  EXPECT_EQ(config.schedule.learning_rate, 0.5);
  EXPECT_EQ(to_toml(from_text(to_toml(config))), to_toml(config));
}

TEST(Config, NesterovNeedsSgdWithMomentum) {
  const auto error = [](const std::vector<std::string>& overrides) {
    return config_error([&] { with(overrides); });
  };
  EXPECT_EQ(error({"optimizer.nesterov=true", "optimizer.momentum=0"}),
            "optimizer.nesterov = true: optimizer.momentum > 0 is expected, not 0");
  EXPECT_EQ(error({"optimizer.nesterov=true", "optimizer.name=adamw"}),
            "optimizer.nesterov = true: allowed with optimizer.name = \"sgd\", not \"adamw\"");
  EXPECT_EQ(error({"optimizer.nesterov=true", "optimizer.name=lars"}),
            "optimizer.nesterov = true: allowed with optimizer.name = \"sgd\", not \"lars\"");
  EXPECT_EQ(error({"train.reproducible=true", "model.sync_batch_norm=true"}),
            "train.reproducible = true: allowed with model.sync_batch_norm = false, as moments over ranks "
            "depend on how micro-batches are dealt to them");
  EXPECT_EQ(error({"train.average_every=8", "train.staleness=1"}),
            "train.average_every = 8: allowed with train.staleness = 0, as ranks then exchange no gradients "
            "that could be late");
  for (const char* other : {"train.staleness=1", "train.average_every=8"})
    EXPECT_NE(error({other, "comm.codec=auto"}).find("comm.codec = \"auto\": allowed with"),
              std::string::npos);
  EXPECT_EQ(error({"train.staleness=1", "train.reproducible=true"}),
            "train.staleness = 1: allowed with train.reproducible = false, as its micro-batches are added up "
            "where the gradients of the step before travel");
  EXPECT_EQ(error({"train.average_every=8", "train.reproducible=true"}),
            "train.average_every = 8: allowed with train.reproducible = false, as what ranks train apart "
            "depends on how many they are");
  EXPECT_EQ(
      error({"data.tail=exact", "train.average_every=2"}),
      "data.tail = \"exact\": allowed with train.average_every = 0 and comm.topology = \"all\", as the mean "
      "over a short batch is one over all ranks");
  EXPECT_EQ(error({"data.mixup=0.2", "train.batch=31"}),
            "data.mixup above 0: allowed with an even train.batch, as images are mixed in pairs");
  EXPECT_EQ(
      error({"data.mixup=0.2", "data.tail=exact"}),
      "data.mixup above 0: allowed with another data.tail than \"exact\", as who is whose neighbour in a "
      "short batch depends on the number of ranks");
  EXPECT_EQ(error({"data.cutmix=1", "train.batch=31"}),
            "data.cutmix above 0: allowed with an even train.batch, as images are mixed in pairs");
  EXPECT_EQ(
      error({"train.average_every=2", "model.sync_batch_norm=true"}),
      "train.average_every = 2: allowed with model.sync_batch_norm = false, as it has ranks wait for each "
      "other in every layer of every step");
}

TEST(Config, ARingIsRefusedWithWhatHasRanksWaitForEachOther) {
  const std::pair<const char*, const char*> refused[] = {
      {"train.average_every=8", "train.average_every = 0"},
      {"train.staleness=1", "train.staleness = 0"},
      {"comm.codec=fp16", "comm.codec = \"none\" and without comm.codec_for"},
      {"comm.codec_for=fc.*=fp16", "comm.codec = \"none\" and without comm.codec_for"},
      {"train.reproducible=true", "train.reproducible = false"},
      {"model.sync_batch_norm=true", "model.sync_batch_norm = false"},
      {"run.checkpoint_every=10", "run.checkpoint_every = 0"},
      {"run.metrics_every=10", "run.metrics_every = 0"},
      {"world.device=cuda", "world.device = \"cpu\""},
      {"world.device=idle", "world.device = \"cpu\""}};
  for (const auto& [other, allowed] : refused) {
    const std::string error = config_error([&] { with({"comm.topology=ring", std::string(other)}); });
    EXPECT_EQ(error.find(fmt::format("comm.topology = \"ring\": allowed with {}, as ", allowed)), 0u)
        << error;
    EXPECT_EQ(error.find('\n'), std::string::npos) << error;
  }
  EXPECT_EQ(with({"comm.topology=ring"}).trainer.topology, Topology::ring);
  EXPECT_EQ(set_error("comm.topology=line"),
            "comm.topology = \"line\": allowed are all, ring; did you mean ring?");
}

TEST(Config, ValuesOfTheWrongType) {
  const std::map<std::string, std::string> errors = {
      {"train.batch=1.5", "train.batch = 1.5: an integer from 1 to 1048576, or \"auto\" is expected"},
      {"train.batch=64.0", "train.batch = 64.0: an integer from 1 to 1048576, or \"auto\" is expected"},
      {"train.batch=many", "train.batch = \"many\": an integer from 1 to 1048576, or \"auto\" is expected"},
      {"train.batch=[1]", "train.batch = [ 1 ]: an integer from 1 to 1048576, or \"auto\" is expected"},
      {"optimizer.learning_rate=fast",
       "optimizer.learning_rate = \"fast\": a number > 0 and <= 1e+30 is expected"},
      {"optimizer.learning_rate=true",
       "optimizer.learning_rate = true: a number > 0 and <= 1e+30 is expected"},
      {"comm.overlap=1", "comm.overlap = 1: true or false is expected"},
      {"comm.overlap=yes", "comm.overlap = \"yes\": true or false is expected"},
      {"comm.bucket_mib=[1, 25]",
       "comm.bucket_mib = [ 1, 25 ]: a list of 3 numbers > 0 and <= 65536 is expected"},
      {"comm.bucket_mib=25", "comm.bucket_mib = 25: a list of 3 numbers > 0 and <= 65536 is expected"},
      {"model.freeze=conv1", "model.freeze = \"conv1\": a list of strings is expected"},
      {"model.freeze=[1]", "model.freeze = [ 1 ]: a list of strings is expected"},
      {"schedule.milestones=[\"a\"]",
       "schedule.milestones = [ \"a\" ]: a list of ascending numbers > 0 and <= 1000000 is expected"},
      {"data.mean=0.5",
       "data.mean = 0.5: a list of numbers from -1000000000000 to 1000000000000 is expected"}};
  for (const auto& [text, message] : errors) EXPECT_EQ(set_error(text), message);
  EXPECT_EQ(text_error("[data]\npath = 3\n"), "FILE:2: data.path = 3: a string is expected");
  EXPECT_EQ(text_error("[model]\nname = 3\n"),
            "FILE:2: model.name = 3: one of mlp, cnn, resnet20, resnet18, resnet34, resnet50, vgg11_bn, "
            "mobilenet_v2 "
            "is expected");
}

TEST(Config, SomeOfSeveralWords) {
  EXPECT_EQ(with({"run.metrics=top5, f1"}).metrics, "top5, f1");
  EXPECT_EQ(with({"run.metrics=confusion"}).metrics, "confusion");
  EXPECT_EQ(with({"run.metrics=none"}).metrics, "none");
  const std::string allowed = "none, or some of top5, f1, confusion, with commas between them";
  EXPECT_EQ(set_error("run.metrics=top5, confuson"),
            "run.metrics = \"top5, confuson\": \"confuson\" is not known, allowed are " + allowed +
                "; did you mean confusion?");
  EXPECT_EQ(set_error("run.metrics=,"), "run.metrics = \",\": allowed are " + allowed);
  EXPECT_EQ(set_error("run.metrics="), "run.metrics = \"\": allowed are " + allowed);
}

TEST(Config, UnknownWordsSuggestTheNearest) {
  const std::map<std::string, std::string> errors = {
      {"model.name=ccn",
       "model.name = \"ccn\": allowed are mlp, cnn, resnet20, resnet18, resnet34, resnet50, vgg11_bn, "
       "mobilenet_v2; did you mean cnn?"},
      {"model.name=resnet-20",
       "model.name = \"resnet-20\": allowed are mlp, cnn, resnet20, resnet18, resnet34, resnet50, vgg11_bn, "
       "mobilenet_v2; did you mean resnet20?"},
      {"optimizer.name=adam", "optimizer.name = \"adam\": allowed are sgd, adamw, lars; did you mean adamw?"},
      {"schedule.name=cosin",
       "schedule.name = \"cosin\": allowed are constant, step, cosine; did you mean cosine?"},
      {"data.format=cifar10",
       "data.format = \"cifar10\": allowed are idx, cifar_binary, image_folder, tfrecord, webdataset, "
       "records, hdf5, csv, synthetic; did you mean cifar_binary?"},
      {"data.format=fake",
       "data.format = \"fake\": allowed are idx, cifar_binary, image_folder, tfrecord, webdataset, "
       "records, hdf5, csv, synthetic; did you mean synthetic?"},
      {"data.format=parquet",
       "data.format = \"parquet\": allowed are idx, cifar_binary, image_folder, tfrecord, webdataset, "
       "records, hdf5, csv, synthetic"},
      {"data.tail=carri",
       "data.tail = \"carri\": allowed are drop, carry, repeat, exact; did you mean carry?"},
      {"world.device=gpu", "world.device = \"gpu\": allowed are auto, cpu, cuda, idle; did you mean cuda?"},
      {"world.device=", "world.device = \"\": allowed are auto, cpu, cuda, idle"}};
  for (const auto& [text, message] : errors) EXPECT_EQ(set_error(text), message);
}

TEST(Config, UnknownKeysSuggestTheNearest) {
  EXPECT_EQ(set_error("train.bacth=1"), "unknown key train.bacth; did you mean train.batch?");
  EXPECT_EQ(set_error("model.batch=1"), "unknown key model.batch; did you mean train.batch?");
  EXPECT_EQ(set_error("learning_rate=1"), "unknown key learning_rate; did you mean optimizer.learning_rate?");
  EXPECT_EQ(set_error("zzzzzzzzzzzzzzzz=1"), "unknown key zzzzzzzzzzzzzzzz");
  EXPECT_EQ(text_error("[train]\nbacth = 1\n"), "FILE:2: unknown key train.bacth; did you mean train.batch?");
  EXPECT_EQ(text_error("[train.batch]\nx = 1\n").substr(0, 22), "FILE:1: train.batch = ");
  EXPECT_EQ(text_error("batch = 1\n"), "FILE:1: unknown key batch; did you mean train.batch?");
  EXPECT_EQ(text_error("[trian]\nbatch = 1\n"), "FILE:1: unknown section [trian]; did you mean [train]?");
  EXPECT_EQ(text_error("[elsewhere]\n"), "FILE:1: unknown section [elsewhere]");
  EXPECT_EQ(text_error("train = 3\n"), "FILE:1: train = 3: a section [train] of keys is expected");
  EXPECT_EQ(text_error("[[train]]\nbatch = 3\n").substr(0, 16), "FILE:1: train = ");
}

TEST(Config, MalformedOverrides) {
  EXPECT_EQ(set_error("train.batch"), "--set train.batch: section.key=value is expected");
  EXPECT_EQ(set_error("=3"), "--set =3: section.key=value is expected");
  EXPECT_EQ(set_error(""), "--set : section.key=value is expected");
  EXPECT_EQ(set_error("train.batch="),
            "--set train.batch=: no value is given; an integer from 1 to 1048576, or \"auto\" is expected");
  EXPECT_EQ(set_error("data.mean=[0.1"), "--set data.mean=[0.1: the value is not valid TOML");
  EXPECT_EQ(set_error("data.path=\"x"), "--set data.path=\"x: the value is not valid TOML");
  EXPECT_NE(set_error("train.batch=1\nother=2").find("train.batch = "), std::string::npos)
      << "a second assignment does not slip in";
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

TEST(Config, LettersBeyondAsciiAreForStringsAndComments) {
  EXPECT_EQ(
      from_text("\xef\xbb\xbf# \xc3\xa9\n[data]\npath = 'a\\' # \"\xc3\xa9\n[run]\ndir = \"\\\"\xc3\xa9\"\n")
          .run_dir,
      "\"\xc3\xa9");
  EXPECT_TRUE(text_error("[train]\nbatch = 0\xc3\xa9\n")
                  .ends_with(":2:10: only ASCII is allowed outside quotes and comments"));
  EXPECT_TRUE(text_error("[data]\npath = '''\n\xc3\xa9'''\n")
                  .ends_with(":2:8: strings of several lines are not supported"));
  EXPECT_EQ(set_error("train.batch=1\xc3\xa9"),
            "train.batch = \"1\xc3\xa9\": an integer from 1 to 1048576, or \"auto\" is expected");
  EXPECT_EQ(with({"run.dir=\xc3\xa9"}).run_dir, "\xc3\xa9");
}

TEST(Config, FilesThatCannotBeRead) {
  for (const std::string& path :
       {std::string("missing.toml"), std::string("/"), testing::TempDir() + "none/x.toml"})
    try {
      load_config(path, {});
      ADD_FAILURE() << path;
    } catch (const IoError& error) {
      EXPECT_NE(std::string(error.what()).find(path), std::string::npos) << error.what();
    }
  EXPECT_NE(config_error([] { load_config("/dev/zero", {}); }).find("/dev/zero is larger"),
            std::string::npos);
}

TEST(Config, EmptyFileLacksTheData) {
  EXPECT_EQ(config_error([] { from_text(""); }),
            "data.path is empty: set it in the file or with --set data.path=...");
}

TEST(Config, UnknownPresetsNameTheNearestAndListAll) {
  const std::string message = config_error([] { load_config("fashion_mnist_cn", {}); });
  EXPECT_TRUE(message.starts_with("unknown preset fashion_mnist_cn; did you mean fashion_mnist_cnn?"))
      << message;
  for (const std::string& name : preset_names()) EXPECT_NE(message.find(name), std::string::npos) << name;
  EXPECT_EQ(config_error([] { load_config("x", {}); }).find("did you mean"), std::string::npos);
}

TEST(Config, FirstDifferenceNamesKeyAndValues) {
  const std::string base = to_toml(with({"train.batch=32"}));
  EXPECT_EQ(first_difference(base, base), "");
  EXPECT_EQ(first_difference(base, to_toml(with({"train.batch=64"}))), "train.batch: 32 against 64");
  EXPECT_EQ(
      first_difference(base, to_toml(with({"train.batch=32", "run.dir=a = b", "model.batch_norm=false"}))),
      "model.batch_norm: true against false");
  EXPECT_EQ(first_difference("[a]\nx = 1\n", "[a]\nx = 1\ny = 2\n"), "a.y: nothing against 2");
  EXPECT_EQ(first_difference("[a]\nx = 1\ny = 2\n", "[a]\nx = 1\n"), "a.y: 2 against nothing");
  EXPECT_EQ(first_difference("[a]\nx = 1\n", "[b]\nx = 1\n"), "a.x: 1 against nothing");
}

TEST(Config, EveryKeyIsDescribedAndPrinted) {
  const std::string described = describe_keys(), printed = to_toml(Config());
  EXPECT_NE(described.find("  train.batch = 32\n      samples per rank and micro-batch; auto: "),
            std::string::npos)
      << described;
  EXPECT_NE(described.find("(constant, step, cosine)"), std::string::npos);
  std::istringstream lines(printed);
  std::string section;
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with('[')) section = line.substr(1, line.size() - 2);
    if (const std::size_t equals = line.find(" = "); equals != std::string::npos) {
      EXPECT_NE(described.find("  " + section + '.' + line.substr(0, equals) + " = "), std::string::npos)
          << line;
    }
  }
}

TEST(Config, TextKeepsSecretsToItself) {
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
        std::pair{"run.dir=here", "run.dir=here"}})
    EXPECT_EQ(detail::without_secrets(word), shown);
}
}  // namespace
}  // namespace lockstep
