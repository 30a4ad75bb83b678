// SPDX-License-Identifier: Apache-2.0
//
// Checkpoints from the user's view: which ones stay, which are refused, and what happens when saving fails.
#include <algorithm>
#include <cmath>
#include <fstream>
#include <map>
#include <regex>

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

// The learning rate does not depend on the last step, so train.steps may change.
Settings saving(int steps, Settings more = {}) {
  Settings all = {"model.name=cnn",        "train.epochs=4",          "schedule.name=constant",
                  "kernels.choose=direct", "run.checkpoint_every=10", fmt::format("train.steps={}", steps)};
  all.insert(all.end(), more.begin(), more.end());
  return all;
}

std::vector<std::string> checkpoints_in(const std::filesystem::path& folder) {
  std::vector<std::string> names;
  if (!std::filesystem::is_directory(folder)) return names;
  for (const auto& entry : std::filesystem::directory_iterator(folder))
    names.push_back(entry.path().filename());
  std::ranges::sort(names);
  return names;
}

ProgramResult go_on(const Workplace& workplace, int ranks, const Settings& settings,
                    const std::string& flags = "") {
  return run_ranks(ranks, workplace.train(settings, "--resume auto --resume-with train.steps " + flags));
}

// True if the output names this step's checkpoint: a run names those that it resumed, skipped or saved.
bool names_checkpoint(const ProgramResult& result, int step) {
  return count(result.output, fmt::format("step-{:09}", step)) > 0;
}

using Names = std::vector<std::string>;

TEST(Checkpoints, NewestAreKeptAndANewRunMovesThemAside) {
  const Workplace workplace("kept");
  const auto folder = workplace.path("run/checkpoints");
  ASSERT_EQ(run_ranks(1, workplace.train(saving(25))).exit_code, 0);
  // The last step is saved too, and no unfinished files remain.
  EXPECT_EQ(checkpoints_in(folder), (Names{"step-000000020", "step-000000025"}));
  const std::string metrics = text_of(workplace.path("run/metrics.jsonl"));

  const ProgramResult anew = run_ranks(1, workplace.train(saving(12)));
  ASSERT_EQ(anew.exit_code, 0) << anew.output;
  EXPECT_EQ(count(anew.output, "checkpoints.1"), 1) << anew.output;
  EXPECT_EQ(checkpoints_in(workplace.path("run/checkpoints.1")), (Names{"step-000000020", "step-000000025"}));
  EXPECT_EQ(checkpoints_in(folder), (Names{"step-000000010", "step-000000012"}));
  EXPECT_EQ(text_of(workplace.path("run/metrics.1.jsonl")), metrics);

  // Resumes the earlier run's checkpoint; the later run's checkpoints are moved aside.
  const ProgramResult earlier = run_ranks(
      1, workplace.train(saving(30), "--resume-with train.steps --resume " +
                                         workplace.path("run/checkpoints.1/step-000000020").string()));
  ASSERT_EQ(earlier.exit_code, 0) << earlier.output;
  EXPECT_EQ(checkpoints_in(workplace.path("run/checkpoints.2")), (Names{"step-000000010", "step-000000012"}));
}

TEST(Checkpoints, BestIsKept) {
  const Workplace workplace("best");
  // A rate at which later epochs destroy what the first one learned: 4 epochs of 64 steps.
  const Settings settings = saving(0, {"run.keep=1", "optimizer.learning_rate=0.02"});
  ASSERT_EQ(run_ranks(1, workplace.train(settings)).exit_code, 0);
  double best = 0;
  for (const nlohmann::json& line : metrics_of(workplace.path("run")))
    best = std::max(best, line.at("test_accuracy").get<double>());
  double saved = 0;
  const auto folder = workplace.path("run/checkpoints");
  for (const std::string& name : checkpoints_in(folder)) {
    const auto accuracy = nlohmann::json::parse(text_of(folder / name / "manifest.json"))["test_accuracy"];
    if (!accuracy.is_null()) saved = std::max(saved, accuracy.get<double>());
  }
  EXPECT_GT(best, 0);
  EXPECT_EQ(saved, best);
  EXPECT_LE(checkpoints_in(folder).size(), 2u);
  EXPECT_EQ(checkpoints_in(folder).back(), "step-000000256");
}

TEST(Checkpoints, AreSavedOnASignal) {
  const Workplace workplace("asked");
  const auto folder = workplace.path("run/checkpoints").string();
  const ProgramResult result = run_shell(
      fmt::format("{} & run=$!\n{}kill -USR2 $run\n{}kill -USR1 $run\nwait $run",
                  on_ranks(2, workplace.train({"model.name=cnn", "train.epochs=100000"})),
                  wait_until(fmt::format("[ -s {} ]", workplace.path("run/metrics.jsonl").string())),
                  wait_until(fmt::format("ls {} 2>/dev/null | grep -q '[0-9]$'", folder))));
  EXPECT_EQ(result.exit_code, exit_code::resumable) << result.output;
  EXPECT_EQ(checkpoints_in(folder).size(), 2u) << "one for each signal";
}

