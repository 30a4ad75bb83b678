// SPDX-License-Identifier: Apache-2.0
//
// `lockstep predict` uses only an export and agrees with training's evaluation.
#include <cmath>
#include <filesystem>
#include <fstream>
#include <regex>
#include <set>

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/files/safetensors.h"
#include "tests/data/jpeg_files.h"
#include "tests/launch/program/fault_run.h"
#include "tests/launch/program/program.h"
#include "tests/launch/program/run_json.h"
#include "tests/message_of.h"

namespace lockstep {
namespace {

using PredictJson = nlohmann::json;

constexpr ImageShape kPhoto{.height = 32, .width = 32, .channels = 3};

// Noise images in folders, brighter by class, and a network trained on them.
class Predicted : public ::testing::Test {
 protected:
  void SetUp() override {
    constexpr ImageShape kThumbnail{.height = 16, .width = 16, .channels = 3};
    for (int i = 0; i < 90; ++i) {
      std::vector<std::uint8_t> pixels = noise(kThumbnail, static_cast<std::uint32_t>(i));
      for (std::uint8_t& pixel : pixels) pixel = static_cast<std::uint8_t>(pixel / 2 + 60 * (i % 3));
      folder_.write(fmt::format("{}/{}/{}.jpg", i < 60 ? "train" : "test", kClasses[i % 3], i),
                    encode(kThumbnail, pixels));
    }
    const ProgramResult trained = run_shell(train() + " --export " + weights());
    ASSERT_EQ(trained.exit_code, 0) << trained.output;
  }

  // "lockstep NAME CONFIG --set ...", for these images.
  std::string on_images(const std::string& name) const {
    std::string command = program("lockstep") + " " + name + " cifar10_resnet18";
    for (const std::string& setting : std::vector<std::string>{
             "world.device=cpu", "data.path=" + folder_.path().string(), "model.name=cnn",
             "run.dir=" + (folder_.path() / "run").string(), "train.precision=fp32", "train.batch=10",
             "train.threads=1", "train.epochs=2", "kernels.choose=direct", "data.format=image_folder"})
      command += " --set '" + setting + "'";
    return command;
  }
  std::string train() const { return on_images("train"); }
  std::string weights() const { return (folder_.path() / "trained.safetensors").string(); }
  std::string test_images() const { return (folder_.path() / "test").string(); }
  double told_accuracy() const { return last_metrics_of(folder_.path() / "run").at("test_accuracy"); }
  ProgramResult predict(const std::string& arguments) const {
    return run_shell(program("lockstep") + " predict " + arguments + " --set world.device=cpu");
  }
  // The lines for the 30 test images.
  std::string answers_of(const std::string& source) const {
    const ProgramResult result = predict(source + " " + test_images() + " --top 3 --set train.threads=1");
    EXPECT_EQ(result.exit_code, 0) << result.output;
    std::string lines;
    for (const PredictJson& each : json_lines_of(result)) lines += each.dump() + "\n";
    EXPECT_EQ(count(lines, "\n"), 30) << result.output;
    return lines;
  }

