// SPDX-License-Identifier: Apache-2.0
//
// Messages about a wrong configuration: all errors at once, with their places and suggestions.
#include <algorithm>
#include <filesystem>
#include <limits>
#include <sstream>

#include <gtest/gtest.h>

#include "core/error.h"
#include "launch/config/config.h"
#include "launch/config/config_keys.h"
#include "launch/config/suggestions.h"
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

TEST(ConfigErrors, AllAreToldAtOnceWithFileAndLine) {
  const WorkingFolder folder;
  folder.write("own.toml",
               "[optimizer]\nname = \"adam\"\nlr = 0.1\n[train]\nbatch = \"many\"\nepochs = 0\n"
               "[elsewhere]\nx = 1\n");
  EXPECT_EQ(error_of("own.toml", {"train.stepz=3", "comm.overlap=7"}),
            "8 errors in the configuration:\n"
            "  own.toml:2: optimizer.name = \"adam\": allowed are sgd, adamw, lars; did you mean adamw?\n"
            "  own.toml:3: unknown key optimizer.lr; did you mean optimizer.learning_rate?\n"
            "  own.toml:5: train.batch = \"many\": an integer from 1 to 1048576, or \"auto\" is expected\n"
            "  own.toml:6: train.epochs = 0: allowed are integers from 1 to 1000000\n"
            "  own.toml:7: unknown section [elsewhere]\n"
            "  unknown key train.stepz; did you mean train.steps?\n"
            "  comm.overlap = 7: true or false is expected\n"
            "  data.path is empty: set it in the file or with --set data.path=...");
}

TEST(ConfigErrors, ALonelyOneHasFileAndLine) {
  const WorkingFolder folder;
  folder.write("own.toml", "[data]\npath = \"x\"\nmean = [0.5]\n\ndeviation = [1, 1]\n");
  EXPECT_EQ(
      error_of("own.toml"),
      "own.toml:3: data.mean has 1 and data.deviation has 2 values: one for each channel is expected in "
      "both, or [] for none");
  EXPECT_EQ(error_of("own.toml", {"data.mean=[]", "data.loader_threads=4294967297"}),
            "data.loader_threads = 4294967297: allowed are integers from 0 to 64")
      << "more than the member has room for";
  EXPECT_EQ(error_of("own.toml", {"data.mean=[]", "comm.codec_limit=int9"}),
            "comm.codec_limit = \"int9\": allowed are none, fp16, bf16, int8, powersgd, sign, topk; did you "
            "mean int8?");
  EXPECT_EQ(error_of("own.toml", {"data.mean=[]", "train.batch=0"}),
            "train.batch = 0: allowed are integers from 1 to 1048576, or \"auto\"")
      << "what --set gave stands in no line";
}