TEST(Checkpoints, DamagedOneIsRefusedByNameOrAnEarlierOneIsUsed) {
  const Workplace workplace("damaged");
  const std::string whole =
      digest_of(workplace, 2, saving(35, {"run.dir=" + workplace.path("whole").string()}));
  ASSERT_EQ(run_ranks(2, workplace.train(saving(25, {"run.keep=3"}))).exit_code, 0);
  const auto newest = workplace.path("run/checkpoints/step-000000025");
  for (const char* name : {"rank-00001.safetensors", "shared.safetensors"}) {
    std::fstream file(newest / name, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(200);
    file.put('~');
    file.close();
    expect_failure(
        run_ranks(2, workplace.train(saving(35), "--resume-with train.steps --resume " + newest.string())),
        exit_code::data, {name});
  }
  std::filesystem::resize_file(workplace.path("run/checkpoints/step-000000020/rank-00000.safetensors"), 100);
  const std::string digest = workplace.path("resumed").string();
  const ProgramResult result = go_on(workplace, 2, saving(35), "--digest " + digest);
  ASSERT_EQ(result.exit_code, 0) << result.output;
  EXPECT_TRUE(names_checkpoint(result, 10)) << result.output;
  EXPECT_EQ(text_of(digest), whole);
  EXPECT_EQ(checkpoints_in(workplace.path("run/checkpoints.1")), (Names{"step-000000020", "step-000000025"}))
      << "kept for inspection";

  const Names names = checkpoints_in(workplace.path("run/checkpoints"));
  for (const std::string& name : names)
    std::filesystem::resize_file(workplace.path("run/checkpoints") / name / "manifest.json", 10);
  const ProgramResult none = go_on(workplace, 2, saving(40));
  expect_failure(none, exit_code::data, {fmt::format("{} checkpoint", names.size())});
  expect_parts(none.output, names);
}

// Paths without a parent: the current folder, a folder in it, and a link to a folder elsewhere in the run.
TEST(Checkpoints, ResumeFromTheCurrentFolder) {
  const Workplace workplace("resume_here");
  ASSERT_EQ(run_shell(workplace.train(saving(10))).exit_code, 0);
  const std::filesystem::path folder = workplace.path("run/checkpoints");
  const std::string name = "step-000000010";
  const std::filesystem::path link = workplace.path("run/latest");
  std::filesystem::create_directory_symlink(folder / name, link);
  for (const auto& [place, given] : {std::pair{folder / name, std::string(".")}, std::pair{folder, name},
                                     std::pair{link.parent_path(), link.filename().string()}}) {
    const ProgramResult resumed =
        run_shell("cd " + place.string() + " && " +
                  workplace.train(saving(12), "--init /nowhere --resume-with train.steps --resume " + given));
    EXPECT_EQ(resumed.exit_code, 0) << resumed.output;
    EXPECT_EQ(count(resumed.output, "--init /nowhere"), 1) << "it has no effect: " << resumed.output;
    EXPECT_TRUE(std::filesystem::exists(folder / name)) << "moved aside as if of another run: " << given;
  }
}

TEST(Checkpoints, OtherTrainingsAreRefusedByKey) {
  const Workplace workplace("other");
  ASSERT_EQ(run_ranks(2, workplace.train(saving(10))).exit_code, 0);
  const auto with = [](Settings more) { return saving(20, std::move(more)); };
  const ProgramResult rate = go_on(workplace, 2, with({"optimizer.learning_rate=0.5"}));
  expect_failure(rate, exit_code::config, {"--resume-with optimizer.learning_rate"});
  expect_parts(lines_naming(rate.output, "optimizer.learning_rate"), {"0.02", "0.5"});
  expect_failure(go_on(workplace, 2, with({"model.batch_norm=false"}), "--resume-with model.batch_norm"),
                 exit_code::config, {".bias\"", "another network"});
  // The refused runs have not changed the checkpoint.
  const ProgramResult other =
      go_on(workplace, 2, with({"optimizer.learning_rate=0.5"}), "--resume-with optimizer.learning_rate");
  EXPECT_EQ(other.exit_code, 0) << other.output;
  EXPECT_TRUE(names_checkpoint(other, 10)) << other.output;
}

// One label differs. The same data at another path are accepted.
TEST(Checkpoints, OtherDataAreRefused) {
  const Workplace workplace("other_data");
  ASSERT_EQ(run_ranks(2, workplace.train(saving(10))).exit_code, 0);
  for (const char* name : {"copy", "changed"})
    std::filesystem::copy(workplace.path("data"), workplace.path(name));
  std::fstream labels(workplace.path("changed/train-labels-idx1-ubyte"),
                      std::ios::in | std::ios::out | std::ios::binary);
  labels.seekp(-1, std::ios::end);
  labels.put('\0');  // it was 3
  labels.close();
  const auto resume = [&](const char* data) {
    return go_on(workplace, 2, saving(20, {"data.path=" + workplace.path(data).string()}));
  };
  const auto evaluate = [&](const char* data, const std::string& flags = "") {
    return run_shell(fmt::format("{} eval {} --resume auto --set data.path={} {}", program("lockstep"),
                                 workplace.path("run/config.toml").string(), workplace.path(data).string(),
                                 flags));
  };
  const auto run_files = [&] {
    std::map<std::string, std::string> files;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(workplace.path("run")))
      if (entry.is_regular_file() && entry.path().filename() != "run.lock")
        files[entry.path().string()] = text_of(entry.path());
    return files;
  };
  const std::map<std::string, std::string> before = run_files();
  expect_failure(evaluate("changed"), exit_code::config, {"--resume-with data.path"});
  expect_failure(resume("changed"), exit_code::config, {"--resume-with data.path"});
  EXPECT_TRUE(run_files() == before) << "a refused resume changes no file";
  for (const ProgramResult& accepted : {evaluate("changed", "--resume-with data.path"), evaluate("copy")})
    EXPECT_EQ(accepted.exit_code, 0) << accepted.output;
  const ProgramResult copy = resume("copy");
  EXPECT_EQ(copy.exit_code, 0) << copy.output;
  EXPECT_TRUE(names_checkpoint(copy, 10)) << copy.output;
}

