// SPDX-License-Identifier: Apache-2.0
//
// Trainings by the whole program on several ranks with one GPU each or a shared one. The losses match the
// CPU's, and the bits do not depend on how the device orders work that CUDA leaves unordered.
// emulated_program_test runs these tests on the emulated device, device_program_test on a GPU.
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <map>
#include <regex>

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "tests/cuda_emulator/emulated_run.h"
#include "tests/distance.h"
#include "tests/launch/program/program.h"
#include "tests/launch/program/trace_check.h"

namespace lockstep {
namespace {

// Two steps are enqueued operation by operation; then each of the two slots records a step and replays it.
constexpr const char* kReplaysOfBoth = "train.steps=7";
// A network whose emulated convolutions are fast.
constexpr const char* kNarrow = "model.cnn.width=8";
// The first four steps in fp16 overflow at this scale; with delayed gradients, the first eight.
constexpr const char* kOverflowing = "train.loss_scale=2e6";

struct Trained {
  double train_loss = 0;
  double test_loss = 0;
  double gradient_norm = 0;  // of the last step; 0: not in the log
};

nlohmann::json last_line(const std::filesystem::path& path) {
  std::ifstream file(path);
  nlohmann::json last;
  for (std::string line; std::getline(file, line);) last = nlohmann::json::parse(line);
  return last;
}

// Skipped steps change no parameters: a training that skips them all has the same digest in every order.
void expect_skipped_and_applied_steps(const Workplace& workplace) {
  const nlohmann::json last = last_line(workplace.path("run") / "metrics.jsonl");
  EXPECT_GT(last.at("skipped_steps").get<int>(), 0);
  EXPECT_LT(last.at("skipped_steps").get<int>(), last.at("steps").get<int>());
}

Trained train(const Workplace& workplace, int ranks, const std::string& command) {
  std::filesystem::remove_all(workplace.path("run"));
  const ProgramResult result = run_ranks(ranks, command);
  EXPECT_EQ(result.exit_code, 0) << result.output;
  const nlohmann::json last = last_line(workplace.path("run") / "metrics.jsonl");
  if (!last.contains("test_loss")) return {};
  const nlohmann::json norm = last_line(workplace.path("run") / "steps.jsonl")["gradient_norm"];
  return {.train_loss = last["train_loss"],
          .test_loss = last["test_loss"],
          .gradient_norm = norm.is_number() ? norm.get<double>() : 0};
}

void expect_like_the_cpu(const Settings& settings, int ranks, double tolerance, int side = 12) {
  const Workplace cpu("emulated_cpu", "lockstep", side);
  const Workplace gpu("emulated_gpu", device_program(), side);
  Settings here = {kReplaysOfBoth};
  here.insert(here.end(), settings.begin(), settings.end());
  here.push_back("kernels.choose=direct");  // no timed choices, and no Winograd, which rounds differently
  const Trained wanted = train(cpu, ranks, cpu.train(here));
  here.push_back("world.device=cuda");
  const Trained found = train(gpu, ranks, gpu.train(here));
  EXPECT_NE(wanted.train_loss, 0);
  EXPECT_NEAR(found.train_loss, wanted.train_loss, tolerance * wanted.train_loss) << ranks << " ranks";
  EXPECT_NEAR(found.test_loss, wanted.test_loss, tolerance * wanted.test_loss) << ranks << " ranks";
  // See the comment on ReLU below.
  const double of_norm = std::min(0.1, 200 * tolerance);
  EXPECT_NEAR(found.gradient_norm, wanted.gradient_norm, of_norm * wanted.gradient_norm) << ranks << " ranks";
}

TEST_F(OnDevice, LossesMatchTheCpu) {
  for (const int ranks : {1, 3}) expect_like_the_cpu({"model.name=cnn"}, ranks, 1e-5);
}

// A residual network with frozen layers below all trained ones, where backward does not run, and between
// trained ones, where batch norm propagates gradients.
// Small steps: if a ReLU's input is within a rounding error of zero, the order of summation decides whether
// it passes the gradient. At a learning rate of 0.01, two orders on the CPU already differ by 3e-4 after 20
// steps.
TEST_F(OnDevice, LossesWithFrozenLayersMatchTheCpu) {
  expect_like_the_cpu({"model.name=resnet20", R"(model.freeze=["conv1", "bn1", "layer2", "layer3.0.bn2"])",
                       "train.batch=4", "train.steps=5", "optimizer.learning_rate=1e-4"},
                      2, 1e-5, 8);
}

TEST_F(OnDevice, LossesOfAugmentedImagesMatchTheCpu) {
  expect_like_the_cpu(
      {"model.name=cnn", kNarrow, "data.brightness=0.4", "data.contrast=0.4", "data.crop_padding=2",
       "data.cutout=4", "data.random_erasing=0.5", "data.mixup=0.4", "data.cutmix=1"},
      1, 1e-5);
}

// The device computes the gradient norm, scales the step, and keeps the average that is evaluated.
TEST_F(OnDevice, LossesOfClippedStepsAndAveragedWeightsMatchTheCpu) {
  for (const Settings& way :
       {Settings{"optimizer.clip_norm=0.1", "train.ema_decay=0.9", "train.accumulation=2",
                 "optimizer.name=adamw", "optimizer.learning_rate=1e-3"},
        {"optimizer.clip_norm=0.1", "comm.codec=int8", "comm.compress_within_node=true"}}) {
    Settings settings = {"model.name=cnn", kNarrow};
    settings.insert(settings.end(), way.begin(), way.end());
    expect_like_the_cpu(settings, 2, 1e-4);
  }
}

// The file is written while the device holds the averaged weights in place of the network's.
TEST_F(OnDevice, TheBestNetworkIsTheEvaluatedAverage) {
  const Workplace workplace("emulated_best", device_program());
  const Settings settings = {"train.ema_decay=0.9", "run.keep_best=true", "train.precision=fp16"};
  const ProgramResult trained = run_shell(command_of(workplace, {.settings = settings}, ""));
  ASSERT_EQ(trained.exit_code, 0) << trained.output;
  const double expected = last_line(workplace.path("run") / "metrics.jsonl")["test_loss"];
  const ProgramResult found = run_shell(fmt::format(
      "{} eval {} --json --set model.name=cnn --set train.precision=fp16 --set world.device=cpu --init {}",
      program("lockstep"), workplace.path("config.toml").string(),
      workplace.path("run/best.safetensors").string()));
  ASSERT_EQ(found.exit_code, 0) << found.output;
  const std::size_t begin = found.output.find('{');
  const double loss =
      nlohmann::json::parse(found.output.substr(begin, found.output.find('\n', begin) - begin))["test_loss"];
  EXPECT_NEAR(loss, expected, 1e-2 * expected);
}

// The first steps overflow and are skipped, and weights have 16-bit copies.
TEST_F(OnDevice, ClippingAndAveragingAreTheSameWithAndWithoutRecording) {
  const Workplace workplace("emulated_clip_ema", device_program());
  const Settings settings = {kNarrow,         "optimizer.clip_norm=0.05", "train.ema_decay=0.9",
                             "train.steps=9", "train.precision=fp16",     kOverflowing};
  const std::string recorded = digest_of(workplace, {.settings = settings});
  expect_skipped_and_applied_steps(workplace);
  Settings eager = settings;
  eager.push_back("train.cuda_graph=false");
  EXPECT_EQ(digest_of(workplace, {.settings = eager}), recorded);
}

nlohmann::json metrics_of(const Workplace& workplace, const Settings& settings) {
  const ProgramResult result = run_ranks(2, workplace.train(settings));
  EXPECT_EQ(result.exit_code, 0) << result.output;
  const nlohmann::json line = nlohmann::json::parse(text_of(workplace.path("run/metrics.jsonl")));
  EXPECT_EQ(line["evaluations_within"]["count"], 2);
  return line;
}

// For logits whose order does not depend on rounding.
TEST_F(OnDevice, MetricsEqualTheCpu) {
  const Workplace cpu("metrics_cpu"), gpu("metrics_gpu", device_program());
  Settings settings = {"model.name=cnn", kNarrow, "train.steps=12", "run.metrics=f1, confusion",
                       "run.metrics_every=5"};
  const nlohmann::json wanted = metrics_of(cpu, settings);
  settings.push_back("world.device=cuda");
  const nlohmann::json found = metrics_of(gpu, settings);
  for (const char* name : {"test_accuracy", "f1_macro", "f1_by_class", "confusion"})
    EXPECT_EQ(found[name], wanted[name]) << name;
  EXPECT_GT(found["metrics_seconds"], 0);
}

// Rounded to 8 and 11 bits at each layer, the losses differ by a few roundings.
TEST_F(OnDevice, LossesInHalfPrecisionMatchTheCpuUpToRounding) {
  expect_like_the_cpu({"model.name=cnn", kNarrow, "train.precision=bf16"}, 2, 4 * 0x1p-8);
  expect_like_the_cpu({"model.name=cnn", kNarrow, "train.precision=fp16"}, 2, 4 * 0x1p-8);
}

// Delays of up to 5 ms change the order of unordered work. The delayed device also has another number of
// multiprocessors, and hence other grids. Eager steps leave little more unordered than recorded ones, so
// their delayed order is tested for the last training only.
TEST_F(DigestOnDevice, DoesNotDependOnTheOrderOfTheDeviceOrOnRecording) {
  const std::string delays =
      "LOCKSTEP_EMULATED_SEED=1 LOCKSTEP_EMULATED_DELAY=5ms LOCKSTEP_EMULATED_MULTIPROCESSORS=1";
  const std::vector<Settings> trainings = {
      {kReplaysOfBoth, "train.accumulation=3", "train.recompute=true", "optimizer.name=lars",
       "comm.codec=topk", "comm.topk.warmup_steps=2", "comm.compress_within_node=true",
       "schedule.name=cosine"},
      {kReplaysOfBoth, "train.accumulation=2", "train.recompute=3", "train.precision=bf16",
       "optimizer.name=adamw", "data.crop_padding=2", "data.horizontal_flip=true", "data.mixup=0.4",
       "data.cutmix=1", "data.random_erasing=0.5", "data.contrast=0.5", "comm.codec=powersgd",
       "comm.powersgd.start_step=0", "comm.compress_within_node=true", "schedule.name=cosine"},
      {"train.precision=fp16", "train.steps=11", "train.average_every=2", "train.average_after=1"},
      {"train.precision=fp16", kOverflowing, "train.staleness=1"},
  };
  Settings settings;
  std::string expected;
  for (const Settings& training : trainings) {
    settings = training;
    settings.push_back(kNarrow);
    expected = digest_of(workplace_, {.settings = settings, .machine = delays});
    settings.push_back("train.cuda_graph=false");
    EXPECT_EQ(digest_of(workplace_, {.settings = settings}), expected) << training.front();
  }
  EXPECT_EQ(digest_of(workplace_, {.settings = settings, .machine = delays}), expected);
  expect_skipped_and_applied_steps(workplace_);
}

// The layers of the next step wait for the sums on the device. The first three steps and the last one wait
// for their own sums: the fourth and the fifth cross, one in each slot. None is recorded. Only the first
// training writes a trace, which adds events to the steps.
TEST_F(DigestOnDevice, IsTheSameWithCrossBarrier) {
  const Settings small_buckets = {kNarrow, "train.steps=6", "comm.bucket_mib=[0.001, 0.01, 0.001]"};
  const std::string crossed = workplace_.path("crossed").string();
  const std::filesystem::path trace = workplace_.path("trace.json");
  for (const Settings& way : {Settings{"train.precision=fp32"},
                              {"train.precision=bf16", "train.accumulation=2", "optimizer.name=lars"}}) {
    Settings settings = small_buckets;
    settings.insert(settings.end(), way.begin(), way.end());
    const std::string expected = digest_of(workplace_, {.settings = settings});
    settings.push_back("comm.cross_barrier=true");
    const EmulatedRun run{.settings = settings,
                          .machine = "LOCKSTEP_EMULATED_SEED=1 LOCKSTEP_EMULATED_DELAY=5ms"};
    const bool traces = !std::filesystem::exists(trace);
    const ProgramResult result = run_ranks(
        2, command_of(workplace_, run, "--digest " + crossed + (traces ? " --trace " + trace.string() : "")));
    ASSERT_EQ(result.exit_code, 0) << result.output;
    EXPECT_EQ(text_of(crossed), expected) << way.front();
    expect_ledger_of_every_epoch(workplace_.path("run") / "metrics.jsonl", 2);
  }
  expect_trace_of_ranks(trace, 2);
  Settings settings = small_buckets;
  settings.insert(settings.end(), {"model.name=cnn", "comm.cross_barrier=true"});
  expect_like_the_cpu(settings, 3, 1e-5);
}

// The sum of two ranks does not depend on NCCL's order. Each rank updates half of each bucket.
TEST_F(DigestOnDevice, IsTheSameWithTheShardedExchange) {
  const Settings replayed = {kReplaysOfBoth, "comm.bucket_mib=[0.001, 0.01, 0.001]"};
  const Settings enqueued = {"optimizer.name=adamw",   "train.accumulation=2",     "train.steps=4",
                             "train.ema_decay=0.9",    "train.precision=fp16",     "train.loss_scale=1e5",
                             "train.cuda_graph=false", "train.max_skipped_steps=6"};
  const auto digest = [&](Settings settings, const Settings& more, const std::string& machine = {}) {
    settings.push_back(kNarrow);
    settings.insert(settings.end(), more.begin(), more.end());
    return digest_of(workplace_, {.settings = settings, .machine = machine});
  };
  const Settings sharded = {"comm.exchange=sharded"};
  EXPECT_EQ(digest(replayed, sharded, "LOCKSTEP_EMULATED_SEED=1 LOCKSTEP_EMULATED_DELAY=5ms"),
            digest(replayed, {}));
  EXPECT_EQ(digest(enqueued, sharded), digest(enqueued, {}));
  expect_skipped_and_applied_steps(workplace_);
}

// Evaluations run between replayed steps.
TEST_F(DigestOnDevice, IsTheSameWithEvaluationsMetricsAndHistograms) {
  Settings settings = {kNarrow, "train.steps=9", "train.precision=fp16", kOverflowing};
  const std::string expected = digest_of(workplace_, {.settings = settings});
  expect_skipped_and_applied_steps(workplace_);
  settings.insert(settings.end(), {"run.metrics=f1,confusion", "run.metrics_every=4", "run.histograms=1"});
  const std::string machine =
      "LOCKSTEP_EMULATED_SEED=1 LOCKSTEP_EMULATED_DELAY=2ms LOCKSTEP_EMULATED_PAGEABLE=late";
  EXPECT_EQ(digest_of(workplace_, {.settings = settings, .machine = machine}), expected);
}

// One in sixteen replayed steps records the times of its buckets, so most epochs of four steps have none.
TEST_F(DigestOnDevice, EpochsWithoutATimedExchangeHaveNoCommunicationRecord) {
  const EmulatedRun run{.settings = {"model.name=mlp", "model.mlp.width=32", "train.batch=64",
                                     "train.epochs=5", "train.steps=0"}};
  const ProgramResult result = run_ranks(run.ranks, command_of(workplace_, run, ""));
  ASSERT_EQ(result.exit_code, 0) << result.output;
  std::ifstream file(workplace_.path("run") / "metrics.jsonl");
  std::size_t told = 0, epochs = 0;
  for (std::string line; std::getline(file, line); ++epochs) {
    const nlohmann::json epoch = nlohmann::json::parse(line);
    if (!epoch.contains("communication")) continue;
    ++told;
    EXPECT_GT(epoch["communication"]["wire_seconds"], 0) << line;
  }
  EXPECT_EQ(epochs, 5u);
  EXPECT_EQ(told, 2u) << result.output;
}

// LOCKSTEP_TEST_SEEDS=100 tests 100 orders of all work that the device leaves unordered, including copies of
// pageable memory.
TEST_F(DigestOnDevice, IsTheSameWithEverySeed) {
  const char* asked = std::getenv("LOCKSTEP_TEST_SEEDS");
  const int seeds = asked != nullptr ? std::atoi(asked) : 2;
  const Settings settings = {"train.steps=5", "train.accumulation=2"};
  const std::string expected = digest_of(workplace_, {.settings = settings});
  for (int seed = 1; seed <= seeds; ++seed) {
    const std::string machine = fmt::format(
        "LOCKSTEP_EMULATED_SEED={} LOCKSTEP_EMULATED_DELAY=2ms LOCKSTEP_EMULATED_PAGEABLE=late", seed + 1);
    ASSERT_EQ(digest_of(workplace_, {.settings = settings, .machine = machine}), expected) << seed + 1;
  }
}

// Trains nine steps with a checkpoint after the fifth, and the last four again from the checkpoint.
void expect_same_after_resuming(const Workplace& workplace, const Settings& settings) {
  EmulatedRun run{.settings = settings};
  run.settings.insert(run.settings.end(), {"train.steps=9", "run.checkpoint_every=5"});
  const std::string whole = digest_of(workplace, run);
  const std::string digest = workplace.path("resumed").string();
  const std::string checkpoint = workplace.path("run/checkpoints/step-000000005").string();
  const ProgramResult resumed = run_ranks(
      run.ranks, command_of(workplace, run, fmt::format("--resume {} --digest {}", checkpoint, digest)));
  ASSERT_EQ(resumed.exit_code, 0) << resumed.output;
  EXPECT_GE(count(resumed.output, checkpoint), 1) << resumed.output;
  EXPECT_EQ(text_of(digest), whole);
}

// The checkpoint is saved between replayed steps while one is running; in fp16, resuming creates the weights'
// 16-bit copies again.
TEST_F(DigestOnDevice, IsTheSameAfterResumingFromACheckpoint) {
  expect_same_after_resuming(workplace_, {kNarrow, "train.precision=fp16"});
}

// The density of topk falls during its warm-up, in which the first loss scale skips steps.
TEST_F(DigestOnDevice, IsTheSameAfterResumingWithinTheWarmUpOfACodec) {
  expect_same_after_resuming(workplace_, {kNarrow, "train.precision=fp16", kOverflowing, "comm.codec=topk",
                                          "comm.topk.warmup_steps=12", "comm.compress_within_node=true"});
  expect_skipped_and_applied_steps(workplace_);
}

// The host detects the failed step while the device runs the next one. The saved state is that before the
// failed step. So is the step count of codecs: topk's density falls until step 12. One rank replays the
// failed step; two ranks enqueue it, like every step of topk's warm-up.
TEST_F(DigestOnDevice, IsTheSameAfterResumingFromNonFiniteGradients) {
  for (const int ranks : {1, 2}) {
    SCOPED_TRACE(fmt::format("{} ranks", ranks));
    EmulatedRun run{.ranks = ranks, .settings = {kNarrow, kReplaysOfBoth}};
    if (ranks > 1) {
      run.settings.insert(run.settings.end(),
                          {"comm.codec=topk", "comm.topk.warmup_steps=12", "comm.compress_within_node=true"});
    }
    std::filesystem::remove_all(workplace_.path("run"));
    const std::string whole = digest_of(workplace_, run);
    std::filesystem::remove_all(workplace_.path("run"));
    const ProgramResult failed =
        run_ranks(run.ranks, command_of(workplace_, run, "--inject nan:rank=0,step=5"));
    EXPECT_EQ(failed.exit_code, exit_code::failed) << failed.output;
    const std::regex origin(R"(\bstep 5\b[^\n]*\brank 0\b[^\n]*\bparameter \S+\.bias\b)");
    EXPECT_EQ(std::distance(std::sregex_iterator(failed.output.begin(), failed.output.end(), origin), {}), 1)
        << failed.output;
    const std::string digest = workplace_.path("resumed").string();
    const ProgramResult resumed =
        run_ranks(run.ranks, command_of(workplace_, run, "--resume auto --digest " + digest));
    ASSERT_EQ(resumed.exit_code, 0) << resumed.output;
    EXPECT_GE(count(resumed.output, "checkpoints/step-000000004"), 1) << resumed.output;
    EXPECT_EQ(text_of(digest), whole);
  }
}

TEST_F(DigestOnDevice, DropoutAndSeveralRanksAreRepeatable) {
  const EmulatedRun run{.ranks = 4, .settings = {kNarrow, "model.dropout=0.3", "train.steps=3"}};
  EXPECT_EQ(digest_of(workplace_, run), digest_of(workplace_, run));
}

// Measured by the driver's free memory: Lockstep's own buffers as planned, plus the memory of libraries.
TEST_F(DigestOnDevice, MemoryOfTheDeviceIsMeasured) {
  const EmulatedRun run{.settings = {"train.steps=3"}};
  const ProgramResult result = run_ranks(2, command_of(workplace_, run, ""));
  ASSERT_EQ(result.exit_code, 0) << result.output;
  const nlohmann::json record = nlohmann::json::parse(text_of(workplace_.path("run/run.json")));
  double planned = 0;
  for (const auto& [name, bytes] : record["planned_bytes"]["device"].items()) planned += bytes.get<double>();
  const nlohmann::json before = record["device_memory"];
  const nlohmann::json after = last_line(workplace_.path("run/metrics.jsonl"))["device_memory"];
  for (const nlohmann::json& use : {before, after}) {
    const auto bytes = [&](const char* part) { return use[part].get<double>(); };
    EXPECT_EQ(bytes("at_start") + bytes("buffers") + bytes("libraries") + bytes("available"), bytes("total"))
        << use;
  }
  EXPECT_GE(after["buffers"].get<double>(), 0.9 * planned) << record["planned_bytes"];
}

// Batches are gathered on the device, or copied for each step; with a short batch and augmented images.
TEST_F(DigestOnDevice, IsTheSameWithImagesInDeviceMemory) {
  const auto file = workplace_.path("digest");
  std::string expected;
  for (const std::string loader : {"stream", "auto"}) {
    const EmulatedRun run{
        .settings = {kNarrow, "train.epochs=3", kReplaysOfBoth, "train.batch=25", "train.accumulation=2",
                     "data.tail=exact", "data.crop_padding=2", "data.cutout=3", "data.loader=" + loader},
        .machine = loader == "auto" ? "LOCKSTEP_EMULATED_SEED=1 LOCKSTEP_EMULATED_DELAY=5ms" : ""};
    const ProgramResult result = run_ranks(2, command_of(workplace_, run, "--digest " + file.string()));
    ASSERT_EQ(result.exit_code, 0) << result.output;
    const nlohmann::json record = nlohmann::json::parse(text_of(workplace_.path("run/run.json")));
    EXPECT_EQ(record.at("planned_bytes").at("device").contains("dataset"), loader != "stream") << record;
    if (expected.empty()) expected = text_of(file);
    EXPECT_EQ(text_of(file), expected) << loader;
  }
}

struct Interval {
  double begin;
  double end;
};

// The intervals of rank 0 by name, in the order of steps, in microseconds.
std::map<std::string, std::vector<Interval>> intervals_of(const std::filesystem::path& trace) {
  std::map<std::string, std::vector<Interval>> found;
  const nlohmann::json whole = nlohmann::json::parse(text_of(trace));
  for (const nlohmann::json& event : whole.at("traceEvents")) {
    if (event["ph"] != "X" || event["pid"] != 0) continue;
    const double begin = event["ts"];
    found[event["name"]].push_back({begin, begin + event["dur"].get<double>()});
  }
  return found;
}

// On the device, phases of a step and steps follow one another without overlap. Buckets are summed one by
// one, the first after the start of backward, and the exchange ends after the last.
void expect_spans_of_every_step(const std::filesystem::path& trace, std::size_t steps) {
  constexpr double kRounded = 1;
  std::map<std::string, std::vector<Interval>> spans = intervals_of(trace);
  std::vector<std::vector<Interval>> buckets;
  while (spans.contains(fmt::format("bucket {}", buckets.size())))
    buckets.push_back(spans[fmt::format("bucket {}", buckets.size())]);
  EXPECT_GT(buckets.size(), 2u);
  for (const auto& [name, each] : spans) ASSERT_EQ(each.size(), steps) << name;
  double end = 0;
  for (std::size_t step = 0; step < steps; ++step) {
    SCOPED_TRACE(fmt::format("step {}", step));
    for (const char* name : {"data", "forward", "backward", "exchange", "optimizer"}) {
      EXPECT_GE(spans.at(name)[step].begin, end - kRounded) << name;
      EXPECT_GE(spans.at(name)[step].end, spans.at(name)[step].begin) << name;
      end = spans.at(name)[step].end;
    }
    double bucket_end = spans.at("backward")[step].begin;
    for (const std::vector<Interval>& bucket : buckets) {
      EXPECT_GE(bucket[step].begin, bucket_end - kRounded);
      EXPECT_GT(bucket[step].end, bucket[step].begin);
      bucket_end = bucket[step].end;
    }
    EXPECT_LE(bucket_end, spans.at("exchange")[step].end + kRounded);
  }
}

TEST_F(DigestOnDevice, TracesRecordedStepsAndStartsFromAnExport) {
  const auto file = workplace_.path("x.safetensors").string();
  const auto trace = workplace_.path("trace.json");
  const EmulatedRun traced{.settings = {kNarrow, kReplaysOfBoth, "comm.bucket_mib=[0.002, 0.01, 0.002]"}};
  const ProgramResult exported = run_ranks(
      2, command_of(workplace_, traced, fmt::format("--export {} --trace {}", file, trace.string())));
  ASSERT_EQ(exported.exit_code, 0) << exported.output;
  const std::regex recording(R"(\b[1-9]\d* operations\b)");  // of the recorded step
  EXPECT_EQ(
      std::distance(std::sregex_iterator(exported.output.begin(), exported.output.end(), recording), {}), 1)
      << exported.output;
  expect_spans_of_every_step(trace, 7);
  expect_trace_of_ranks(trace, 2);
  expect_ledger_of_every_epoch(workplace_.path("run") / "metrics.jsonl", 2);
  const ProgramResult again =
      run_ranks(2, command_of(workplace_, {.settings = {kNarrow, "train.steps=1"}}, "--init " + file));
  EXPECT_EQ(again.exit_code, 0) << again.output;
  EXPECT_GE(count(again.output, file), 1) << again.output;
}

}  // namespace
}  // namespace lockstep
