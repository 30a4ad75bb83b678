// SPDX-License-Identifier: Apache-2.0
//
// Messages about a wrong configuration: all errors at once, with their places and suggestions.
#include <algorithm>
#include <filesystem>
#include <limits>
#include <regex>

#include <gtest/gtest.h>

#include "core/error.h"
#include "launch/program/config/config.h"
#include "launch/program/config/config_keys.h"
#include "launch/program/config/suggestions.h"
#include "tests/message_of.h"
#include "tests/temporary_folder.h"

namespace lockstep {
namespace {

// A temporary folder that is the working folder while the object lives.
class WorkingFolder {
 public:
  WorkingFolder() : before_(std::filesystem::current_path()) {
    std::filesystem::current_path(folder_.path());
  }
  ~WorkingFolder() { std::filesystem::current_path(before_); }
  WorkingFolder(const WorkingFolder&) = delete;
  WorkingFolder& operator=(const WorkingFolder&) = delete;

  void write(const std::string& name, const std::string& text) const {
    folder_.write(name, Bytes(text.begin(), text.end()));
  }

 private:
  TemporaryFolder folder_;
  std::filesystem::path before_;
};

std::string error_of(const std::string& config, const std::vector<std::string>& overrides = {}) {
  return message_of<ConfigError>([&] { load_config(config, overrides); });
}

// Expects one line for each list of parts. Each line contains the parts of its list.
void expect_error_lines(const std::string& message, const std::vector<std::vector<std::string>>& parts) {
  const std::vector<std::string> lines = lines_of(message);
  ASSERT_EQ(lines.size(), parts.size()) << message;
  for (std::size_t i = 0; i < lines.size(); ++i) expect_parts(lines[i], parts[i]);
}

TEST(ConfigErrors, AllAreReportedAtOnceWithFileAndLine) {
  const WorkingFolder folder;
  folder.write("own.toml",
               "[optimizer]\nname = \"adam\"\nlr = 0.1\n[train]\nbatch = \"many\"\nepochs = 0\n"
               "[elsewhere]\nx = 1\n");
  const std::string error = error_of("own.toml", {"train.stepz=3", "comm.overlap=7"});
  expect_error_lines(error,
                     {{"8 errors"},
                      {"own.toml:2:", "optimizer.name = \"adam\"", "sgd", "lars", did_you_mean("adamw")},
                      {"own.toml:3:", "optimizer.lr", did_you_mean("optimizer.learning_rate")},
                      {"own.toml:5:", "train.batch = \"many\"", "1048576", "\"auto\""},
                      {"own.toml:6:", "train.epochs = 0", "1000000"},
                      {"own.toml:7:", "[elsewhere]"},
                      {"train.stepz", did_you_mean("train.steps")},
                      {"comm.overlap = 7", "true", "false"},
                      {"data.path", "--set data.path="}});
  EXPECT_LT(error.rfind("own.toml"), error.find("train.stepz")) << "a --set has no line: " << error;
}

TEST(ConfigErrors, ASingleErrorIsOneLineWithFileAndLine) {
  const WorkingFolder folder;
  folder.write("own.toml", "[data]\npath = \"x\"\nmean = [0.5]\n\ndeviation = [1, 1]\n");
  const std::string counts = error_of("own.toml");
  expect_error_lines(counts, {{"own.toml:3:"}});
  expect_in_order(counts, {"data.mean", " 1 ", "data.deviation", " 2 "});
  const auto refusal = [](const std::string& setting) {
    const std::string error = error_of("own.toml", {"data.mean=[]", setting});
    EXPECT_EQ(error.find("own.toml"), std::string::npos) << "a --set has no line: " << error;
    return error;
  };
  // More than the member, a 32-bit integer, can hold.
  expect_error_lines(refusal("data.loader_threads=4294967297"),
                     {{"data.loader_threads = 4294967297", " 64"}});
  expect_error_lines(refusal("comm.codec_limit=int9"),
                     {{"comm.codec_limit = \"int9\"", "none, fp16, bf16, int8, powersgd, sign, topk",
                       did_you_mean("int8")}});
  expect_error_lines(refusal("train.batch=0"), {{"train.batch = 0", "1048576", "\"auto\""}});
}

std::string error_of_text(const std::string& text, const std::vector<std::string>& overrides = {}) {
  const WorkingFolder folder;
  folder.write("own.toml", text);
  return error_of("own.toml", overrides);
}

TEST(ConfigErrors, FileOfASweepHasNoOtherError) {
  const std::string sweep = "[sweep]\nconfig = \"base.toml\"\n";
  for (const std::string& text : {sweep, sweep + "[keys]\ntrain.batch = [32, 64]\n",
                                  sweep + "[keys]\n\"train.batch\" = = [32]\nseed 3\n"})
    expect_error_lines(error_of_text(text), {{"own.toml:1:", "[sweep]", "lockstep sweep"}});
}

// The parser words a syntax error; lockstep adds its place and the other errors.
TEST(ConfigErrors, SyntaxErrorHidesNoOtherError) {
  expect_error_lines(
      error_of_text("[optimizer]\nname = \"adam\"\nlr = 0.1\n[train]\nbatch = = 3\nepochs = 0\nseed 3\n",
                    {"comm.overlap=7"}),
      {{"6 errors"},
       {"own.toml:2:", "optimizer.name = \"adam\"", "sgd", "lars", did_you_mean("adamw")},
       {"own.toml:3:", "optimizer.lr", did_you_mean("optimizer.learning_rate")},
       {"own.toml:5:9:"},
       {"own.toml:6:", "train.epochs = 0", "1000000"},
       {"own.toml:7:6:"},
       {"comm.overlap = 7", "true", "false"}});
}

// The keys of a section with an unreadable name belong to no other section.
TEST(ConfigErrors, KeysOfABrokenSectionAreNotChecked) {
  expect_error_lines(error_of_text("[data]\npath = 1\n[optimizer\nname = \"adam\"\n[train]\nbatch = 0\n"),
                     {{"3 errors"},
                      {"own.toml:2:", "data.path = 1", "string"},
                      {"own.toml:3:11:"},
                      {"own.toml:6:", "train.batch = 0", "1048576", "\"auto\""}});
}

// Keys that were not read cause no errors: neither that they are missing nor that they conflict.
TEST(ConfigErrors, SyntaxErrorCausesNoFalseErrors) {
  expect_error_lines(error_of_text("[data]\npath = \"x\n[optimizer]\nnesterov = true\nmomentum = 0.9.\n"),
                     {{"2 errors"}, {"own.toml:2:10:"}, {"own.toml:5:"}});
}

// An unterminated list swallows the following lines, so no other error can be reported.
TEST(ConfigErrors, ErrorWithoutAClearLineIsReportedAlone) {
  for (const char* text :
       {"[data]\nmean = [0.5\ndeviation = [1]\n[train]\nbatch = 0\n",
        "train:\n  batch: 0\n  epochs: 0\n  seed: 1\ndata:\n  path: x\n  mean: 1\n  tail: 1\n"
        "run:\n  dir: x\n  a: 1\n  b: 1\n",
        "[data]\npath = \"\"\"\n[train]\nbatch = 0\n\"\"\"\n"}) {
    const std::string error = error_of_text(text);
    EXPECT_EQ(lines_of(error).size(), 1u) << error;
    EXPECT_TRUE(error.starts_with("own.toml:")) << error;
  }
}

// Columns are counted in characters from 1, as in an editor, although strings are replaced before parsing.
TEST(ConfigErrors, ColumnsMatchTheFile) {
  const auto place = [](const std::string& text) {
    const std::string error = error_of_text(text);
    return error.substr(0, error.find(": "));
  };
  EXPECT_EQ(place("[run]\ndir = \"a\" x\n"), "own.toml:2:11");
  EXPECT_EQ(place("[run]\ndir = \"\xc3\xa9\" x\n"), "own.toml:2:11");
  EXPECT_EQ(place("[run]\ndir = \"\xc3\xa9\" \xc3\xa9\n"), "own.toml:2:11");
  EXPECT_EQ(place("[run]\r\ndir = \"a\" x\r\n"), "own.toml:2:11");
  EXPECT_EQ(place("[run]\ndir = \"\"\"a\"\"\"\n"), "own.toml:2:7");
}

TEST(ConfigErrors, MissingFileIsNamed) {
  const WorkingFolder folder;
  const auto error = [](const std::string& path) {
    return message_of<IoError>([&] { load_config(path, {}); });
  };
  const std::string unlike_presets = error("nosuch.toml"), like_preset = error("fashion_mnist_cnn.toml");
  expect_parts(unlike_presets, {"nosuch.toml", "No such file or directory"});
  for (const std::string& preset : preset_names())
    EXPECT_EQ(unlike_presets.find(preset), std::string::npos) << unlike_presets;
  expect_parts(like_preset, {"fashion_mnist_cnn.toml", "No such file or directory"});
  EXPECT_TRUE(std::regex_search(like_preset, std::regex("fashion_mnist_cnn(?!\\.toml)"))) << like_preset;
  expect_parts(error("./"), {"./", "Is a directory"});
}

TEST(ConfigErrors, UnknownPresetSuggestsTheFileAndListsThePresets) {
  const WorkingFolder folder;
  folder.write("own.toml", "");
  folder.write("bare", "");
  expect_parts(error_of("own"), {"own.toml", "fashion_mnist_cnn"});
  expect_parts(error_of("bare"), {"./bare", "fashion_mnist_cnn"});
}

// Products of these values are computed in 64 bits, and some values in fp32.
TEST(ConfigErrors, ValuesThatWouldOverflowAreRefused) {
  for (const char* setting :
       {"train.loss_scale=1e300", "train.loss_scale=1e-300", "train.batch=9223372036854775807",
        "train.batch=1048577", "train.accumulation=4611686018427387904", "train.epochs=9223372036854775807",
        "train.steps=9223372036854775807", "train.threads=9223372036854775807",
        "train.loss_scale_interval=4294967296", "data.crop_padding=9223372036854775807",
        "schedule.warmup_epochs=1e300", "schedule.milestones=[1, 1e300]", "comm.bucket_mib=[1, 1e300, 1]",
        "optimizer.learning_rate=1e300", "optimizer.weight_decay=1e300", "optimizer.trust_coefficient=1e300",
        "optimizer.epsilon=1e300", "data.mean=[1e300]", "data.deviation=[1e-300]"}) {
    const std::string key = std::string(setting).substr(0, std::string(setting).find('='));
    const std::string message = error_of("fashion_mnist_cnn", {setting});
    EXPECT_TRUE(message.starts_with(key + " = ")) << setting << ": " << message;
    const auto found = std::ranges::find(detail::keys(), key, &detail::Key::name);
    ASSERT_NE(found, detail::keys().end()) << key;
    expect_parts(message, {detail::allowed(*found)});
  }
}

TEST(ConfigErrors, LargestValuesHaveProductsThatFit) {
  const auto most = [](const char* name) {
    for (const detail::Key& key : detail::keys())
      if (key.name == name) return key.range.most;
    return std::numeric_limits<double>::infinity();
  };
  constexpr double kMostRanks = 1 << 20, kMostImages = 1e12, kInt64 = 9.2e18;
  EXPECT_LT(most("train.batch") * most("train.accumulation") * kMostRanks, kInt64);
  EXPECT_LT(most("train.epochs") * kMostImages, kInt64);
  EXPECT_LT(most("schedule.warmup_epochs") * kMostImages, kInt64);
  EXPECT_LT(most("comm.bucket_mib") * (1 << 20), kInt64);
  EXPECT_LE(most("train.loss_scale"), 3e38) << "it is a float";
}

TEST(Suggestions, TranslateKeysOfOtherPrograms) {
  const std::pair<const char*, const char*> cases[] = {{"lr", "optimizer.learning_rate"},
                                                       {"optimizer.lr", "optimizer.learning_rate"},
                                                       {"train.lr", "optimizer.learning_rate"},
                                                       {"batch_size", "train.batch"},
                                                       {"train.num_workers", "data.loader_threads"},
                                                       {"optimizer.epochs", "train.epochs"},
                                                       {"train.max_grad_norm", "optimizer.clip_norm"},
                                                       {"early_stopping_patience", "run.stop_after_epochs"},
                                                       {"optimizer.momentun", "optimizer.momentum"},
                                                       {"zzzzzzzzzzzz", ""}};
  for (const auto& [given, meant] : cases) EXPECT_EQ(suggested_key(given), meant) << given;
}

TEST(Suggestions, TranslateValuesOfOtherPrograms) {
  const std::vector<std::string> devices = {"auto", "cpu", "cuda"}, optimizers = {"sgd", "adamw", "lars"};
  EXPECT_EQ(suggested_word("gpu", devices), "cuda");
  EXPECT_EQ(suggested_word("cpu0", devices), "cpu");
  EXPECT_EQ(suggested_word("adam", optimizers), "adamw");
  EXPECT_EQ(suggested_word("gpu", optimizers), "") << "only one of the words is suggested";
}

// Suggested keys and values must exist.
TEST(Suggestions, EveryWordSuggestedForAKeyIsAllowed) {
  for (const char* other :
       {"lr",         "wd",         "eps",       "optim",     "scheduler",     "warmup",    "bs",
        "batch_size", "grad_accum", "dtype",     "amp",       "workers",       "std",       "arch",
        "output_dir", "dataset",    "max_steps", "clip_grad", "max_grad_norm", "model_ema", "patience",
        "min_delta",  "save_best",  "eval_every"}) {
    const std::string key = known_key(other);
    EXPECT_EQ(std::ranges::count(detail::keys(), key, &detail::Key::name), 1) << other << " -> " << key;
  }
}

TEST(Suggestions, FindTheNearestSpelling) {
  const std::vector<std::string> words = {"batch", "epochs", "steps"};
  EXPECT_EQ(nearest("bacth", words), "batch");
  EXPECT_EQ(nearest("step", words), "steps");
  EXPECT_EQ(nearest("epochs", words), "epochs");
  EXPECT_EQ(nearest("xyz", words), "");
  EXPECT_EQ(nearest("", words), "");
  EXPECT_EQ(nearest("batch", {}), "");
}

// A configuration may come from another person, and so may a run's folder and a preset.
TEST(ConfigErrors, FileCannotSetAnEventCommand) {
  const WorkingFolder folder;
  folder.write("own.toml", "[data]\npath = \"x\"\n[run]\nevent_command = \"touch here\"\n");
  expect_error_lines(error_of("own.toml"),
                     {{"own.toml:4:", "--set run.event_command=", "LOCKSTEP_EVENT_COMMAND"}});
  for (const char* harmless : {"none", "redacted"}) {
    folder.write("own.toml", fmt::format("[data]\npath = \"x\"\n[run]\nevent_command = \"{}\"\n", harmless));
    EXPECT_FALSE(load_config("own.toml", {}).busy.runs_command()) << harmless;
  }
  EXPECT_EQ(load_config("own.toml", std::vector<std::string>{"run.event_command=mail me"}).busy.command,
            "mail me");
}

TEST(ConfigErrors, MessagesHideSecrets) {
  const WorkingFolder folder;
  folder.write("own.toml", "[data]\npath = \"x\"\n[run]\nevent_command = [\"curl\", \"token\"]\n");
  for (const std::string& error :
       {error_of("own.toml"), error_of("fashion_mnist_cnn", {"run.event_command=\"curl token"}),
        error_of("fashion_mnist_cnn", {"run.event_command curl token"})}) {
    expect_parts(error, {"run.event_command"});
    EXPECT_EQ(error.find("token"), std::string::npos) << error;
  }
}

// Copied from the command in run.json, it would silently run nothing.
TEST(ConfigErrors, OverrideCannotSetTheWordForASecret) {
  for (const char* value : {"redacted", "\"redacted\""}) {
    const std::vector<std::string> overrides = {fmt::format("run.event_command={}", value)};
    expect_parts(message_of<ConfigError>([&] { config_of(overrides); }), {"run.event_command", "redacted"});
  }
}

}  // namespace
}  // namespace lockstep