// The cache of the resumed run has another kernel for the gradients of a convolution's weights. Every
// processor has this kernel.
TEST(Checkpoints, ResumeWithTheSavedKernels) {
  const Workplace workplace("saved_kernels");
  const auto settings = [&](int steps, const char* cache, const char* run) {
    return saving(steps, {"kernels.choose=time", "kernels.cache=" + workplace.path(cache).string(),
                          "run.dir=" + workplace.path(run).string()});
  };
  const std::string whole = digest_of(workplace, 1, settings(20, "cache", "whole"));
  std::filesystem::create_directories(workplace.path("other"));
  for (const auto& entry : std::filesystem::directory_iterator(workplace.path("cache"))) {
    if (entry.path().extension() != ".json") continue;
    nlohmann::json kept = nlohmann::json::parse(text_of(entry.path()));
    nlohmann::json& choices = kept.at("choices");
    for (nlohmann::json& choice : choices) choice["waited"] = 0;  // else a busy machine repeats the contest
    std::ofstream(entry.path()) << kept;
    for (auto choice = choices.begin(); choice != choices.end(); ++choice)
      if (choice.key().starts_with("convolution backward weights"))
        choice.value()["kernel"] = "direct in 2 pieces";
    std::ofstream(workplace.path("other") / entry.path().filename()) << kept;
  }
  ASSERT_EQ(run_ranks(1, workplace.train(settings(10, "cache", "run"))).exit_code, 0);
  const std::string digest = workplace.path("resumed").string();
  const ProgramResult resumed = go_on(workplace, 1, settings(20, "other", "run"), "--digest " + digest);
  ASSERT_EQ(resumed.exit_code, 0) << resumed.output;
  EXPECT_EQ(text_of(digest), whole);
  EXPECT_EQ(lines_naming(resumed.output, "warning", "saved training"), "");
  const auto kernels_of = [&](const char* checkpoint) {
    const auto manifest = workplace.path("run/checkpoints") / checkpoint / "manifest.json";
    return nlohmann::json::parse(text_of(manifest)).at("kernels");
  };
  EXPECT_EQ(kernels_of("step-000000020"), kernels_of("step-000000010"));
}

// keys_ranks.cpp resumes with the same planned threads.
TEST(Checkpoints, AnotherNumberOfThreadsCausesAWarning) {
  const Workplace workplace("other_threads");
  ASSERT_EQ(run_ranks(1, workplace.train(saving(10))).exit_code, 0);
  const ProgramResult resumed = go_on(workplace, 1, saving(20, {"train.threads=2"}));
  EXPECT_EQ(resumed.exit_code, 0) << resumed.output;
  const std::string warning = lines_naming(resumed.output, "warning", "saved training");
  EXPECT_EQ(count(warning, "\n"), 1) << resumed.output;
  expect_parts(warning, {" 1 ", " 2"});
}

