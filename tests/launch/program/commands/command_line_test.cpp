// SPDX-License-Identifier: Apache-2.0
#include "launch/program/commands/command_line.h"

#include <algorithm>
#include <span>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "core/error.h"
#include "core/files/file_text.h"
#include "launch/program/commands/commands.h"
#include "launch/program/version.h"
#include "tests/matches_in.h"
#include "tests/message_of.h"
#include "tests/source_folder.h"

namespace lockstep {
namespace {

Command parse(std::vector<const char*> words) {
  words.insert(words.begin(), "lockstep");
  return parse_command_line(static_cast<int>(words.size()), words.data());
}

std::string usage_error(const std::vector<const char*>& words) {
  return message_of<UsageError>([&] { parse(words); });
}

TEST(CommandLine, SetTakesOneValueBeforeAndAfterThePreset) {
  for (const std::vector<const char*>& words :
       {std::vector<const char*>{"train", "--set", "a=1", "PRESET", "--print-config", "--set", "b=2"},
        {"train", "PRESET", "--print-config", "--set", "a=1", "--set", "b=2"},
        {"train", "--set=a=1", "--set", "b=2", "--print-config", "PRESET"}}) {
    const Command command = parse(words);
    EXPECT_EQ(command.name, "train");
    EXPECT_EQ(command.config, "PRESET");
    EXPECT_EQ(command.overrides, (std::vector<std::string>{"a=1", "b=2"}));
    EXPECT_TRUE(command.print_config);
  }
  EXPECT_EQ(parse({"train", "--set", "data.mean=[1, 2]", "x"}).overrides,
            std::vector<std::string>{"data.mean=[1, 2]"});
  expect_parts(usage_error({"train", "x", "--set", "a=1", "b=2"}), {"--set b=2"});
}

TEST(CommandLine, EveryFlagSetsItsOption) {
  const Command train = parse(
      {"train", "x", "--init", "i", "--export", "e", "--digest", "d", "--trace", "t", "--device", "cuda"});
  EXPECT_EQ(train.init, "i");
  EXPECT_EQ(train.export_, "e");
  EXPECT_EQ(train.digest, "d");
  EXPECT_EQ(train.trace, "t");
  EXPECT_EQ(train.overrides, std::vector<std::string>{"world.device=cuda"});
  const Command profile = parse({"profile", "x", "--steps", "3", "--rows", "4", "--trace", "t"});
  EXPECT_EQ(profile.name, "profile");
  EXPECT_EQ(profile.steps, 3);
  EXPECT_EQ(profile.rows, 4);
  EXPECT_EQ(profile.trace, "t");
  const Command init = parse({"init", "flowers", "--output", "o.toml"});
  EXPECT_EQ(init.name, "init");
  EXPECT_EQ(init.folder, "flowers");
  EXPECT_EQ(init.output, "o.toml");
}

TEST(CommandLine, EveryCommandThatLogsTakesALevel) {
  for (const std::vector<const char*>& words : {std::vector<const char*>{"train", "x"},
                                                {"plan", "x"},
                                                {"profile", "x"},
                                                {"eval", "x"},
                                                {"pack", "x", "folder"},
                                                {"inspect", "folder"},
                                                {"info"}}) {
    EXPECT_EQ(parse(words).log_level, "info") << words[0];
    std::vector<const char*> quiet = words;
    quiet.insert(quiet.end(), {"--log-level", "warning"});
    EXPECT_EQ(parse(quiet).log_level, "warning") << words[0];
    EXPECT_NE(parse({"help", words[0]}).text.find("--log-level debug|info|warning|error"), std::string::npos);
  }
  EXPECT_NE(usage_error({"train", "x", "--log-level", "loud"}).find("--log-level"), std::string::npos);
  expect_parts(usage_error({"version", "--log-level", "info"}), {"--log-level"});
}

TEST(CommandLine, FlagNamedLikeAKeySuggestsTheKey) {
  expect_parts(usage_error({"train", "x", "--epochs", "3"}), {"--epochs", "--set train.epochs="});
  expect_parts(usage_error({"train", "x", "--batch-size=3"}), {"--batch-size", "--set train.batch=3"});
  EXPECT_NE(usage_error({"plan", "x", "--lr", "0.1"}).find("optimizer.learning_rate"), std::string::npos);
  EXPECT_NE(usage_error({"train", "x", "--optimizer.momentum=0"}).find("--set optimizer.momentum=0"),
            std::string::npos);
}

// A ':' ends the name of a value in the help.
TEST(CommandLine, HelpShowsHowAFaultIsWritten) {
  expect_parts(parse({"help", "train"}).text, {"KIND:rank=R,step=S"});
}

TEST(CommandLine, UnknownFaultsAreRefused) {
  // The list of kinds has the suggestion, too, beside the example "kill:rank=..".
  for (const auto& [fault, pattern] : {std::pair{"kil:rank=1,step=5", R"(kil:rank=1,step=5.*\bkill\b(?!:))"},
                                       {"kill:rank=x", R"(kill:rank=x.*"x")"},
                                       {"kill:ms=5", R"(kill:ms=5.*"ms=5")"}})
    EXPECT_EQ(matches_in(usage_error({"train", "x", "--inject", fault}), pattern), 1) << fault;
}

TEST(CommandLine, NumberOfRanksHasARange) {
  for (const char* wrong : {"0", "-1", "1025", "two"})
    expect_parts(usage_error({"train", "x", "--ranks", wrong}), {"--ranks"});
}

TEST(CommandLine, TuneTakesMinutesOrSteps) {
  EXPECT_NE(usage_error({"tune", "x", "--minutes", "-1"}).find("--minutes"), std::string::npos);
  EXPECT_NE(usage_error({"tune", "x", "--minutes", "1", "--steps", "9"}).find("--steps"), std::string::npos);
}

TEST(CommandLine, RowsOfAProfileHaveARange) {
  EXPECT_EQ(parse({"profile", "x", "--rows", "0"}).rows, 0);
  for (const char* wrong : {"-1", "1000001", "1.5"}) {
    const std::string message = usage_error({"profile", "x", "--rows", wrong});
    expect_parts(message, {"--rows"});
    EXPECT_LT(message.size(), 80u) << message;
  }
}

// Without --resume a new training would begin, and move the checkpoints aside.
TEST(CommandLine, FlagsOfAResumeNeedIt) {
  for (const char* flag : {"--resume-with=train.epochs", "--resume-size=any"}) {
    EXPECT_NE(usage_error({"train", "x", flag}).find("--resume"), std::string::npos) << flag;
    EXPECT_EQ(parse({"train", "x", flag, "--resume", "auto"}).name, "train") << flag;
  }
  expect_parts(usage_error({"eval", "x", "--init", "f", "--resume-with=train.epochs"}),
               {"requires --resume"});
}

TEST(CommandLine, RangesOfNumbersRefuseNan) {
  for (const std::vector<const char*>& words : {std::vector<const char*>{"tune", "x", "--minutes", "nan"},
                                                {"find-batch", "x", "--seconds", "nan"},
                                                {"plan", "x", "--stretch", "nan"},
                                                {"monitor", "--every", "nan"},
                                                {"monitor", "--idle", "nan"}})
    expect_parts(usage_error(words), {words[words.size() - 2]});
}

TEST(CommandLine, MessagesHideSecrets) {
  for (const std::vector<const char*>& words : {std::vector<const char*>{"run.event_command=curl token"},
                                                {"train", "x", "run.event_command=curl token"},
                                                {"train", "x", "event_command=curl token"},
                                                {"train", "x", "--event-command=curl token"},
                                                {"train", "x", "--run.event_command=curl token"}})
    EXPECT_EQ(usage_error(words).find("token"), std::string::npos) << usage_error(words);
}

TEST(CommandLine, WrongWordsSuggestTheNearest) {
  expect_parts(usage_error({"train", "x", "--exprot", "y"}), {"--exprot", "--export"});
  expect_parts(usage_error({"trian", "x"}), {"trian", "train"});
  expect_parts(usage_error({"help", "trian"}), {"trian", "train"});
  expect_parts(usage_error({"completion", "zsh"}), {"zsh", "bash"});
  expect_parts(usage_error({"train"}), {"CONFIG", "lockstep help"});
  expect_parts(usage_error({"--wrong"}), {"--wrong"});
  const std::string init = usage_error({"init", "x", "--epochs"});
  expect_parts(init, {"--epochs", "--output"});
  EXPECT_EQ(init.find("train.epochs"), std::string::npos) << "init takes no configuration: " << init;
  const std::string info = usage_error({"info", "train.epochs=3"});
  expect_parts(info, {"train.epochs=3"});
  EXPECT_EQ(info.find("--set"), std::string::npos) << "info takes no configuration: " << info;
}

// A script's variable that is not set.
TEST(CommandLine, EmptyArgumentsAreRefused) {
  expect_parts(usage_error({"monitor", ""}), {"RUN"});
  expect_parts(usage_error({"init", ""}), {"FOLDER"});
  expect_parts(usage_error({"pack", "x", ""}), {"FOLDER"});
  expect_parts(usage_error({"report", "x", ""}), {"RUN"});
}

// "train --init": a line for each flag that takes a value, of each command.
std::string value_flags(const Command&, std::span<const CommandHelp> commands) {
  std::string lines;
  for (const CommandHelp& command : commands)
    for (const FlagHelp& flag : command.flags)
      if (!flag.value.empty()) lines += fmt::format("{} {}\n", command.name, flag.names.back());
  return lines;
}
constexpr CommandEntry kValueFlags = {.name = "value-flags",
                                      .description = "Print the flags that take a value",
                                      .example = "lockstep value-flags",
                                      .text = value_flags};

TEST(CommandLine, EmptyValueOfAFlagIsRefused) {
  Registry registry;
  registry.commands.push_back(&kValueFlags);
  const char* const words[] = {"lockstep", "value-flags"};
  const std::vector<std::string> flags = lines_of(parse_command_line(2, words, registry).text);
  EXPECT_EQ(std::ranges::count(flags, std::string("train --init")), 1);
  EXPECT_EQ(std::ranges::count(flags, std::string("predict --log-level")), 1);
  for (const std::string& each : flags) {
    const std::size_t blank = each.find(' ');
    const std::string command = each.substr(0, blank), flag = each.substr(blank + 1), joined = flag + "=";
    expect_parts(usage_error({command.c_str(), flag.c_str(), ""}), {flag});
    expect_parts(usage_error({command.c_str(), joined.c_str(), "--help"}), {flag});
  }
}

// CLI11 would read "[a,b]" as a list. The message of the missing run shows the path.
TEST(CommandLine, PathsInBracketsStayWhole) {
  for (const char* path : {"[a,b]", "[2019]"}) {
    const Command report = parse({"report", path, "c"});
    expect_parts(message_of([&] { report.entry->alone(report); }), {fmt::format("./{} ", path)});
  }
}

TEST(CommandLine, VersionIsPrinted) {
  for (const char* word : {"version", "--version", "-V"})
    EXPECT_EQ(parse({word}).text, fmt::format("lockstep {}\n", kVersion)) << word;
}

TEST(CommandLine, BareCallsGetHelpAndFail) {
  const Command bare = parse({});
  EXPECT_EQ(bare.exit_code, exit_code::usage);
  EXPECT_EQ(bare.text, parse({"help"}).text);
  EXPECT_EQ(bare.text, parse({"--help"}).text);
  EXPECT_EQ(parse({"help"}).exit_code, exit_code::done);
}

TEST(CommandLine, HelpOfEachCommandHasAnExampleAndFitsATerminal) {
  const std::string overview = parse({"help"}).text;
  EXPECT_LE(longest_line(overview), 80u) << overview;
  EXPECT_LT(std::ranges::count(overview, '\n'), 24) << "with the prompt it must fit a screen\n" << overview;
  for (const CommandEntry* entry : shipped_commands()) {
    const std::string name(entry->name);
    EXPECT_NE(overview.find(fmt::format("\n  {} ", name)), std::string::npos) << name;
    const std::string text = parse({"help", name.c_str()}).text;
    EXPECT_EQ(text, parse({name.c_str(), "--help"}).text);
    EXPECT_EQ(text, parse({name.c_str(), "-h"}).text);
    EXPECT_NE(entry->example.find("lockstep "), std::string_view::npos) << name;
    const std::size_t example = text.find("\n  " + std::string(entry->example.substr(0, 12)));
    ASSERT_NE(example, std::string::npos) << text;
    EXPECT_LT(text.find(fmt::format("lockstep {}", name)), example) << "usage before the example:\n" << text;
    EXPECT_LE(longest_line(text), 80u) << text;
  }
  EXPECT_NE(parse({"help", "train"}).text.find("comm.bucket_mib"), std::string::npos);
  EXPECT_LE(longest_line(parse({"keys"}).text), 80u);
}

// launch/configuration.md equals the program's output.
TEST(CommandLine, ConfigurationPageMatchesTheProgram) {
  EXPECT_EQ(file_text(source_folder() + "/launch/configuration.md"), parse({"keys", "--markdown"}).text)
      << "regenerate it: build/cpu/bin/lockstep keys --markdown > launch/configuration.md";
}

}  // namespace
}  // namespace lockstep
