// SPDX-License-Identifier: Apache-2.0
//
// Networks, datasets and other parts that a user's program registers work like the shipped ones.
#include "launch/program/registry.h"

#include <cmath>
#include <fstream>
#include <regex>

#include <CLI/CLI.hpp>
#include <gtest/gtest.h>

#include "launch/program/commands/command_line.h"
#include "launch/program/commands/commands.h"
#include "launch/program/config/config.h"
#include "tests/message_of.h"
#include "tests/temporary_folder.h"

namespace lockstep {
namespace {

constexpr NumberOption kPower[] = {
    {.name = "power", .initial = 2, .least = 1, .most = 8, .meaning = "how fast it falls"}};
constexpr NumberOption kDensity[] = {
    {.name = "density", .initial = 0.01, .least = 0, .most = 1, .meaning = "share that is sent"}};
constexpr NumberOption kSpeed[] = {
    {.name = "speed", .initial = 1, .least = 0, .most = 9, .meaning = "of the shortcut"}};
constexpr NumberOption kWidth[] = {
    {.name = "width", .initial = 4, .least = 1, .most = 64, .meaning = "features"}};

constexpr ExchangeKind kSparse = {
    .name = "sparse", .meaning = "the largest", .options = kDensity, .make = nullptr};

struct GreetFlags {
  std::string whom;
};

void greet_flags(CLI::App& app, Command& command) {
  app.add_option("--whom", command.own<GreetFlags>().whom, "Whom to greet")->type_name("NAME");
}

constexpr CommandEntry kGreet = {.name = "greet",
                                 .description = "Say hello",
                                 .example = "lockstep greet --whom you",
                                 .flags = greet_flags,
                                 .text = [](const Command& command, std::span<const CommandHelp>) {
                                   return "hello " + command.own<GreetFlags>().whom + "\n";
                                 }};

double polynomial(const Schedule& schedule, std::int64_t step) {
  return std::pow(1 - schedule.progress(step), schedule.own.of("polynomial", kPower[0]));
}

Registry registry() {
  Registry registry;
  registry.networks.push_back(
      {.name = "tiny", .build = [](Graph&, const NetworkChoice&) {}, .options = kWidth});
  registry.optimizers.push_back({.name = "jump", .state_names = {}, .make = nullptr, .options = kSpeed});
  registry.schedules.push_back({.name = "polynomial", .factor = polynomial, .options = kPower});
  registry.exchanges.push_back(&kSparse);
  registry.commands.push_back(&kGreet);
  return registry;
}

Config loaded(const std::vector<std::string>& settings) {
  return load_config("fashion_mnist_mlp", settings, registry());
}

std::string text_of(std::vector<const char*> words) {
  words.insert(words.begin(), "lockstep");
  return parse_command_line(static_cast<int>(words.size()), words.data(), registry()).text;
}

TEST(Registry, KeysSelectEntriesAndSetTheirOptions) {
  const std::vector<std::string> settings = {"model.name=tiny",
                                             "model.tiny.width=8",
                                             "optimizer.name=jump",
                                             "optimizer.jump.speed=3",
                                             "schedule.name=polynomial",
                                             "schedule.polynomial.power=3",
                                             "comm.codec=sparse",
                                             "comm.sparse.density=0.5",
                                             "optimizer.learning_rate=1",
                                             "schedule.warmup_epochs=0",
                                             "train.epochs=2"};
  const Config config = loaded(settings);
  EXPECT_EQ(config.model.own.of("tiny", kWidth[0]), 8);
  EXPECT_EQ(config.optimizer.own.of("jump", kSpeed[0]), 3);
  const BucketOptions buckets = bucket_options(config.gradients, registry().exchanges);
  EXPECT_EQ(buckets.exchange.describe(), "sparse density=0.5");
  EXPECT_EQ(bucket_options(loaded({"comm.codec=sparse"}).gradients, registry().exchanges).exchange.describe(),
            "sparse density=0.01");
  const auto steps_before = [](std::int64_t epoch) { return 5 * epoch; };
  const Schedule schedule = make_schedule(config.schedule, 2, steps_before, registry().schedules);
  EXPECT_DOUBLE_EQ(schedule.at(5), 0.125);

  const std::string text = to_toml(config, registry());
  EXPECT_NE(text.find("\nsparse.density = 0.5\n"), std::string::npos) << text;
  const TemporaryFolder folder("registry");
  const std::string path = folder.path() / "registry.toml";
  std::ofstream(path) << text;
  EXPECT_EQ(to_toml(load_config(path, {}, registry()), registry()), text);
  std::ofstream(path) << "[data]\npath = \"x\"\n[comm.sparse]\ndensity = 0.25\n[comm.dens]\nx = 1\n";
  expect_parts(message_of([&] { load_config(path, {}, registry()); }), {path + ":5", "comm.dens"});
}

TEST(Registry, OptionsAreCheckedAndSuggested) {
  expect_parts(message_of([] { loaded({"comm.sparse.density=2"}); }), {"comm.sparse.density = 2", "0 to 1"});
  expect_parts(message_of([] { loaded({"comm.sparse.densty=1"}); }),
               {"comm.sparse.densty", "comm.sparse.density"});
  const std::string error = message_of([] { loaded({"comm.codec=spars"}); });
  const std::string codecs = "none, fp16, bf16, int8, sign, powersgd, topk, dgc, auto, sparse";
  expect_parts(error, {"comm.codec = \"spars\"", codecs});
  const std::string rest = std::regex_replace(error, std::regex(codecs), "");
  EXPECT_NE(rest.find("sparse"), std::string::npos) << "no suggestion: " << error;
}

TEST(Registry, EntriesAreInHelpKeysAndCompletion) {
  EXPECT_NE(text_of({"help"}).find("greet"), std::string::npos);
  EXPECT_NE(text_of({"help", "greet"}).find("--whom NAME"), std::string::npos);
  // The text wraps its lines.
  const std::string keys = std::regex_replace(text_of({"keys"}), std::regex(R"(\s+)"), " ");
  expect_parts(
      keys,
      {"sparse: the largest", "none, fp16, bf16, int8, sign, powersgd, topk, dgc, auto, sparse",
       "constant, step, cosine, polynomial", "sgd, adamw, lars, jump", "schedule.polynomial.power = 2"});
  EXPECT_TRUE(std::regex_search(
      keys, std::regex(R"(comm\.sparse\.density = 0\.01 sparse: share that is sent[^=]*\b0 to 1\b)")))
      << keys;
  expect_parts(
      text_of({"completion", "bash"}),
      {" greet", "comm.sparse.density=",
       "comm.codec) COMPREPLY=($(compgen -W \"none fp16 bf16 int8 sign powersgd topk dgc auto sparse\""});
}

TEST(Registry, CommandHasItsOwnFlags) {
  EXPECT_EQ(text_of({"greet", "--whom", "you"}), "hello you\n");
  expect_parts(message_of([] { text_of({"gret"}); }), {"gret", "greet"});
}

}  // namespace
}  // namespace lockstep