// The samples and their order are the same. Without batch norm the parameters are equal up to rounding, and
// the codec's residuals are not lost.
TEST(Checkpoints, ResumeOnAnotherNumberOfRanks) {
  const Workplace workplace("ranks");
  const Settings network = {"model.batch_norm=false", "comm.codec=sign", "comm.compress_within_node=true"};
  const auto settings = [&](int steps, int accumulation) {
    Settings all = saving(steps, network);
    all.push_back(fmt::format("train.accumulation={}", accumulation));
    return all;
  };
  ASSERT_EQ(run_ranks(4, workplace.train(settings(10, 1))).exit_code, 0);
  const ProgramResult two = go_on(workplace, 2, settings(20, 2));
  ASSERT_EQ(two.exit_code, 0) << two.output;
  EXPECT_EQ(count(two.output, "4 ranks"), 1) << two.output;
  // The sums of the residuals, before and after the change of ranks, are the only fractions in such a line.
  std::vector<double> sums;
  for (const double number : numbers_named_in(lines_naming(two.output, "info", "2 ranks")))
    if (number != std::floor(number)) sums.push_back(number);
  ASSERT_EQ(sums.size(), 2u) << two.output;
  EXPECT_NEAR(sums[1], sums[0], 1e-4 * std::abs(sums[0]) + 1e-6);
  EXPECT_EQ(last_metrics_of(workplace.path("run")).at("steps"), 20);
}

// Within an epoch of 512 samples: the first sample that was not used comes next.
TEST(Checkpoints, AnotherGlobalBatchContinuesTheEpochAtTheSameSample) {
  const auto ends = [](int steps, int accumulation, int other) {
    const Workplace workplace("batches");
    const auto settings = [&](int stop, int each) {
      return saving(stop, {"train.epochs=1", fmt::format("train.accumulation={}", each)});
    };
    EXPECT_EQ(run_ranks(1, workplace.train(settings(steps, accumulation))).exit_code, 0);
    const ProgramResult result = go_on(workplace, 1, settings(0, other), "--resume-with train.accumulation");
    if (result.exit_code != 0) {
      expect_failure(result, exit_code::config, {"epoch 1", fmt::format("{} steps", steps), "16 samples"});
      return -1;
    }
    return last_metrics_of(workplace.path("run")).at("steps").get<int>();
  };
  EXPECT_EQ(ends(10, 1, 2), 10 + 32 - 5);
  EXPECT_EQ(ends(5, 2, 1), 5 + 64 - 10);
  EXPECT_EQ(ends(40, 1, 2), 40 + 32 - 20) << "more steps than the epoch has now";
  EXPECT_EQ(ends(11, 1, 2), -1) << "no step of 16 samples begins after 88";
}

// The keys are accepted, but the epoch of the other data is already over.
TEST(Checkpoints, FewerSamplesThanTheEpochHasUsedAreRefused) {
  const Workplace workplace("fewer_samples");
  const auto settings = [](int samples, int steps) {
    return saving(steps, {"data.format=synthetic", "data.synthetic.height=12", "data.synthetic.width=12",
                          "data.synthetic.channels=1", "data.synthetic.test_samples=16", "data.mean=[]",
                          "data.deviation=[]", fmt::format("data.synthetic.train_samples={}", samples)});
  };
  ASSERT_EQ(run_ranks(1, workplace.train(settings(512, 20))).exit_code, 0);
  const std::string metrics = text_of(workplace.path("run/metrics.jsonl"));
  expect_failure(go_on(workplace, 1, settings(80, 30),
                       "--resume-with data.synthetic.train_samples --resume-with data.path"),
                 exit_code::config, {"in epoch 1", "after 20 steps", "10 steps"});
  EXPECT_EQ(text_of(workplace.path("run/metrics.jsonl")), metrics) << "a refused resume changes no file";
  EXPECT_FALSE(std::filesystem::exists(workplace.path("run/metrics.1.jsonl")));
}