  static constexpr const char* kClasses[] = {"ant", "bee, or wasp", "cat"};
  TemporaryFolder folder_;
};

double accuracy_of(const std::vector<PredictJson>& answers) {
  double right = 0;
  for (const PredictJson& answer : answers)
    right += std::filesystem::path(answer["file"].get<std::string>()).parent_path().filename() ==
             answer["class"].get<std::string>();
  return right / static_cast<double>(answers.size());
}

TEST_F(Predicted, MatchesTheAccuracyOfTraining) {
  for (const char* batch : {"7", "64"}) {
    const ProgramResult result = predict(weights() + " " + test_images() + " --top 3 --batch " + batch);
    EXPECT_EQ(result.exit_code, 0) << result.output;
    const std::vector<PredictJson> answers = json_lines_of(result);
    ASSERT_EQ(answers.size(), 30u) << result.output;
    EXPECT_DOUBLE_EQ(accuracy_of(answers), told_accuracy());
    for (const PredictJson& answer : answers) {
      ASSERT_EQ(answer["top"].size(), 3u);
      double sum = 0;
      for (const PredictJson& each : answer["top"]) sum += each["probability"].get<double>();
      EXPECT_NEAR(sum, 1, 1e-5) << "the sum over all three classes";
      EXPECT_EQ(answer["top"][0]["class"], answer["class"]);
      EXPECT_GE(answer["top"][0]["probability"], answer["top"][1]["probability"]);
    }
  }
}

// A batch of the 30 images plans 3.6 MiB, a batch of one 1.2 MiB.
TEST_F(Predicted, BatchHasAtMostTheNumberOfImagesAndKeepsTheMemoryLimit) {
  const std::string limited = " --set train.threads=1 --set world.memory_limit=0.0025";  // 2.6 MiB
  expect_failure(predict(weights() + " " + test_images() + limited), exit_code::io, {"(world.memory_limit)"});
  for (const std::string& fitting : {test_images() + "/ant/60.jpg", test_images() + " --batch 1"}) {
    const ProgramResult result = predict(weights() + " " + fitting + limited);
    EXPECT_EQ(result.exit_code, 0) << result.output;
  }
}

TEST_F(Predicted, IsWrittenAsCsv) {
  const ProgramResult result = predict(weights() + " " + test_images() + "/ant/60.jpg --csv --top 2");
  EXPECT_EQ(result.exit_code, 0) << result.output;
  EXPECT_EQ(result.output.find("file,class,label,probability\n"), 0u) << result.output;
  EXPECT_EQ(count(result.output, "ant/60.jpg,"), 2) << result.output;
  EXPECT_EQ(count(result.output, "\"bee, or wasp\"") + count(result.output, "jpg,ant") +
                count(result.output, "jpg,cat"),
            2)
      << result.output;
}

// The softmax of the logits equals the probabilities.
TEST_F(Predicted, IncludesLogitsIfRequested) {
  const std::string image = test_images() + "/ant/60.jpg";
  const std::vector<PredictJson> answers =
      json_lines_of(predict(weights() + " " + image + " --top 3 --logits"));
  ASSERT_EQ(answers.size(), 1u);
  double sum = 0;
  for (const PredictJson& each : answers[0]["top"]) sum += std::exp(each["logit"].get<double>());
  for (const PredictJson& each : answers[0]["top"])
    EXPECT_NEAR(each["probability"].get<double>(), std::exp(each["logit"].get<double>()) / sum, 1e-6);
  EXPECT_FALSE(json_lines_of(predict(weights() + " " + image)).at(0).contains("logit"));
  const ProgramResult csv = predict(weights() + " " + image + " --csv --logits");
  EXPECT_EQ(csv.output.find("file,class,label,probability,logit\n"), 0u) << csv.output;
}

TEST_F(Predicted, NonFiniteNetworkPredictsNoClass) {
  const std::string poisoned = (folder_.path() / "poisoned.safetensors").string();
  for (const std::string name : {"conv1.weight", "bn2.running_var", "fc2.bias"}) {
    write_poisoned(weights(), poisoned, name, std::nanf(""));
    const ProgramResult result = predict(poisoned + " " + test_images());
    EXPECT_EQ(result.exit_code, exit_code::failed) << result.output;
    expect_parts(result.output, {name, "30 of 30"});
    const std::vector<PredictJson> answers = json_lines_of(result);
    ASSERT_EQ(answers.size(), 30u);
    for (const PredictJson& answer : answers) EXPECT_TRUE(answer.contains("error")) << answer;
    const ProgramResult csv = predict(poisoned + " --csv --logits " + test_images());
    EXPECT_NE(csv.output.find(".jpg,,,,\n"), std::string::npos) << csv.output;
    EXPECT_EQ(csv.output.find("nan"), std::string::npos) << csv.output;
  }
}

TEST_F(Predicted, FileThatIsNoImageHasAnErrorLine) {
  folder_.write("test/ant/61.jpg", {1, 2, 3});
  const ProgramResult result = predict(weights() + " " + test_images());
  EXPECT_EQ(result.exit_code, exit_code::data) << result.output;
  expect_parts(result.output, {"1 of 31"});
  const std::vector<PredictJson> answers = json_lines_of(result);
  ASSERT_EQ(answers.size(), 31u);
  int wrong = 0;
  for (const PredictJson& answer : answers) {
    if (!answer.contains("error")) continue;
    ++wrong;
    EXPECT_TRUE(answer["file"].get<std::string>().ends_with("ant/61.jpg"));
  }
  EXPECT_EQ(wrong, 1);
}

// Every input has its line, in order, however many inputs cannot be read.
TEST_F(Predicted, EveryInputHasOneLine) {
  const std::string broken = (folder_.path() / "broken.jpg").string();
  folder_.write("broken.jpg", {1, 2, 3});
  for (const std::string& good : {std::string(), (folder_.path() / "test/ant/60.jpg").string()}) {
    const ProgramResult result = predict(weights() + " /nowhere.jpg " + broken + " " + broken + " " + good);
    EXPECT_EQ(result.exit_code, exit_code::data) << result.output;
    const std::vector<PredictJson> answers = json_lines_of(result);
    ASSERT_EQ(answers.size(), good.empty() ? 3u : 4u) << result.output;
    EXPECT_EQ(answers[0]["file"], "/nowhere.jpg");
    for (std::size_t i = 0; i < 3; ++i) EXPECT_TRUE(answers[i].contains("error")) << answers[i];
    if (good.empty()) continue;
    EXPECT_TRUE(answers[3].contains("class")) << answers[3];
  }
}

// The same files as training would read: also in linked folders, and without a suffix.
TEST_F(Predicted, FoldersAreReadAsTrainingReadsThem) {
  const std::filesystem::path photos = folder_.path() / "photos", image = folder_.path() / "test/ant/60.jpg";
  std::filesystem::create_directories(photos / "own/.hidden");
  std::filesystem::create_directory_symlink(folder_.path() / "test", photos / "linked");
  for (const char* name : {"own/1.jpg", "own/plain", "own/.hidden/1.jpg"})
    std::filesystem::copy_file(image, photos / name);
  folder_.write("photos/notes", {1, 2, 3});
  const ProgramResult result = predict(weights() + " " + photos.string());
  EXPECT_EQ(result.exit_code, 0) << result.output;
  const std::vector<PredictJson> answers = json_lines_of(result);
  ASSERT_EQ(answers.size(), 32u) << result.output;
  EXPECT_EQ(answers[0]["file"], (photos / "linked/ant/60.jpg").string());
  EXPECT_EQ(answers[30]["file"], (photos / "own/1.jpg").string());
  EXPECT_EQ(answers[31]["file"], (photos / "own/plain").string());
  EXPECT_NE(lines_naming(result.output, photos.string(), "skipped", "without a suffix"), "") << result.output;
}

// A file as PyTorch writes it: tensors without metadata.
TEST_F(Predicted, WeightsWithoutMetadataNeedAConfiguration) {
  SafetensorsReader reader(weights());
  EXPECT_EQ(reader.metadata().at("format"), "pt");
  std::vector<std::vector<std::byte>> values;
  std::vector<NamedTensor> tensors;
  for (const SafetensorsEntry& entry : reader.entries()) {
    reader.read(entry, values.emplace_back(entry.end - entry.begin));
    tensors.push_back(
        {.name = entry.name,
         .tensor = {.data = values.back().data(), .shape = entry.shape, .dtype = *entry.dtype}});
  }
  const std::string bare = (folder_.path() / "bare.safetensors").string();
  write_safetensors(bare, tensors);
  const ProgramResult without = predict(bare + " " + test_images());
  EXPECT_EQ(without.exit_code, exit_code::usage) << without.output;
  expect_parts(without.output, {bare, "--config"});
  const std::filesystem::path config = folder_.path() / "own.toml";
  std::ofstream(config) << "[model]\nname = \"cnn\"\n[data]\nformat = \"image_folder\"\npath = \""
                        << folder_.path().string()
                        << "\"\nmean = [0.4914, 0.4822, 0.4465]\ndeviation = [0.2470, 0.2435, 0.2616]\n";
  const ProgramResult with = predict(bare + " " + test_images() + " --config " + config.string());
  EXPECT_EQ(with.exit_code, 0) << with.output;
  EXPECT_DOUBLE_EQ(accuracy_of(json_lines_of(with)), told_accuracy());
  std::ofstream(config) << "[model]\nname = \"cnn\"\n[data]\nformat = \"image_folder\"\npath = \"/elsewhere\""
                        << "\nmean = [0.4914, 0.4822, 0.4465]\ndeviation = [0.2470, 0.2435, 0.2616]\n";
  const ProgramResult moved = predict(bare + " " + test_images() + " --config " + config.string() +
                                      " --set data.path=" + folder_.path().string());
  EXPECT_EQ(moved.exit_code, 0) << moved.output;
}

TEST_F(Predicted, InvalidArgumentsAreRefused) {
  EXPECT_EQ(predict("/nowhere.safetensors " + test_images()).exit_code, exit_code::io);
  const std::string run = (folder_.path() / "run").string();
  EXPECT_EQ(predict(folder_.path().string() + " " + test_images()).exit_code, exit_code::data)
      << "the folder is not a run";
  const ProgramResult twice = predict(run + " " + test_images() + " --config cifar10_resnet18");
  EXPECT_EQ(twice.exit_code, exit_code::usage) << twice.output;
  expect_parts(twice.output, {run, "--config"});
  for (const char* key : {"train.batch", "train.precision"})
    expect_failure(predict(fmt::format("{} {} --set {}=auto", weights(), test_images(), key)),
                   exit_code::config, {fmt::format("{} = \"auto\"", key), "lockstep predict"});
}

// Batches do not depend on the number of ranks, and the output does not show which rank computed them.
TEST_F(Predicted, SeveralRanksGiveTheOutputOfOne) {
  folder_.write("test/ant/61.jpg", {1, 2, 3});  // one rank cannot decode it
  const auto answers_of = [&](int ranks, const std::string& flags) {
    const std::string file = (folder_.path() / "answers").string();
    const ProgramResult result =
        run_ranks(ranks, program("lockstep") + " predict " + weights() + " " + test_images() + flags +
                             " --set world.device=cpu --set train.threads=1 >" + file);
    EXPECT_EQ(result.exit_code, exit_code::data) << result.output;
    EXPECT_EQ(count(result.output, "1 of 31"), 1) << result.output;
    std::smatch busy;
    EXPECT_TRUE(std::regex_search(result.output, busy, std::regex(R"(busy (\d+) %)"))) << result.output;
    const bool idles = ranks == 3 && flags == " --batch 20";  // two batches for three ranks
    EXPECT_LE(std::stoi(busy[1].str()), idles ? 90 : 100) << result.output;
    return text_of(file);
  };
  for (const std::string flags : {" --batch 7 --csv --top 3", " --batch 20"}) {
    const std::string alone = answers_of(1, flags);
    EXPECT_GE(count(alone, "\n"), 31) << alone;
    EXPECT_EQ(answers_of(3, flags), alone) << flags;
  }
}

// A file of the same name on each machine, or other flags.
TEST_F(Predicted, RankWithOtherWeightsOrFlagsIsNamed) {
  const std::filesystem::path nodes = folder_.path() / "nodes", script = folder_.path() / "script.sh";
  for (const char* rank : {"0", "1"}) std::filesystem::create_directories(nodes / rank);
  std::filesystem::copy_file(weights(), nodes / "0/own.safetensors");
  write_poisoned(weights(), nodes / "1/own.safetensors", "fc2.bias", 1);
  const auto predicted = [&](const std::string& flags) {
    std::ofstream(script) << "cd " << nodes.string() << "/$OMPI_COMM_WORLD_RANK\nexec " << program("lockstep")
                          << " predict own.safetensors " << test_images() << " --set world.device=cpu "
                          << flags << '\n';
    return run_ranks(2, "sh " + script.string());
  };
  expect_failure(predicted(""), exit_code::config, {"own.safetensors", "rank 1"});
  const ProgramResult other_flags =
      predicted("--top $((1 + OMPI_COMM_WORLD_RANK)) --set run.event_command=token");
  expect_failure(other_flags, exit_code::config, {"--top 1", "--top 2"});
  EXPECT_EQ(count(other_flags.output, "token"), 0) << "a secret: " << other_flags.output;
}

// Rank 0 waits for the answers of rank 1.
TEST_F(Predicted, RankThatHangsEndsTheJobAndIsNamed) {
  const std::filesystem::path held = folder_.path() / "held";
  const ProgramResult result = run_until_fault(kInjectedFault, [&](const std::string& limit) {
    std::filesystem::remove(held);
    ProgramResult run = run_ranks(
        2, fmt::format("env LOCKSTEP_HOLD=predict:1:{} {} predict {} {} --set world.device=cpu --set {}",
                       held.string(), program("lockstep"), weights(), test_images(), limit));
    if (std::filesystem::exists(held)) run.output += kInjectedFault;
    return run;
  });
  EXPECT_EQ(result.exit_code, exit_code::resumable) << result.output;
  EXPECT_NE(lines_naming(result.output, "rank 1 (process "), "") << result.output;
}

TEST_F(Predicted, RunFolderUsesItsNewestCheckpoint) {
  const ProgramResult trained = run_ranks(2, train() + " --set run.checkpoint_every=3 --export " + weights());
  ASSERT_EQ(trained.exit_code, 0) << trained.output;
  const std::string exported = answers_of(weights());
  const std::filesystem::path run = folder_.path() / "run";
  EXPECT_EQ(answers_of(run.string()), exported) << "the checkpoint of the last step";
  EXPECT_NE(answers_of((run / "checkpoints/step-000000003").string()), exported);
}

// Class names come from the folder, which may have others than at the training.
TEST_F(Predicted, RunFolderWarnsWhereItsDataHaveChanged) {
  const std::string arguments = (folder_.path() / "run").string() + " " + test_images();
  const ProgramResult same = predict(arguments);
  EXPECT_EQ(same.exit_code, 0) << same.output;
  EXPECT_EQ(lines_naming(same.output, "class names"), "");
  std::filesystem::rename(folder_.path() / "train/ant", folder_.path() / "train/wasp");
  const ProgramResult changed = predict(arguments);
  EXPECT_EQ(changed.exit_code, 0) << changed.output;
  EXPECT_EQ(count(lines_naming(changed.output, "warning", folder_.path().string(), "class names"), "\n"), 1)
      << changed.output;
}

// A checkpoint within an epoch has running statistics that no evaluation has used, and weights beside their
// average.
TEST_F(Predicted, CheckpointsAnswerLikeAnExportOfTheirStep) {
  const std::string command = train() + " --set schedule.name=constant --set train.ema_decay=0.9";
  const std::filesystem::path run = folder_.path() / "averaged";
  const ProgramResult whole =
      run_ranks(2, fmt::format("{} --set run.dir={} --set run.checkpoint_every=2 --set run.keep=9", command,
                               run.string()));
  ASSERT_EQ(whole.exit_code, 0) << whole.output;
  const ProgramResult two =
      run_ranks(2, fmt::format("{} --set run.dir={}_short --set train.steps=2 --export {}", command,
                               run.string(), weights()));
  ASSERT_EQ(two.exit_code, 0) << two.output;
  EXPECT_EQ(answers_of((run / "checkpoints/step-000000002").string()), answers_of(weights()));
}

TEST(PredictProgram, NetworkWithOtherChannelsThanImagesIsRefused) {
  const Workplace workplace("predict");
  const std::string weights = workplace.path("two.safetensors").string();
  const ProgramResult trained =
      run_shell(workplace.train({"data.format=synthetic", "data.synthetic.height=8", "data.synthetic.width=8",
                                 "data.synthetic.channels=2", "data.synthetic.train_samples=16",
                                 "data.synthetic.test_samples=16", "train.steps=1"},
                                "--export " + weights));
  ASSERT_EQ(trained.exit_code, 0) << trained.output;
  const TemporaryFolder folder;
  folder.write("photo.jpg", encode(kPhoto, noise(kPhoto, 1)));
  const ProgramResult result = run_shell(program("lockstep") + " predict " + weights + " " +
                                         folder.path().string() + " --set world.device=cpu");
  EXPECT_EQ(result.exit_code, exit_code::config) << result.output;
  EXPECT_NE(lines_naming(result.output, "2 channels"), "") << result.output;
}

// Two classes have the same probability.
TEST(PredictProgram, OutputHalfWayBetweenClassesHasTheClassOfEvaluations) {
  const TemporaryFolder folder;
  folder.write("photo.jpg", encode(kPhoto, noise(kPhoto, 1)));
  std::vector<float> weight(32 * 32 * 3, 0.0f), bias = {1.5f};
  const std::vector<NamedTensor> tensors = {
      {.name = "fc1.weight", .tensor = {.data = weight.data(), .shape = {1, std::ssize(weight)}}},
      {.name = "fc1.bias", .tensor = {.data = bias.data(), .shape = {1}}}};
  const std::filesystem::path weights = folder.path() / "number.safetensors",
                              config = folder.path() / "number.toml";
  write_safetensors(weights, tensors);
  std::ofstream(config) << "[model]\nloss = \"mean_squared_error\"\n"
                           "[[model.layer]]\nkind = \"dense\"\nfeatures = 1\n"
                           "[data]\nformat = \"synthetic\"\n";
  const ProgramResult result = run_shell(
      fmt::format("{} predict {} {} --config {} --top 2 --set world.device=cpu", program("lockstep"),
                  weights.string(), (folder.path() / "photo.jpg").string(), config.string()));
  EXPECT_EQ(result.exit_code, 0) << result.output;
  const std::vector<PredictJson> answers = json_lines_of(result);
  ASSERT_EQ(answers.size(), 1u) << result.output;
  EXPECT_EQ(answers[0]["label"], 2) << "1.5 is rounded up";
  EXPECT_EQ(answers[0]["top"][1]["label"], 1);
  for (const PredictJson& each : answers[0]["top"]) EXPECT_EQ(each["probability"], 0.5);
}

// Two names that differ in one byte of Latin-1.
TEST_F(Predicted, NamesThatAreNotUtf8StayDifferent) {
  for (const char* split : {"train", "test"}) {
    const std::filesystem::path images = folder_.path() / split;
    std::filesystem::rename(images / kClasses[0], images / "p\xe9");
    std::filesystem::rename(images / kClasses[2], images / "p\xe8");
  }
  const ProgramResult trained = run_shell(train() + " --export " + weights());
  ASSERT_EQ(trained.exit_code, 0) << trained.output;
  const ProgramResult result = predict(weights() + " " + test_images() + " --top 3");
  EXPECT_EQ(result.exit_code, 0) << result.output;
  const std::vector<PredictJson> answers = json_lines_of(result);
  ASSERT_EQ(answers.size(), 30u) << result.output;
  const std::set<std::string> names = {kClasses[1], "p\\xe8", "p\\xe9"};
  std::set<std::string> classes, folders;
  for (const PredictJson& each : answers[0]["top"]) classes.insert(each["class"].get<std::string>());
  for (const PredictJson& each : answers)
    folders.insert(std::filesystem::path(each["file"].get<std::string>()).parent_path().filename().string());
  EXPECT_EQ(classes, names);
  EXPECT_EQ(folders, names);
  EXPECT_EQ(run_record(folder_.path() / "run")["dataset"]["class_names"].get<std::set<std::string>>(), names);

  const ProgramResult evaluated = run_shell(on_images("eval") + " --init " + weights());
  EXPECT_EQ(evaluated.exit_code, 0) << evaluated.output;
  EXPECT_EQ(lines_naming(evaluated.output, "warning", weights()), "") << "the classes are the same";
}

TEST_F(Predicted, FileNamesPrintNoEscapeSequences) {
  const std::string name = "\x1b[2J\xc2\x9b\x7f.jpg";
  std::filesystem::copy_file(folder_.path() / fmt::format("test/{}/60.jpg", kClasses[0]),
                             folder_.path() / name);
  const std::string arguments = weights() + " '" + (folder_.path() / name).string() + "'";
  const ProgramResult csv = predict(arguments + " --csv"), json = predict(arguments);
  for (const ProgramResult& result : {csv, json}) {
    EXPECT_EQ(result.exit_code, exit_code::done) << result.output;
    for (const char* order : {"\x1b", "\xc2\x9b", "\x7f"}) EXPECT_EQ(count(result.output, order), 0);
  }
  EXPECT_EQ(count(csv.output, "\\x1b[2J\\xc2\\x9b\\x7f.jpg,"), 1) << csv.output;
  const std::filesystem::path file = json_lines_of(json).at(0).at("file").get<std::string>();
  EXPECT_EQ(file.filename(), name) << "the same name";
}

}  // namespace
}  // namespace lockstep
