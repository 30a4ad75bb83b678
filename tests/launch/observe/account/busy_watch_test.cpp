// SPDX-License-Identifier: Apache-2.0
#include "launch/observe/account/busy_watch.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <fstream>
#include <optional>
#include <regex>
#include <set>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <poll.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "launch/observe/run_files/event_command.h"
#include "tests/message_of.h"
#include "tests/temporary_folder.h"

namespace lockstep {
namespace {

// 10 steps in 10 s: `seconds` in the given phase, the rest in backward.
StepLine line_of(std::int64_t step, Phase phase, double seconds) {
  StepLine line{.epoch = 1, .step = step, .steps = 10};
  line.samples_per_second = 100;
  line.account[Phase::backward] = 10 - seconds;
  line.account[phase] += seconds;
  line.busy = 1 - seconds / 10;
  return line;
}

StepLine without_core(std::int64_t step, double seconds) {
  StepLine line = line_of(step, Phase::rest, 0);
  line.without_core_seconds = seconds;
  line.busy = 1 - seconds / 10;
  return line;
}

const IdleContext kTwoRanks{.ranks = 2};

std::string cause_of(const StepLine& line, const IdleContext& context = kTwoRanks) {
  const auto cause = find_idle_cause(line, context, std::nullopt);
  return cause ? cause->cause + ": " + cause->change : "none";
}

TEST(IdleCause, IsTheLargestLoss) {
  EXPECT_EQ(cause_of(line_of(10, Phase::data_wait, 4)), "data: data.loader=preload");
  EXPECT_EQ(cause_of(line_of(10, Phase::exposed_communication, 4)), "communication: train.accumulation=16");
  EXPECT_EQ(cause_of(line_of(10, Phase::rest, 4)), "small_work: train.batch=16");
  EXPECT_EQ(cause_of(without_core(10, 4)).substr(0, 12), "allocation: ");
  EXPECT_EQ(cause_of(line_of(10, Phase::data_wait, 0.4)), "none") << "less than 1/20 of the time";
  StepLine both = line_of(10, Phase::data_wait, 3);
  both.account[Phase::exposed_communication] = 4;
  EXPECT_EQ(cause_of(both).substr(0, 13), "communication");
}

TEST(IdleCause, ProposesASettingNotYetUsed) {
  const StepLine data = line_of(10, Phase::data_wait, 4);
  EXPECT_NE(cause_of(data, {.decodes = true, .may_keep = false}).find("lockstep pack"), std::string::npos);
  EXPECT_EQ(cause_of(data, {.decodes = true}), "data: data.loader=preload");
  const std::string random_crops =
      cause_of(data, {.decodes = true, .draws = true, .reads_files = true, .may_keep = false});
  expect_parts(random_crops, {"data: ", "cores"});
  EXPECT_EQ(random_crops.find("lockstep pack"), std::string::npos) << random_crops;
  expect_parts(cause_of(data, {.reads_files = true, .may_keep = false}), {"data: no setting", "disk"});
  EXPECT_EQ(cause_of(data, {.reads_files = true, .may_keep = false, .loader_threads = 1}),
            "data: data.loader_threads=0");
  EXPECT_EQ(cause_of(data, {.reads_files = true, .loader_threads = 1}), "data: data.loader=preload");
  EXPECT_EQ(cause_of(data, {.may_keep = false, .loader_threads = 1}), "data: data.loader_threads=0");
  const std::string in_memory = cause_of(data, {.threads = 2, .may_keep = false});
  expect_parts(in_memory, {"data: ", "train.threads=1"});
  EXPECT_EQ(in_memory.find("disk"), std::string::npos) << in_memory;
  EXPECT_EQ(cause_of(data, {.preloads = true, .loader_threads = 1}), "data: data.loader_threads=0");
  EXPECT_EQ(cause_of(data, {.decodes = true, .may_keep = false, .preloads = true, .loader_threads = 1}),
            "data: data.loader_threads=0")
      << "kept images are not decoded again";
  expect_parts(cause_of(data, {.threads = 2, .preloads = true}), {"data: ", "train.threads=1"});
  EXPECT_EQ(cause_of(data, {.on_gpu = true, .threads = 2, .preloads = true}).find("train.threads"),
            std::string::npos)
      << "on a GPU no compute thread takes the loader's cores";
  const std::string one_thread = cause_of(data, {.local_ranks = 2, .preloads = true});
  expect_parts(one_thread, {"data: ", "--ranks"});
  expect_parts(cause_of(data, {.preloads = true}), {"data: no setting", "more cores"});
  EXPECT_EQ(one_thread.find("train.threads"), std::string::npos) << "a rank has at least one thread";
  const StepLine idle = line_of(10, Phase::idle, 4);
  EXPECT_EQ(cause_of(idle, {.on_gpu = true}), "small_work: train.cuda_graph=true");
  EXPECT_EQ(cause_of(idle, {.on_gpu = true, .times_collectives = true}),
            "small_work: train.cuda_graph=true with comm.kernel_times=false");
  EXPECT_EQ(cause_of(idle, {.on_gpu = true, .records_steps = true, .batch = 64}),
            "small_work: train.batch=1024");
  const std::string fewer_threads =
      cause_of(without_core(10, 4), {.local_ranks = 4, .threads = 2, .cores = 4});
  expect_parts(fewer_threads, {"allocation: ", "8 threads", "4 ranks", "4 cores", "train.threads=1"});
  const std::string fewer_ranks = cause_of(without_core(10, 4), {.local_ranks = 4, .threads = 1, .cores = 2});
  expect_parts(fewer_ranks, {"allocation: ", "4 threads", "4 ranks", "2 cores", "2 ranks", "--ranks 2"});
  const std::string of_two_nodes =
      cause_of(without_core(10, 4), {.ranks = 8, .local_ranks = 4, .threads = 1, .cores = 2});
  expect_parts(of_two_nodes, {"2 ranks on each node", "ppr:2:node"});
  EXPECT_EQ(of_two_nodes.find("--ranks"), std::string::npos) << "--ranks is the number on all nodes";
  EXPECT_EQ(fewer_ranks.find("train.threads"), std::string::npos) << fewer_ranks;
  // There are enough cores, so other processes use them.
  const std::string others = cause_of(without_core(10, 4), {.local_ranks = 2, .threads = 2, .cores = 4});
  expect_parts(others, {"allocation: ", "4 threads", "4 cores"});
  EXPECT_EQ(others.find("train.threads"), std::string::npos) << others;
}

TEST(IdleCause, WaitingForCheckpointsIsMonitoring) {
  StepLine line = line_of(10, Phase::rest, 4);
  line.saving_seconds = 3;
  const IdleContext by_steps{.checkpoint_every = 5, .checkpoint_minutes = 15};
  EXPECT_EQ(cause_of(line, by_steps), "monitoring: run.checkpoint_every=80");
  EXPECT_EQ(cause_of(line, {.checkpoint_minutes = 0.5}), "monitoring: run.checkpoint_minutes=8");
  EXPECT_EQ(cause_of(line, {.checkpoint_every = 60, .checkpoint_minutes = 0.5}),
            "monitoring: run.checkpoint_minutes=8")
      << "60 steps take a minute";
  expect_parts(cause_of(line, {.on_gpu = true}), {"monitoring: no setting", "SIGUSR2"});
  BusyWatch watch({.below = 0.7, .lines = 2}, by_steps);
  for (int i = 0; i < 2; ++i) EXPECT_FALSE(watch.look(line, 0));
  const auto event = watch.look(line, 0);
  ASSERT_TRUE(event);
  EXPECT_EQ(event->cause.key, "run.checkpoint_every");
  EXPECT_DOUBLE_EQ(event->cause.lost_seconds, 6) << "of two lines";
  line.saving_seconds = 1;
  EXPECT_EQ(cause_of(line, by_steps), "small_work: train.batch=16") << "the rest of the time";
}

TEST(BusyWatch, FiguresOfUnequalLinesAreOfTheirWholeTime) {
  StepLine fast = line_of(10, Phase::data_wait, 5), slow = line_of(20, Phase::data_wait, 18);
  fast.without_core_seconds = 1;
  slow.account[Phase::backward] = 12;
  slow.samples_per_second = 20;
  slow.without_core_seconds = 3;
  slow.busy = 0.3;
  BusyWatch watch({.below = 0.7, .lines = 2}, kTwoRanks);
  for (int i = 0; i < 2; ++i) EXPECT_FALSE(watch.look(fast, 0));
  const auto event = watch.look(slow, 0);
  ASSERT_TRUE(event);
  EXPECT_DOUBLE_EQ(event->lines.samples_per_second, 40);
  EXPECT_DOUBLE_EQ(event->lines.without_core_seconds, 4);
  EXPECT_DOUBLE_EQ(event->lines.busy, 0.325);
  EXPECT_EQ(event->lines.steps, 20);
}

TEST(IdleCause, NumberOfThreadsInTheTextIsAlsoKeyAndValue) {
  const IdleContext shared{.local_ranks = 4, .threads = 2, .cores = 4};
  const IdleContext preloaded{.threads = 2, .preloads = true};
  for (const auto& cause : {find_idle_cause(without_core(10, 4), shared, std::nullopt),
                            find_idle_cause(line_of(10, Phase::data_wait, 4), preloaded, std::nullopt)}) {
    ASSERT_TRUE(cause);
    EXPECT_EQ(cause->key, "train.threads") << cause->change;
    EXPECT_EQ(cause->value, "1") << cause->change;
  }
}

// Peers wait for a rank without a core: the apparent communication time is caused by missing cores.
TEST(IdleCause, MoreThreadsThanCoresIsAllocation) {
  StepLine line = line_of(10, Phase::exposed_communication, 5);
  line.without_core_seconds = 1;
  line.busy = 0.4;
  const auto cause = find_idle_cause(line, {.local_ranks = 4, .threads = 1, .cores = 2}, std::nullopt);
  ASSERT_TRUE(cause);
  EXPECT_EQ(cause->cause, "allocation");
  EXPECT_DOUBLE_EQ(cause->lost_seconds, 6);
  EXPECT_DOUBLE_EQ(cause->samples_per_second, 125) << "1.6 of the 2 cores compute already";
}

TEST(IdleCause, RestrictedAffinityIsAllocation) {
  const IdleContext context{.local_ranks = 2, .threads = 1, .cores = 1, .machine_cores = 8};
  expect_parts(cause_of(without_core(10, 4), context), {"allocation: ", "8 cores", "mpirun --bind-to none"});
}

// All cores compute. Loaders take cores that ranks lack, so peers wait for these ranks.
TEST(IdleCause, LoadersThatOccupyTheCoresAreData) {
  StepLine line = line_of(10, Phase::exposed_communication, 2);
  line.without_core_seconds = 1;
  line.loader_seconds = 2.5;
  IdleContext context{.ranks = 2, .local_ranks = 2, .threads = 1, .cores = 2, .decodes = true};
  const auto cause = find_idle_cause(line, context, std::nullopt);
  ASSERT_TRUE(cause);
  EXPECT_EQ(cause->cause, "data");
  EXPECT_DOUBLE_EQ(cause->lost_seconds, 2.5);
  EXPECT_NE(cause->evidence.find("cores"), std::string::npos) << cause->evidence;
  context.cores = 4;
  EXPECT_EQ(find_idle_cause(line, context, std::nullopt)->cause, "communication")
      << "the loader threads have enough cores";
  line = without_core(10, 3);
  line.loader_seconds = 2;
  context.cores = 2;
  EXPECT_EQ(find_idle_cause(line, context, std::nullopt)->cause, "data")
      << "other programs take only a third";
}

// Time outside training (evaluation) may compute, but the line counts as idle.
TEST(IdleCause, EvaluationAndReportingIsMonitoring) {
  StepLine line = line_of(10, Phase::rest, 0);
  line.evaluation_seconds = 10;
  EXPECT_DOUBLE_EQ(overall_busy(line), 0.5);
  EXPECT_DOUBLE_EQ(overall_rate(line), 50);
  const auto cause = find_idle_cause(line, {.metrics_every = 20}, std::nullopt);
  ASSERT_TRUE(cause);
  EXPECT_EQ(cause->cause, "monitoring");
  EXPECT_EQ(cause->change, "run.metrics_every=640") << "less than a twentieth of the time";
  EXPECT_NEAR(cause->samples_per_second, 50 / (1 - 0.5 * 31 / 32), 1e-9);
  line = line_of(10, Phase::rest, 4);
  line.telling_seconds = 3;
  EXPECT_EQ(cause_of(line, {.log_every = 1}), "monitoring: run.log_every=16");
  EXPECT_EQ(cause_of(line, {.log_every = 9, .epoch_steps = 10}), "monitoring: run.log_every=144");
  const auto short_epochs = find_idle_cause(line, {.log_every = 10, .epoch_steps = 10}, std::nullopt);
  ASSERT_TRUE(short_epochs);
  EXPECT_EQ(short_epochs->key + "=" + short_epochs->value, "run.log_every=0") << short_epochs->change;
  EXPECT_EQ(numbers_named_in(short_epochs->change), (std::vector<double>{0, 10})) << short_epochs->change;
  line.telling_seconds = 1;
  EXPECT_EQ(cause_of(line, {.log_every = 1}), "small_work: train.batch=16");
}

TEST(IdleCause, EstimatesIncludeEvaluations) {
  StepLine line = line_of(10, Phase::exposed_communication, 8);
  line.evaluation_seconds = 5;
  const Advice advice{.cause = "slow_wire", .samples_per_second = 200};
  const auto cause = find_idle_cause(line, kTwoRanks, advice);
  ASSERT_TRUE(cause);
  EXPECT_EQ(cause->cause, "communication");
  EXPECT_NEAR(cause->samples_per_second, 100, 1e-9) << "1000 samples in 5 s and an evaluation of 5 s";
  EXPECT_NEAR(cause_of(SlowedDevice{.name = "GPU 0", .share_of_clock = 0.5}, line).samples_per_second,
              1000 / 7.5, 1e-9);
}

// A single rank waits for its own thread.
TEST(IdleCause, SingleRankHasNoCommunication) {
  const StepLine line = line_of(10, Phase::exposed_communication, 4);
  EXPECT_EQ(cause_of(line, {.cores = 2}).substr(0, 12), "allocation: ");
}

// Not even twice the batch fits: the cause is memory.
TEST(IdleCause, BatchThatDoesNotFitIsMemory) {
  IdleContext context{.batch = 64};
  std::int64_t smallest = 1 << 20;
  context.room = [&smallest](std::int64_t batch) {
    smallest = std::min(smallest, batch);
    return BatchRoom{.fits = false,
                     .needed = std::size_t{3} << 30,
                     .available = std::size_t{2} << 30,
                     .remedies = {"train.recompute=true", "train.precision=bf16"}};
  };
  const auto cause = find_idle_cause(line_of(10, Phase::rest, 4), context, std::nullopt);
  ASSERT_TRUE(cause);
  EXPECT_EQ(cause->cause, "memory");
  expect_parts(cause->evidence, {" 128 ", "3.00 GiB", "2.00 GiB"});
  expect_parts(cause->change, {"train.recompute=true", "train.precision=bf16", "train.batch=128"});
  EXPECT_EQ(cause->key + "=" + cause->value, "train.recompute=true");
  EXPECT_EQ(smallest, 128);
  context.room = [](std::int64_t batch) { return BatchRoom{.fits = batch <= 256}; };
  EXPECT_EQ(cause_of(line_of(10, Phase::rest, 4), context), "small_work: train.batch=256")
      << "the largest that fits";
  context.room = [](std::int64_t) { return BatchRoom{.fits = false}; };
  EXPECT_EQ(cause_of(line_of(10, Phase::rest, 4), context), "memory: train.accumulation=16");
}

// 10 steps of 1 s, all in backward.
std::optional<IdleCause> find_slow(const ComputeRoof& roof, IdleContext context = {}) {
  context.roof = [&] { return roof; };
  return find_slow_cause(line_of(10, Phase::rest, 0), context);
}

std::string slow_cause(const ComputeRoof& roof, const IdleContext& context = {}) {
  const auto cause = find_slow(roof, context);
  return cause ? cause->cause + ": " + cause->change : "none";
}

TEST(SlowCause, IsTheLargestLossOfCompute) {
  EXPECT_EQ(slow_cause({.products = 0.01, .memory = 0.8, .weights = 0.7, .kernels = 10}),
            "small_work: train.batch=64");
  const ComputeRoof bound{.products = 0.01, .memory = 0.8, .kernels = 10, .bound_by_memory = {"batch norm"}};
  const auto bound_by_memory = find_slow(bound);
  ASSERT_TRUE(bound_by_memory);
  EXPECT_EQ(bound_by_memory->cause, "architecture");
  expect_parts(bound_by_memory->evidence, {"batch norm"});
  expect_parts(bound_by_memory->change, {"no setting", "lockstep profile"});
  EXPECT_EQ(bound_by_memory->samples_per_second, 0) << "no setting, no promise";
  EXPECT_EQ(slow_cause(bound, {.on_gpu = true, .halves_are_fast = true}),
            "architecture: train.precision=bf16");
  const auto unfilled = find_slow({.products = 0.1,
                                   .kernels = 10,
                                   .unfilled = 0.4,
                                   .unfilled_layer = "conv",
                                   .unfilled_channels = 17,
                                   .channels = 8});
  ASSERT_TRUE(unfilled);
  EXPECT_EQ(unfilled->cause, "architecture");
  expect_parts(unfilled->evidence, {"40 %", "conv", "17 channels"});
  expect_parts(unfilled->change, {"no setting", "channels"});
  EXPECT_EQ(numbers_named_in(unfilled->change), std::vector<double>{8}) << unfilled->change;
  EXPECT_EQ(slow_cause({.products = 0.1, .kernels = 10}), "architecture: kernels.choose=time");
  expect_parts(slow_cause({.products = 0.1, .kernels = 10}, {.may_time_kernels = false}),
               {"architecture: no setting", "lockstep profile"});
  EXPECT_EQ(slow_cause({.products = 0.1, .kernels = 100'000}), "small_work: train.batch=64")
      << "kernels of 10 us";
  EXPECT_EQ(slow_cause({.products = 0.1, .kernels = 40'000}, {.on_gpu = true}), "small_work: train.batch=64")
      << "kernels of 25 us: a part of a GPU has no work";
  EXPECT_EQ(slow_cause({.products = 0.1, .kernels = 20'000}), "small_work: train.batch=64")
      << "kernels of 50 us on a CPU";
  EXPECT_EQ(slow_cause({.products = 0.1, .kernels = 20'000}, {.on_gpu = true}),
            "architecture: kernels.choose=time")
      << "the same on a GPU";
  EXPECT_FALSE(find_slow_cause(line_of(10, Phase::rest, 0), {})) << "nothing was measured";
}

// Each micro-batch reads the weights, and each step updates them once.
TEST(SlowCause, AccumulationSharesOnlyTheUpdate) {
  IdleContext context;
  context.room = [](std::int64_t) { return BatchRoom{.fits = false}; };
  context.roof = [] { return ComputeRoof{.products = 0.01, .memory = 0.8, .weights = 0.7, .kernels = 10}; };
  const auto reading = find_slow_cause(line_of(10, Phase::rest, 0), context);
  ASSERT_TRUE(reading);
  EXPECT_EQ(reading->cause + ": " + reading->change,
            "memory: no setting changes this: no larger batch fits in memory");
  const auto update = find_slow_cause(line_of(10, Phase::optimizer, 4), context);
  ASSERT_TRUE(update);
  EXPECT_EQ(update->cause + ": " + update->change, "memory: train.accumulation=16");
}

TEST(SlowCause, LargerBatchSharesTheUpdate) {
  IdleContext context;
  context.roof = [] { return ComputeRoof{.products = 0.3, .kernels = 10}; };
  const auto cause = find_slow_cause(line_of(10, Phase::optimizer, 6), context);
  ASSERT_TRUE(cause);
  EXPECT_EQ(cause->cause, "small_work");
  EXPECT_DOUBLE_EQ(cause->lost_seconds, 6);
  EXPECT_EQ(cause->change, "train.batch=32");
  EXPECT_NEAR(cause->samples_per_second, 100 / (1 - 0.6 * 31 / 32), 1e-9);
}

TEST(IdleCause, DatasetLimitsTheBatch) {
  EXPECT_EQ(cause_of(line_of(10, Phase::rest, 4), {.batch = 8, .most_batch = 40}),
            "small_work: train.batch=32");
  expect_parts(cause_of(line_of(10, Phase::rest, 4), {.batch = 8, .most_batch = 15}),
               {"small_work: no setting", "samples"});
  EXPECT_EQ(
      cause_of(line_of(10, Phase::exposed_communication, 4), {.ranks = 2, .batch = 8, .most_batch = 40}),
      "communication: train.accumulation=4");
}

TEST(SlowCause, NamesTheWidthOfANetwork) {
  const ComputeRoof roof{.products = 0.1,
                         .kernels = 10,
                         .unfilled = 0.4,
                         .unfilled_layer = "conv1",
                         .unfilled_channels = 34,
                         .channels = 8};
  IdleContext context;
  context.width = [](const std::string& layer, std::int64_t channels) {
    EXPECT_EQ(layer, "conv1");
    EXPECT_EQ(channels, 34);
    return std::optional(WidthSetting{"model.cnn.width", 17});
  };
  const auto cause = find_slow(roof, context);
  ASSERT_TRUE(cause);
  EXPECT_EQ(cause->change, "model.cnn.width=24");
  EXPECT_GT(cause->samples_per_second, 100);
}

// A reader can always act on a setting, a command or a flag, or learns that there is none.
TEST(IdleCause, ChangeIsASettingOrACommandOrSaysThatThereIsNone) {
  const ComputeRoof memory{.products = 0.01, .memory = 0.8, .kernels = 10, .bound_by_memory = {"batch norm"}};
  const ComputeRoof unfilled{
      .products = 0.1, .kernels = 10, .unfilled = 0.4, .unfilled_layer = "conv", .channels = 8};
  StepLine evaluated = line_of(10, Phase::rest, 0);
  evaluated.evaluation_seconds = 10;
  std::vector<std::optional<IdleCause>> causes;
  for (const IdleContext& context :
       {IdleContext{}, IdleContext{.ranks = 2}, IdleContext{.on_gpu = true, .may_time_kernels = false},
        IdleContext{.local_ranks = 4, .cores = 2},
        IdleContext{.local_ranks = 2, .cores = 1, .machine_cores = 8},
        IdleContext{.decodes = true, .may_keep = false}, IdleContext{.reads_files = true, .may_keep = false},
        IdleContext{.preloads = true, .may_time_kernels = false}}) {
    for (const Phase phase : {Phase::data_wait, Phase::exposed_communication, Phase::rest, Phase::idle})
      causes.push_back(find_idle_cause(line_of(10, phase, 4), context, std::nullopt));
    causes.push_back(find_idle_cause(without_core(10, 4), context, std::nullopt));
    causes.push_back(find_idle_cause(evaluated, context, std::nullopt));
    for (const ComputeRoof& roof : {memory, unfilled, ComputeRoof{.products = 0.1, .kernels = 10}})
      causes.push_back(find_slow(roof, context));
  }
  causes.emplace_back(
      cause_of(SlowedDevice{.name = "GPU 0", .share_of_clock = 0.5}, line_of(10, Phase::rest, 0)));
  std::set<std::string> seen;
  for (const std::optional<IdleCause>& cause : causes) {
    if (!cause) continue;
    seen.insert(cause->cause);
    const bool acts =
        std::ranges::any_of(std::array{"lockstep pack", "--ranks", "--bind-to"},
                            [&](const char* word) { return cause->change.find(word) != std::string::npos; });
    EXPECT_TRUE(!cause->key.empty() || acts || cause->change.starts_with("no setting")) << cause->change;
  }
  EXPECT_EQ(seen, (std::set<std::string>{"allocation", "architecture", "communication", "data", "monitoring",
                                         "small_work"}));
}

TEST(IdleCause, GainEqualsTheLostTime) {
  const auto data = find_idle_cause(line_of(10, Phase::data_wait, 5), {}, std::nullopt);
  EXPECT_DOUBLE_EQ(data->samples_per_second, 200);
  const auto half = find_idle_cause(line_of(10, Phase::rest, 5), {}, std::nullopt);
  EXPECT_EQ(half->change, "train.batch=32");
  EXPECT_NEAR(half->samples_per_second, 100 / (1 - 0.5 * 31 / 32), 1e-9) << "a sample bears 1/32 of the cost";
  Advice advice{.cause = "slow_wire"};
  advice.key = "comm.codec";
  const auto known = find_idle_cause(line_of(10, Phase::exposed_communication, 5), kTwoRanks, advice);
  EXPECT_EQ(known->key, "comm.codec");
  EXPECT_EQ(known->samples_per_second, 100) << "never less than now";
}

constexpr BusyOptions kOptions{.below = 0.7, .lines = 3, .pause_seconds = 60};

// A watch that has seen the first line of a run.
BusyWatch watching(const BusyOptions& options, const IdleContext& context = {}) {
  BusyWatch watch(options, context);
  EXPECT_FALSE(watch.look(line_of(0, Phase::data_wait, 10), 0));
  return watch;
}

TEST(BusyWatch, ConsecutiveIdleLinesCauseOneEvent) {
  BusyWatch watch = watching(kOptions);
  int told = 0;
  for (std::int64_t i = 1; i <= 20; ++i) {
    const auto event = watch.look(line_of(10 * i, Phase::data_wait, 5), 100.0 * static_cast<double>(i));
    if (!event) continue;
    ++told;
    EXPECT_EQ(i, 3);
    EXPECT_EQ(event->first_step, 1);
    EXPECT_EQ(event->lines.step, 30);
    EXPECT_DOUBLE_EQ(event->lines.account[Phase::data_wait], 15);
    EXPECT_DOUBLE_EQ(overall_busy(event->lines), 0.5);
    EXPECT_EQ(event->cause.cause, "data");
    expect_parts(to_text(*event), {"50 %", "data.loader=preload", "200 samples/s", "+100 %"});
    EXPECT_TRUE(std::regex_search(to_text(*event), std::regex(R"(\bsteps? 1\D+30\b)"))) << to_text(*event);
  }
  EXPECT_EQ(told, 1) << "the cause is the same";
}

// On a ring a fast rank takes more steps than it counts.
TEST(BusyWatch, FirstStepFollowsThePreviousLine) {
  BusyWatch watch = watching({.below = 0.7, .lines = 1});
  EXPECT_FALSE(watch.look(line_of(4, Phase::data_wait, 1), 0));
  const auto event = watch.look(line_of(8, Phase::data_wait, 5), 0);
  ASSERT_TRUE(event);
  EXPECT_EQ(event->first_step, 5);
}

TEST(BusyWatch, ALineWithoutStepsHasFiniteFigures) {
  BusyWatch watch = watching({.below = 0.7, .lines = 1});
  StepLine line = line_of(8, Phase::data_wait, 5);
  line.steps = 0;
  const auto event = watch.look(line, 0);
  ASSERT_TRUE(event);
  const std::string text = event->cause.evidence + event->cause.change;
  for (const char* wrong : {"inf", "nan"}) EXPECT_EQ(text.find(wrong), std::string::npos) << text;
}

TEST(BusyWatch, BusyLineInBetweenPreventsTheEvent) {
  BusyWatch watch = watching(kOptions);
  for (std::int64_t i = 1; i <= 30; ++i)
    EXPECT_FALSE(watch.look(line_of(i, Phase::data_wait, i % 3 == 0 ? 1 : 5), 0));
  BusyWatch never = watching({.below = 0});
  for (std::int64_t i = 1; i <= 5; ++i) EXPECT_FALSE(never.look(line_of(i, Phase::data_wait, 10), 0));
}

// A value near the threshold is reported once. A new event follows, after a pause, when the device was busy
// for long or the cause changes.
TEST(BusyWatch, NewEventFollowsABusyPeriodOrAnotherCause) {
  BusyWatch watch = watching(kOptions);
  double now = 0;
  const auto told = [&](Phase phase, double lost, int lines) {
    int events = 0;
    for (int i = 0; i < lines; ++i) events += watch.look(line_of(10, phase, lost), now).has_value() ? 1 : 0;
    return events;
  };
  EXPECT_EQ(told(Phase::data_wait, 5, 6), 1);
  now = 1000;
  EXPECT_EQ(told(Phase::data_wait, 2.8, 5), 0) << "72 %";
  EXPECT_EQ(told(Phase::data_wait, 5, 6), 0) << "the device was never busy in between";
  EXPECT_EQ(told(Phase::data_wait, 1, 3), 0);
  EXPECT_EQ(told(Phase::data_wait, 5, 6), 1);
  now += 59;
  EXPECT_EQ(told(Phase::exposed_communication, 5, 3), 0) << "too soon after the last event";
  now += 1;
  EXPECT_EQ(told(Phase::exposed_communication, 5, 3), 1);
}

TEST(BusyWatch, EventIsOneLineOfJson) {
  BusyWatch watch = watching({.below = 0.7, .lines = 1});
  const auto event = watch.look(line_of(10, Phase::data_wait, 5), 0);
  ASSERT_TRUE(event);
  const std::string text = to_json(*event, 123.5);
  EXPECT_EQ(text.find('\n'), std::string::npos);
  const auto json = nlohmann::json::parse(text);
  EXPECT_EQ(json["kind"], "idle");
  EXPECT_EQ(json["cause"], "data");
  EXPECT_EQ(json["key"], "data.loader");
  EXPECT_EQ(json["value"], "preload");
  EXPECT_EQ(json["time"], 123.5);
  EXPECT_EQ(json["first_step"], 1);
  EXPECT_EQ(json["step"], 10);
  EXPECT_EQ(json["account"]["data_wait"], 5);
  EXPECT_EQ(json["samples_per_second_estimated"], 200);
}

TEST(BusyWatch, BusyDeviceMayBeSlow) {
  IdleContext context;
  int asked = 0;
  context.roof = [&] {
    ++asked;
    return ComputeRoof{.products = 0.01, .memory = 0.8, .weights = 0.8, .kernels = 10};
  };
  BusyWatch watch = watching({.peak_below = 0.1, .lines = 2}, context);
  StepLine line = line_of(10, Phase::rest, 1);
  line.peak = 0.11;
  EXPECT_FALSE(watch.look(line, 0));
  EXPECT_FALSE(watch.look(line, 0));
  EXPECT_EQ(asked, 0) << "nothing is measured above the threshold";
  line.peak = 0.05;
  EXPECT_FALSE(watch.look(line, 0));
  line.peak = 0.03;
  const auto event = watch.look(line, 0);
  ASSERT_TRUE(event);
  EXPECT_EQ(event->cause.cause, "small_work");
  expect_parts(to_text(*event), {"90 %", "peak", " 4 %"});
  const auto json = nlohmann::json::parse(to_json(*event, 0));
  EXPECT_DOUBLE_EQ(json["busy"], 0.9);
  EXPECT_DOUBLE_EQ(json["peak"], 0.04);
  BusyWatch never = watching({.peak_below = 0, .lines = 1}, context);
  EXPECT_FALSE(never.look(line, 0));
}

// One line is low and one was throttled. Together they are neither.
TEST(BusyWatch, FastDeviceIsNotSlowAfterAThrottledLine) {
  bool throttled = true;
  IdleContext context;
  context.slowed = [&] {
    return throttled ? std::optional(SlowedDevice{.name = "GPU 0", .share_of_clock = 0.5}) : std::nullopt;
  };
  context.roof = [] { return ComputeRoof{.products = 0.1, .kernels = 10}; };
  BusyWatch watch = watching({.below = 0.7, .peak_below = 0.1, .lines = 2}, context);
  StepLine line = line_of(10, Phase::rest, 0);
  line.peak = 0.5;
  EXPECT_FALSE(watch.look(line, 0));
  throttled = false;
  line = line_of(20, Phase::rest, 4);
  line.peak = 0.5;
  EXPECT_FALSE(watch.look(line, 0));
}

// The steps are equally busy but slower.
TEST(BusyWatch, ThrottledClockIsAllocation) {
  std::optional<SlowedDevice> slowed;
  IdleContext context;
  context.slowed = [&] { return slowed; };
  BusyWatch watch = watching(kOptions, context);
  const StepLine line = line_of(10, Phase::rest, 0);
  for (int i = 0; i < 5; ++i) EXPECT_FALSE(watch.look(line, 0));
  slowed = SlowedDevice{.name = "GPU 0", .why = "hw_thermal_slowdown", .share_of_clock = 0.5};
  EXPECT_FALSE(watch.look(line, 0));
  EXPECT_FALSE(watch.look(line, 0));
  const auto event = watch.look(line, 0);
  ASSERT_TRUE(event);
  EXPECT_EQ(event->cause.cause, "allocation");
  EXPECT_EQ(event->cause.samples_per_second, 200);
  expect_parts(to_text(*event), {"GPU 0", "50 %", "hw_thermal_slowdown", "no setting"});
}

TEST(EventCommand, ReceivesTheEventWithoutBlockingTheCaller) {
  const TemporaryFolder folder("event");
  const std::string gate = (folder.path() / "gate").string(), answer = (folder.path() / "answer").string();
  for (const std::string& pipe : {gate, answer}) ASSERT_EQ(mkfifo(pipe.c_str(), S_IRUSR | S_IWUSR), 0);
  const std::string event = R"({"text": "it's \"here\" $HOME"})";
  // The command waits for the gate. A caller that waits for the command would never open it.
  const auto log = folder.path() / kEventCommandLog;
  const std::string command = "read -r line < " + gate + "; printf %s \"$LOCKSTEP_EVENT\" > " + answer;
  setenv("LOCKSTEP_EVENT", "of the command that started this job", 1);
  ASSERT_EQ(tell_command(command, event, log), 0);
  unsetenv("LOCKSTEP_EVENT");
  std::ofstream(gate).put('\n');
  std::ifstream stream(answer);
  std::string text;
  std::getline(stream, text);
  EXPECT_EQ(text, event);
  EXPECT_EQ(tell_command("exit 3", event, log), 0) << "the exit code of the command is ignored";
  EXPECT_EQ(tell_command("echo lost", event, folder.path() / "none" / kEventCommandLog), 0);
}

// mpirun waits for every process that has the output of a rank.
TEST(EventCommand, DoesNotKeepTheOutputOfTheCaller) {
  const TemporaryFolder folder("event_output");
  const std::string gate = (folder.path() / "gate").string(), answer = (folder.path() / "answer").string();
  for (const std::string& fifo : {gate, answer}) ASSERT_EQ(mkfifo(fifo.c_str(), S_IRUSR | S_IWUSR), 0);
  const auto log = folder.path() / kEventCommandLog;
  const std::string command = "echo printed; echo failed >&2; read -r line < " + gate + "; echo > " + answer;
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  const pid_t caller = fork();
  ASSERT_GE(caller, 0);
  if (caller == 0) {
    for (const int each : {STDOUT_FILENO, STDERR_FILENO}) dup2(ends[1], each);
    _exit(tell_command(command, "{}", log));
  }
  close(ends[1]);
  int status = -1;
  EXPECT_EQ(waitpid(caller, &status, 0), caller);
  EXPECT_EQ(status, 0);
  pollfd output{.fd = ends[0], .events = POLLIN, .revents = 0};
  EXPECT_EQ(poll(&output, 1, 0), 1) << "the command, which still runs, has the pipe of the caller";
  EXPECT_EQ(output.revents, POLLHUP);
  close(ends[0]);
  std::ofstream(gate).put('\n');
  std::string text;
  std::getline(std::ifstream(answer), text);
  std::getline(std::ifstream(log), text, '\0');
  EXPECT_EQ(text, "printed\nfailed\n");
}

}  // namespace
}  // namespace lockstep