// Half of the training has passed, whatever the number of its steps.
TEST(Checkpoints, TheScheduleContinuesAtTheSameSample) {
  for (const auto& [accumulation, topology] :
       {std::pair(1, "all"), std::pair(2, "all"), std::pair(2, "ring")}) {
    const Workplace workplace("place_of_rate");
    const auto settings = [topology = topology](int each, int until) {
      return Settings{"model.name=cnn",
                      "train.epochs=2",
                      "schedule.name=cosine",
                      "schedule.warmup_epochs=0",
                      "optimizer.learning_rate=0.02",
                      "kernels.choose=direct",
                      "run.log_every=1",
                      "run.checkpoint_minutes=1000",
                      fmt::format("comm.topology={}", topology),
                      fmt::format("train.accumulation={}", each),
                      fmt::format("train.until_epoch={}", until)};
    };
    ASSERT_EQ(run_ranks(1, workplace.train(settings(accumulation, 1))).exit_code, 0);
    const std::size_t lines = json_lines_of(workplace.path("run/steps.jsonl")).size();
    const ProgramResult result = run_ranks(
        1, workplace.train(settings(3 - accumulation, 0), "--resume auto --resume-with train.accumulation"));
    ASSERT_EQ(result.exit_code, 0) << result.output;
    EXPECT_EQ(count(lines_naming(result.output, "warning"), "learning rate"), 0) << result.output;
    const auto steps = json_lines_of(workplace.path("run/steps.jsonl"));
    ASSERT_GT(steps.size(), lines);
    EXPECT_NEAR(steps[lines]["learning_rate"], 0.01, 1e-5);
    EXPECT_LT(steps.back()["learning_rate"], 1e-4);
  }
}

// So do gradients under way (train.staleness), whose scale alternates with that of the other steps.
TEST(Checkpoints, AChangedPrecisionOrLossScaleBeginsWithItsOwn) {
  struct Change {
    Settings saved, now;
    const char* keys;
    double scale;
  };
  for (const Change& change :
       {Change{{}, {"train.precision=fp16"}, "train.precision", 65536},
        Change{{"train.precision=fp16", "train.loss_scale_interval=0"},
               {"train.precision=fp16", "train.loss_scale_interval=0", "train.loss_scale=1024"},
               "train.loss_scale",
               1024}}) {
    for (const char* staleness : {"train.staleness=0", "train.staleness=1"}) {
      const Workplace workplace("changed_scale");
      const auto settings = [&](int steps, Settings all) {
        all.insert(all.end(), {staleness, "run.log_every=1"});
        return saving(steps, std::move(all));
      };
      ASSERT_EQ(run_ranks(1, workplace.train(settings(10, change.saved))).exit_code, 0) << staleness;
      const ProgramResult result =
          go_on(workplace, 1, settings(20, change.now), fmt::format("--resume-with {}", change.keys));
      ASSERT_EQ(result.exit_code, 0) << result.output;
      const std::vector<nlohmann::json> lines = json_lines_of(workplace.path("run/steps.jsonl"));
      ASSERT_GE(lines.size(), 2u);
      for (const nlohmann::json& line : {lines[lines.size() - 2], lines.back()})
        EXPECT_EQ(line.at("loss_scale"), change.scale) << change.keys << ", " << staleness;
    }
  }
}

// AdamW's first step moves a parameter by the learning rate, that of LARS a weight by the learning rate times
// the trust coefficient times its norm.
TEST(Checkpoints, AnotherOptimizerStartsAsInANewTraining) {
  const Workplace workplace("optimizer");
  const std::string file = workplace.path("weights.safetensors").string();
  ASSERT_EQ(run_ranks(1, workplace.train(saving(10), "--export " + file)).exit_code, 0);
  const std::vector<float> saved = tensors_of(file).at("fc1.weight");
  const std::string checkpoint = workplace.path("run/checkpoints/step-000000010").string();
  for (const std::string optimizer : {"adamw", "lars"}) {
    const ProgramResult result = run_ranks(
        1, workplace.train(
               saving(11, {"optimizer.name=" + optimizer, "run.dir=" + workplace.path(optimizer).string()}),
               fmt::format("--resume {} --resume-with train.steps --resume-with optimizer.name --export {}",
                           checkpoint, file)));
    ASSERT_EQ(result.exit_code, 0) << result.output;
    EXPECT_EQ(count(lines_naming(result.output, "info", "optimizer.name"), "\n"), 1) << result.output;
    const std::vector<float> moved = tensors_of(file).at("fc1.weight");
    double most = 0, change = 0, norm = 0;
    for (std::size_t i = 0; i < saved.size(); ++i) {
      const double difference = std::abs(static_cast<double>(moved[i]) - static_cast<double>(saved[i]));
      most = std::max(most, difference);
      change = std::hypot(change, difference);
      norm = std::hypot(norm, static_cast<double>(saved[i]));
    }
    if (optimizer == "adamw") {
      EXPECT_NEAR(most, 0.02, 2e-4);
    } else {
      EXPECT_NEAR(change / norm, 0.02 * 1e-3, 2e-7);
    }
  }
}

TEST(Checkpoints, LocalSgdResumesWithAnotherBeginning) {
  const Workplace workplace("phase");
  const auto settings = [](int steps, int after) {
    return saving(steps, {"train.average_every=4", fmt::format("train.average_after={}", after)});
  };
  const std::string with = "--resume-with train.average_after";
  ASSERT_EQ(run_ranks(2, workplace.train(settings(10, 20))).exit_code, 0);
  EXPECT_EQ(go_on(workplace, 2, settings(20, 10), with).exit_code, 0);
  EXPECT_EQ(go_on(workplace, 2, settings(30, 15), with).exit_code, 0);
}