std::string error_of_text(const std::string& text, const std::vector<std::string>& overrides = {}) {
  const WorkingFolder folder;
  folder.write("own.toml", text);
  return error_of("own.toml", overrides);
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

// The parser words a syntax error; lockstep adds its place and the other errors.
TEST(ConfigErrors, ASyntaxErrorHidesNoOther) {
  const std::vector<std::string> lines = lines_of(
      error_of_text("[optimizer]\nname = \"adam\"\nlr = 0.1\n[train]\nbatch = = 3\nepochs = 0\nseed 3\n",
                    {"comm.overlap=7"}));
  ASSERT_EQ(lines.size(), 7u) << error_of_text("batch = = 3\n");
  EXPECT_EQ(lines[0], "6 errors in the configuration:");
  EXPECT_EQ(lines[1],
            "  own.toml:2: optimizer.name = \"adam\": allowed are sgd, adamw, lars; did you mean adamw?");
  EXPECT_EQ(lines[2], "  own.toml:3: unknown key optimizer.lr; did you mean optimizer.learning_rate?");
  EXPECT_TRUE(lines[3].starts_with("  own.toml:5:9: ")) << lines[3];
  EXPECT_EQ(lines[4], "  own.toml:6: train.epochs = 0: allowed are integers from 1 to 1000000");
  EXPECT_TRUE(lines[5].starts_with("  own.toml:7:6: ")) << lines[5];
  EXPECT_EQ(lines[6], "  comm.overlap = 7: true or false is expected");
}

// The keys of a section with an unreadable name belong to no other section.
TEST(ConfigErrors, ABrokenSectionTakesItsKeysAlong) {
  const std::vector<std::string> lines =
      lines_of(error_of_text("[data]\npath = 1\n[optimizer\nname = \"adam\"\n[train]\nbatch = 0\n"));
  ASSERT_EQ(lines.size(), 4u);
  EXPECT_EQ(lines[0], "3 errors in the configuration:");
  EXPECT_EQ(lines[1], "  own.toml:2: data.path = 1: a string is expected");
  EXPECT_TRUE(lines[2].starts_with("  own.toml:3:11: ")) << lines[2];
  EXPECT_EQ(lines[3], "  own.toml:6: train.batch = 0: allowed are integers from 1 to 1048576, or \"auto\"");
}

// Keys that were not read cause no errors: neither that they are missing nor that they conflict.
TEST(ConfigErrors, ASyntaxErrorBringsNoFalseOnes) {
  const std::string lonely =
      error_of_text("[data]\npath = \"x\n[optimizer]\nnesterov = true\nmomentum = 0.9.\n");
  const std::vector<std::string> lines = lines_of(lonely);
  ASSERT_EQ(lines.size(), 3u) << lonely;
  EXPECT_TRUE(lines[1].starts_with("  own.toml:2:10: ")) << lonely;
  EXPECT_TRUE(lines[2].starts_with("  own.toml:5:")) << lonely;
}

// An unterminated list swallows the following lines, so no other error can be reported.
TEST(ConfigErrors, WhatNoLineIsToBlameForIsToldAlone) {
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
TEST(ConfigErrors, ColumnsAreThoseOfTheFile) {
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

TEST(ConfigErrors, AFileThatIsNotThereSaysSo) {
  const WorkingFolder folder;
  const auto error = [](const std::string& path) {
    return message_of<IoError>([&] { load_config(path, {}); });
  };
  EXPECT_EQ(error("nosuch.toml"), "cannot read the configuration nosuch.toml: No such file or directory");
  EXPECT_EQ(
      error("fashion_mnist_cnn.toml"),
      "cannot read the configuration fashion_mnist_cnn.toml: No such file or directory; did you mean the "
      "preset fashion_mnist_cnn?");
  EXPECT_EQ(error("./"), "cannot read the configuration ./: Is a directory");
}

TEST(ConfigErrors, AFileMeantInPlaceOfAPresetIsNamed) {
  const WorkingFolder folder;
  folder.write("own.toml", "");
  folder.write("bare", "");
  EXPECT_TRUE(error_of("own").starts_with("unknown preset own; did you mean the file own.toml? Presets: "));
  EXPECT_TRUE(error_of("bare").starts_with("unknown preset bare; did you mean the file ./bare? Presets: "));
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
    EXPECT_NE(message.find("allowed are "), std::string::npos) << message;
  }
}

TEST(ConfigErrors, TheLargestValuesHaveProductsThatFit) {
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

TEST(Suggestions, OtherProgramsNamesOfKeys) {
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

TEST(Suggestions, OtherProgramsNamesOfValues) {
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

TEST(Suggestions, NearestInSpelling) {
  const std::vector<std::string> words = {"batch", "epochs", "steps"};
  EXPECT_EQ(nearest("bacth", words), "batch");
  EXPECT_EQ(nearest("step", words), "steps");
  EXPECT_EQ(nearest("epochs", words), "epochs");
  EXPECT_EQ(nearest("xyz", words), "");
  EXPECT_EQ(nearest("", words), "");
  EXPECT_EQ(nearest("batch", {}), "");
}

// A configuration may come from another person, and so may a run's folder and a preset.
TEST(ConfigErrors, ACommandIsNotTakenFromAFile) {
  const WorkingFolder folder;
  folder.write("own.toml", "[data]\npath = \"x\"\n[run]\nevent_command = \"touch here\"\n");
  EXPECT_EQ(error_of("own.toml"),
            "own.toml:4: run.event_command: what a program runs is not taken from a file, which may be "
            "another's: --set run.event_command=..., or the variable LOCKSTEP_EVENT_COMMAND");
  for (const char* harmless : {"none", "redacted"}) {
    folder.write("own.toml", fmt::format("[data]\npath = \"x\"\n[run]\nevent_command = \"{}\"\n", harmless));
    EXPECT_FALSE(load_config("own.toml", {}).busy.runs_command()) << harmless;
  }
  EXPECT_EQ(load_config("own.toml", std::vector<std::string>{"run.event_command=mail me"}).busy.command,
            "mail me");
}
}  // namespace
}  // namespace lockstep