// Other buckets divide a codec's state differently; a codec may also have none in the checkpoint.
TEST(Checkpoints, CodecsResumeWithOtherBuckets) {
  const Workplace workplace("buckets");
  const Settings codec = {"comm.codec=int8", "comm.compress_within_node=true"};
  const auto with = [&](const std::string& setting) {
    Settings all = codec;
    all.push_back(setting);
    return saving(20, all);
  };
  ASSERT_EQ(run_ranks(2, workplace.train(saving(10, codec))).exit_code, 0);
  const ProgramResult other = go_on(workplace, 2, with("comm.bucket_mib=[0.001, 0.01, 0.001]"));
  ASSERT_EQ(other.exit_code, 0) << other.output;
  std::vector<double> sums;
  for (const double number : numbers_named_in(lines_naming(other.output, "info", "unsent")))
    if (number != std::floor(number)) sums.push_back(number);
  ASSERT_EQ(sums.size(), 2u) << other.output;
  EXPECT_NEAR(sums[1], sums[0], 1e-4 * std::abs(sums[0]) + 1e-6) << other.output;
  const std::string with_key = "--resume-with comm.compress_within_node";
  const ProgramResult dense = go_on(workplace, 2, saving(30, {"comm.codec=int8"}), with_key);
  EXPECT_EQ(dense.exit_code, 0) << dense.output;
  EXPECT_EQ(count(lines_naming(dense.output, "warning"), "residual"), 1) << dense.output;
  const ProgramResult begun = go_on(workplace, 2, saving(40, codec), with_key);
  EXPECT_EQ(begun.exit_code, 0) << begun.output;
  EXPECT_EQ(count(lines_naming(begun.output, "warning"), "residual"), 1) << begun.output;
  const ProgramResult alone = go_on(workplace, 1, saving(50, codec), "--resume-size any");
  EXPECT_EQ(alone.exit_code, 0) << alone.output;
  EXPECT_EQ(count(lines_naming(alone.output, "warning"), "residual"), 1) << alone.output;

  // The state of the optimizer and the gradients under way are each rank's, too.
  for (const char* apart : {"train.average_every=4", "train.staleness=1"}) {
    const Workplace each("buckets_apart");
    const auto settings = [&](int steps, const std::string& bucket) {
      Settings all = codec;
      all.insert(all.end(), {apart, "comm.bucket_mib=" + bucket});
      return saving(steps, all);
    };
    ASSERT_EQ(run_ranks(2, each.train(settings(10, "[25, 25, 25]"))).exit_code, 0);
    const ProgramResult resumed = go_on(each, 2, settings(20, "[0.001, 0.01, 0.001]"));
    EXPECT_EQ(resumed.exit_code, 0) << resumed.output;
    EXPECT_EQ(count(lines_naming(resumed.output, "warning"), "dropped"), 0) << resumed.output;
  }
}

// One command on the available number of ranks: 4, then 2, then 4 again.
TEST(Checkpoints, ResumeOnAnyNumberOfRanksIfAllowed) {
  const Workplace workplace("resized");
  const std::string digest = workplace.path("digest").string();
  const auto train = [&](int ranks, int steps, const std::string& folder, const std::string& flags) {
    const Settings settings =
        saving(steps, {"model.batch_norm=false", "run.dir=" + workplace.path(folder).string()});
    return run_ranks(ranks, workplace.train(settings, flags + " --digest " + digest + " --export " +
                                                          workplace.path(folder + ".weights").string()));
  };
  const std::string any = "--resume auto --resume-size any --resume-with train.steps";
  EXPECT_EQ(train(4, 24, "whole", "").exit_code, 0);
  EXPECT_EQ(train(4, 8, "parts", any).exit_code, 0);
  const std::string of_four = text_of(digest);
  const ProgramResult refused = train(2, 16, "parts", "--resume auto --resume-with train.steps");
  expect_failure(refused, exit_code::config, {"--resume-size any"});
  EXPECT_TRUE(std::regex_search(refused.output, std::regex("train.accumulation ?= ?2\\b"))) << refused.output;
  const ProgramResult three = train(3, 16, "parts", any);
  expect_failure(three, exit_code::config, {"3 ranks", "24 samples"});
  EXPECT_EQ(count(three.output, "--resume-size"), 0) << "no accumulation gives 32 samples: " << three.output;
  const ProgramResult two = train(2, 16, "parts", any);
  EXPECT_EQ(two.exit_code, 0) << two.output;
  const std::string told = lines_naming(two.output, "--resume-size any");
  EXPECT_EQ(count(told, "\n"), 1) << two.output;
  expect_parts(told, {"4 ranks", "train.accumulation", "32 samples"});
  const auto facts = run_record(workplace.path("parts"));
  EXPECT_EQ(facts["ranks"], 2);
  EXPECT_EQ(facts["global_batch"], 32);
  EXPECT_EQ(count(two.output, of_four.substr(0, of_four.find('\n'))), 1) << two.output;
  const std::string of_two = text_of(digest);
  const ProgramResult four = train(4, 24, "parts", any);
  EXPECT_EQ(four.exit_code, 0) << four.output;
  EXPECT_EQ(count(four.output, of_two.substr(0, of_two.find('\n'))), 1) << four.output;
  const auto whole = tensors_of(workplace.path("whole.weights"));
  const auto parts = tensors_of(workplace.path("parts.weights"));
  EXPECT_GT(whole.size(), 0u);
  ASSERT_EQ(parts.size(), whole.size());
  for (const auto& [name, values] : whole)
    for (std::size_t i = 0; i < values.size(); ++i) ASSERT_NEAR(parts.at(name)[i], values[i], 1e-3) << name;
  // The first epoch's loss covers the samples of both of its parts.
  const nlohmann::json epoch = metrics_of(workplace.path("whole")).at(0);
  const nlohmann::json resumed = metrics_of(workplace.path("parts")).at(0);
  EXPECT_EQ(resumed["steps"], epoch["steps"]);
  EXPECT_NEAR(resumed["train_loss"].get<double>(), epoch["train_loss"].get<double>(), 1e-3);
}

// A chosen rate depends on train.accumulation, so only the flag keeps it.
TEST(Checkpoints, ResumeOnAnotherNumberOfRanksKeepsAChosenRate) {
  const Workplace workplace("chosen_rate");
  const std::string config = text_of(workplace.path("config.toml")), given = "learning_rate = 0.02\n";
  const std::size_t at = config.find(given);
  ASSERT_NE(at, std::string::npos) << config;
  std::ofstream(workplace.path("config.toml")) << config.substr(0, at) << config.substr(at + given.size());
  const auto saved_rate = [&] {
    return lines_naming(text_of(workplace.path("run/config.toml")), "learning_rate = ");
  };
  ASSERT_EQ(run_ranks(2, workplace.train(saving(10))).exit_code, 0);
  const std::string rate = saved_rate();
  EXPECT_EQ(count(rate, "\n"), 1) << rate;
  const ProgramResult refused = go_on(workplace, 1, saving(20));
  expect_failure(refused, exit_code::config, {"--resume-size any"});
  EXPECT_EQ(count(refused.output, "set train.accumulation"), 0) << refused.output;
  const ProgramResult resumed = go_on(workplace, 1, saving(20), "--resume-size any");
  EXPECT_EQ(resumed.exit_code, 0) << resumed.output;
  EXPECT_EQ(saved_rate(), rate);
}

// A checkpoint of either exchange on 4 ranks is resumed by the same one on 1 rank, and by the other one on 2
// ranks, with the same samples. sharded_test.cpp has other numbers of ranks.
TEST(Checkpoints, ResumeWithAnotherExchangeOnAnotherNumberOfRanks) {
  const Workplace workplace("exchanges");
  const std::string digest = workplace.path("digest").string();
  const auto train = [&](int ranks, int steps, const std::string& exchange, const std::string& folder,
                         const std::string& flags = "") {
    const ProgramResult result = run_ranks(
        ranks, workplace.train(
                   saving(steps, {"optimizer.name=adamw", "train.batch=2",
                                  fmt::format("train.accumulation={}", 8 / ranks),
                                  "comm.exchange=" + exchange, "run.dir=" + workplace.path(folder).string()}),
                   flags + " --digest " + digest));
    EXPECT_EQ(result.exit_code, 0) << result.output;
    return text_of(digest);
  };
  EXPECT_EQ(train(4, 10, "sharded", "sharded"), train(4, 10, "dense", "dense"));
  const auto resumed = [&](int ranks, const std::string& exchange, const std::string& from) {
    return train(ranks, 14, exchange, "resumed",
                 "--resume-with train.steps --resume " +
                     workplace.path(from + "/checkpoints/step-000000010").string());
  };
  EXPECT_EQ(resumed(1, "sharded", "sharded"), resumed(1, "dense", "dense"));
  const std::string expected = resumed(2, "dense", "dense");
  EXPECT_EQ(resumed(2, "sharded", "dense"), expected);
  EXPECT_EQ(resumed(2, "dense", "sharded"), expected);
}

// A folder that cannot be created, a full disk: saved checkpoints stay. Training continues or ends cleanly,
// as configured.
TEST(Checkpoints, FailedSaveWarnsOrEndsTheTraining) {
  const Workplace workplace("unwritable");
  std::filesystem::create_directories(workplace.path("run"));
  std::ofstream(workplace.path("run/checkpoints")) << "in the way";
  const ProgramResult warned = run_ranks(2, workplace.train(saving(25)));
  EXPECT_EQ(warned.exit_code, 0) << warned.output;
  const std::string folder = workplace.path("run/checkpoints").string();
  expect_parts(lines_naming(warned.output, folder, "step 10"), {"warning", "training continues"});
  EXPECT_EQ(count(lines_naming(warned.output, "earlier checkpoints"), "\n"), 0) << "there are none";
  EXPECT_EQ(count(text_of(workplace.path("run/metrics.jsonl")), "\n"), 1);
  const ProgramResult stopped = run_ranks(2, workplace.train(saving(25, {"run.checkpoint_errors=stop"})));
  EXPECT_EQ(stopped.exit_code, exit_code::io);
  const std::string error = lines_naming(stopped.output, folder, "lockstep: ");
  EXPECT_EQ(count(error, "\n"), 1) << stopped.output;
  expect_parts(error, {"step 10"});
  // The last checkpoint, which is tried twice.
  const ProgramResult last = run_ranks(2, workplace.train(saving(5)));
  EXPECT_EQ(last.exit_code, 0) << last.output;
  const std::string warning = lines_naming(last.output, folder, "warning");
  EXPECT_EQ(count(warning, "\n"), 1) << last.output;
  expect_parts(warning, {"step 5"});
  EXPECT_EQ(count(warning, "continues"), 0) << warning;
}

// The end names neither a checkpoint nor a command that resumes, as there is no saved state.
TEST(Checkpoints, FailedSaveAtASignalIsAnError) {
  const Workplace workplace("unsaved_stop");
  std::filesystem::create_directories(workplace.path("run"));
  std::ofstream(workplace.path("run/checkpoints")) << "in the way";
  const ProgramResult stopped = run_shell(fmt::format(
      "{} & run=$!\n{}kill -USR1 $run\nwait $run", workplace.train({"model.name=cnn", "train.epochs=100000"}),
      wait_until(fmt::format("[ -s {} ]", workplace.path("run/metrics.jsonl").string()))));
  EXPECT_EQ(stopped.exit_code, exit_code::io) << stopped.output;
  const std::string error =
      lines_naming(stopped.output, "lockstep: ", workplace.path("run/checkpoints").string());
  EXPECT_EQ(count(error, "\n"), 1) << stopped.output;
  expect_parts(error, {"SIGUSR1", "Not a directory"});
  EXPECT_TRUE(std::regex_search(error, std::regex(R"(\bstep \d+)"))) << error;
  for (const char* part : {"is saved in", "--resume auto"})
    EXPECT_EQ(count(stopped.output, part), 0) << part << ":\n" << stopped.output;
}

// A relative run.dir on the disk of each node.
TEST(Checkpoints, FailedOnesAreRemovedFromEachFolderThatARankSees) {
  const Workplace workplace("own_folders");
  const auto folder_of = [&](int rank) { return workplace.path(fmt::format("rank{}/run", rank)); };
  for (const int rank : {0, 1}) std::filesystem::create_directories(folder_of(rank));
  const ProgramResult result = run_ranks(
      2,
      workplace.script(fmt::format("cd {}$OMPI_COMM_WORLD_RANK && exec {}", workplace.path("rank").string(),
                                   workplace.train(saving(23, {"run.dir=run", "run.checkpoint_every=5"})))));
  EXPECT_EQ(result.exit_code, 0) << result.output;
  EXPECT_GE(count(lines_naming(result.output, "warning"), "see the same run.dir"), 1) << result.output;
  for (const int rank : {0, 1}) EXPECT_EQ(checkpoints_in(folder_of(rank) / "checkpoints"), Names()) << rank;
}

// For example, the target of a link is not mounted.
TEST(Checkpoints, ThatCannotBeListedEndTheTraining) {
  const Workplace workplace("unlisted");
  ASSERT_EQ(run_ranks(2, workplace.train(saving(10))).exit_code, 0);
  const auto folder = workplace.path("run/checkpoints");
  std::filesystem::rename(folder, workplace.path("away"));
  std::filesystem::create_directory_symlink(workplace.path("unmounted"), folder);
  expect_failure(go_on(workplace, 2, saving(20)), exit_code::io, {folder.string()});
}

}  // namespace
}  // namespace lockstep
