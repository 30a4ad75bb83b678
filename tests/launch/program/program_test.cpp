// SPDX-License-Identifier: Apache-2.0
//
// The program from the user's view: reports, traces, files, exit codes and messages.
#include "tests/launch/program/program.h"

#include <algorithm>
#include <cmath>
#include <regex>

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <sys/resource.h>

#include "core/device.h"
#include "core/error.h"
#include "core/files/safetensors.h"
#include "core/system/processors.h"
#include "core/tensor/buffer.h"
#include "tests/launch/program/run_json.h"
#include "tests/launch/program/trace_check.h"
#include "tests/matches_in.h"
#include "tests/message_of.h"

namespace lockstep {
namespace {

using Json = nlohmann::json;

// The CPU time of ended child processes and their descendants, in seconds.
double processor_seconds_of_children() {
  struct rusage usage = {};
  getrusage(RUSAGE_CHILDREN, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

TEST(Train, LearnsAndWritesMetrics) {
  const Workplace workplace("metrics");
  const double before = processor_seconds_of_children();
  const ProgramResult result = run_ranks(2, workplace.train({"model.name=cnn", "train.epochs=3"}));
  ASSERT_EQ(result.exit_code, 0) << result.output;
  EXPECT_EQ(result.output.find('\r'), std::string::npos) << "a progress bar in piped output";
  EXPECT_EQ(run_record(workplace.path("run"))["global_batch"], 16);

  const std::vector<Json> lines = metrics_of(workplace.path("run"));
  ASSERT_EQ(lines.size(), 3u);
  for (std::size_t epoch = 0; epoch < 3; ++epoch) EXPECT_EQ(lines[epoch]["steps"], 32 * (epoch + 1));
  EXPECT_FALSE(lines[0].contains("metrics_seconds")) << "run.metrics is not set";
  EXPECT_EQ(count(result.output, "top5"), 0) << result.output;
  EXPECT_FALSE(std::filesystem::exists(workplace.path("run/evaluations.jsonl")));
  EXPECT_LT(lines[2]["train_loss"], lines[0]["train_loss"]);
  EXPECT_GT(lines[2]["test_accuracy"], 0.9);
  double took = 0;  // seconds, measured by rank 0
  for (const Json& line : lines) {
    for (const auto& [part, seconds] : line["processor"].items()) {
      EXPECT_GT(seconds, 0) << part;
      took += seconds.get<double>();
    }
  }
  EXPECT_EQ(lines[0]["processor"].size(), 3u);
  EXPECT_LE(took, processor_seconds_of_children() - before);
}

TEST(Train, AugmentsOnlyTrainingImages) {
  Json lines[2];
  for (const bool augmented : {false, true}) {
    const Workplace workplace("augmented");
    std::vector<std::string> settings = {"train.steps=3", "optimizer.learning_rate=1e-30"};
    if (augmented) settings.insert(settings.end(), {"data.crop_padding=3", "data.horizontal_flip=true"});
    const ProgramResult result = run_shell(workplace.train(settings));
    ASSERT_EQ(result.exit_code, 0) << result.output;
    lines[augmented] = last_metrics_of(workplace.path("run"));
  }
  EXPECT_NE(lines[0]["train_loss"], lines[1]["train_loss"]);
  EXPECT_EQ(lines[0]["test_loss"], lines[1]["test_loss"]);
}

struct Interval {
  double begin;
  double end;
};

// Intervals of rank 0 by name, in the order of their end.
std::map<std::string, std::vector<Interval>> intervals_of(const Json& events) {
  std::map<std::string, std::vector<Interval>> found;
  for (const Json& event : events) {
    if (event["ph"] != "X" || event["pid"] != 0) continue;
    const double begin = event["ts"];
    found[event["name"]].push_back({begin, begin + event["dur"].get<double>()});
  }
  return found;
}

// For each bucket except the last, which backward itself finishes: the number of these steps whose sum began
// and ended inside the backward pass.
std::vector<int> steps_inside_backward(const Workplace& workplace, std::size_t traced_steps,
                                       const std::string& overlap) {
  const auto trace = workplace.path("trace.json");
  const ProgramResult result = run_ranks(
      2,
      workplace.train({"model.name=resnet20", "train.epochs=2", fmt::format("train.steps={}", traced_steps),
                       "comm.bucket_mib=[0.02, 0.05, 0.02]", "comm.overlap=" + overlap},
                      "--trace " + trace.string()));
  EXPECT_EQ(result.exit_code, 0) << result.output;
  const Json events = expect_trace_of_ranks(trace, 2).at("traceEvents");
  expect_ledger_of_every_epoch(workplace.path("run") / "metrics.jsonl", 2);
  auto intervals = intervals_of(events);
  for (const char* each_step : {"data", "forward", "backward", "optimizer"})
    EXPECT_EQ(intervals[each_step].size(), traced_steps) << each_step;
  const std::vector<Interval> backward = intervals["backward"];
  std::vector<int> steps;
  for (int number = 0;; ++number) {
    const auto bucket = intervals.find(fmt::format("bucket {}", number));
    if (bucket == intervals.end()) break;
    EXPECT_EQ(bucket->second.size(), traced_steps) << number;
    int inside = 0;
    for (std::size_t step = 0; step < std::min(backward.size(), bucket->second.size()); ++step) {
      const Interval& sum = bucket->second[step];
      inside += sum.begin > backward[step].begin && sum.end < backward[step].end ? 1 : 0;
    }
    steps.push_back(inside);
  }
  EXPECT_GT(steps.size(), 5u);
  if (!steps.empty()) steps.pop_back();
  return steps;
}

// The operating system schedules the communication thread and the other rank, so a bucket in a single step
// proves nothing. Over all steps some bucket must succeed at least once, and without overlap never.
// GradientBuckets.AFullBucketIsSentBeforeBackwardEnds checks each bucket.
TEST(Train, BucketsAreSentBeforeBackwardEnds) {
  const Workplace workplace("overlap");
  const std::vector<int> overlapped = steps_inside_backward(workplace, 60, "true");
  EXPECT_TRUE(std::ranges::any_of(overlapped, [](int steps) { return steps > 0; }));
  for (const int steps : steps_inside_backward(workplace, 10, "false")) EXPECT_EQ(steps, 0);
}

// Copies a safetensors file with changed tensors.
template <typename Change>
void write_with(const std::string& from, const std::string& to, const Change& change) {
  SafetensorsReader reader(from);
  auto tensors = tensors_of(from);
  std::vector<NamedTensor> named;
  for (const SafetensorsEntry& entry : reader.entries()) {
    std::vector<float>& values = tensors.at(entry.name);
    change(entry.name, values);
    named.push_back({entry.name, {values.data(), entry.shape}});
  }
  write_safetensors(to, named);
}

TEST(Train, StartsFromAnExportedFile) {
  const Workplace workplace("init");
  const std::string file = workplace.path("a.safetensors").string();
  const std::string copy = workplace.path("b.safetensors").string();
  ASSERT_EQ(run_ranks(1, workplace.train({"model.name=cnn", "train.steps=3"}, "--export " + file)).exit_code,
            0);
  // A step with a tiny rate: weights stay, and running statistics take a tenth of the batch's.
  const auto after_a_step = [&](const std::string& init) {
    const ProgramResult result = run_ranks(
        2,
        workplace.train({"model.name=cnn", "train.steps=1", "train.seed=9", "optimizer.learning_rate=1e-30"},
                        "--init " + init + " --export " + copy));
    EXPECT_EQ(result.exit_code, 0) << result.output;
    return tensors_of(copy);
  };
  const auto is_statistic = [](const std::string& name) {
    return name.find("running_") != std::string::npos;
  };
  const std::string zeros = workplace.path("zeros.safetensors").string();
  write_with(file, zeros, [&](const std::string& name, std::vector<float>& values) {
    if (is_statistic(name)) std::ranges::fill(values, 0.0f);
  });
  const auto tensors = tensors_of(file), stepped = after_a_step(file), from_zero = after_a_step(zeros);
  ASSERT_EQ(stepped.size(), tensors.size());
  for (const auto& [name, values] : tensors) {
    if (!is_statistic(name)) {
      EXPECT_EQ(stepped.at(name), values) << name;
      continue;
    }
    for (std::size_t i = 0; i < values.size(); ++i) {
      const float kept = stepped.at(name)[i] - from_zero.at(name)[i];
      EXPECT_NEAR(kept, 0.9f * values[i], 1e-5f * (1 + std::abs(values[i]))) << name;
    }
  }
}

// Reads "  name   12.34 MiB  note" from the memory table.
double mebibytes(const std::string& output, const std::string& name) {
  const std::size_t at = output.find("\n  " + name + " ");
  return at == std::string::npos ? -1 : std::stod(output.substr(at + name.size() + 3));
}

TEST(Plan, PrintsRanksMemoryAndBucketsWithoutTraining) {
  const Workplace workplace("plan");
  const ProgramResult result =
      run_ranks(2, program("lockstep") + " plan " + workplace.path("config.toml").string());
  EXPECT_EQ(result.exit_code, 0) << result.output;
  // The rows of the ranks (rank, node, local rank, device, threads), the global batch, and the bytes of
  // gradients, of which each of two ranks sends as many.
  for (const char* pattern : {R"(\n +0 +0 +0 +cpu +1 )", R"(\n +1 +0 +1 +cpu +1 )", R"(global batch\D*16\b)",
                              R"(\b(\d{4,})\b[^\n]*\b\1\b)"})
    EXPECT_TRUE(std::regex_search(result.output, std::regex(pattern))) << pattern << " in\n" << result.output;
  EXPECT_GT(mebibytes(result.output, "total"), 0) << result.output;
  for (const char* absent : {"sums", "codecs", "average"})
    EXPECT_EQ(mebibytes(result.output, absent), -1) << absent;
  expect_parts(result.output, {"fc1.bias", "512 samples", "32 steps"});
  EXPECT_FALSE(std::filesystem::exists(workplace.path("run")));
}

TEST(Plan, AddsUpTheMemoryAndShowsWhatRecomputationSaves) {
  const Workplace workplace("plan_memory");
  const std::string command =
      program("lockstep") + " plan " + workplace.path("config.toml").string() + " --set model.name=resnet20";
  double totals[2] = {};
  for (const bool recompute : {false, true}) {
    const ProgramResult result = run_shell(command + (recompute ? " --set train.recompute=true" : ""));
    ASSERT_EQ(result.exit_code, 0) << result.output;
    double sum = 0;
    for (const char* part :
         {"activations", "parameters", "statistics", "gradients", "optimizer", "loaders", "dataset"}) {
      ASSERT_GE(mebibytes(result.output, part), 0) << part << " in\n" << result.output;
      sum += mebibytes(result.output, part);
    }
    totals[recompute] = mebibytes(result.output, "total");
    EXPECT_NEAR(totals[recompute], sum, 0.05) << result.output;
    EXPECT_EQ(count(result.output, "recomput"), recompute ? 1 : 0) << result.output;
  }
  EXPECT_LT(totals[1], totals[0]);
}

// running_sums_test.cpp has the settings without such sums.
TEST(Plan, ReportsTheMemoryOfFp32Sums) {
  const Workplace workplace("plan_sums");
  const ProgramResult result =
      run_shell(fmt::format("{} plan {} --set model.name=cnn --set train.precision=bf16 --set "
                            "train.accumulation=16",
                            program("lockstep"), workplace.path("config.toml").string()));
  EXPECT_EQ(result.exit_code, 0) << result.output;
  EXPECT_NEAR(mebibytes(result.output, "sums"), mebibytes(result.output, "parameters"), 0.02)
      << result.output;
  expect_parts(result.output, {"comm.sum_type"});
}

TEST(Train, RanksWithOtherInstructionSetsCauseAWarning) {
  if (instruction_set() == InstructionSet::baseline) GTEST_SKIP() << "needs AVX2 or AVX-512";
  const Workplace workplace("instruction_sets");
  const std::string train = workplace.train({"train.steps=2"});
  const auto warnings_of = [](const std::string& command) {
    const ProgramResult result = run_ranks(2, command);
    EXPECT_EQ(result.exit_code, 0) << result.output;
    return lines_naming(result.output, "warning", "oneDNN", "baseline");
  };
  EXPECT_EQ(warnings_of("env LOCKSTEP_MAX_CPU_ISA= " + train), "") << "an empty variable counts as not set";
  const std::string warnings = warnings_of(workplace.script(
      "[ $OMPI_COMM_WORLD_RANK = 0 ] || export LOCKSTEP_MAX_CPU_ISA=baseline\nexec " + train));
  EXPECT_EQ(count(warnings, "\n"), 1) << warnings;
}

// Batch norm across ranks has a second communicator.
TEST(Train, PriorityIsThatOfEachCommunicationThread) {
  const Workplace workplace("priority");
  const std::string held = workplace.path("held").string(), process = workplace.path("process").string();
  const std::string rank =
      workplace.script(fmt::format("[ $OMPI_COMM_WORLD_RANK != 0 ] || echo $$ > {}\nexec {}", process,
                                   workplace.train({"model.name=cnn", "model.sync_batch_norm=true",
                                                    "train.steps=4", "comm.priority=19"})));
  const ProgramResult result = run_shell(
      fmt::format("LOCKSTEP_HOLD=step:0:{0} {1} & run=$!\n{2}cat /proc/$(cat {3})/task/*/stat\nrm {0}\n"
                  "wait $run",
                  held, on_ranks(2, rank), wait_until("[ -e " + held + " ]"), process));
  EXPECT_EQ(result.exit_code, 0) << result.output;
  // Field 2 of a line is the thread's name, field 19 its nice value.
  EXPECT_EQ(matches_in(result.output, R"(\(ls-communicate\)( \S+){16} 19 )"), 2) << result.output;
}

// Only rank 0 writes the trace. A trace excludes the trial of threads, in which all ranks take part.
TEST(Train, OneRankMayTraceAlone) {
  const Workplace workplace("one_trace");
  const std::filesystem::path trace = workplace.path("trace.json");
  const ProgramResult result = run_ranks(
      2, workplace.script("[ $OMPI_COMM_WORLD_RANK != 0 ] || trace='--trace " + trace.string() + "'\nexec " +
                          workplace.train({"train.threads=0", "train.steps=4"}, "$trace")));
  ASSERT_EQ(result.exit_code, 0) << result.output;
  EXPECT_FALSE(Json::parse(text_of(trace)).at("traceEvents").empty());
}

TEST(Profile, NamesTheMostExpensiveLayersAndWritesATrace) {
  const Workplace workplace("profile");
  const ProgramResult result =
      run_ranks(2, program("lockstep") + " profile " + workplace.path("config.toml").string() +
                       " --set model.name=resnet20 --steps 2 --rows 0 --trace " +
                       workplace.path("trace.json").string());
  ASSERT_EQ(result.exit_code, 0) << result.output;
  expect_parts(result.output, {"convolution, forward", "exposed_communication", "layer3.2.conv2",
                               workplace.path("trace.json").string()});
  // The most expensive layers: NAME (DIRECTION, TIME, SHARE OF PEAK).
  EXPECT_TRUE(std::regex_search(result.output, std::regex(R"(\S+ \([a-z ]+, [\d.]+ ms, \d+ %)")))
      << result.output;
  const Json trace = Json::parse(text_of(workplace.path("trace.json")));
  int forward = 0;
  for (const Json& event : trace["traceEvents"]) forward += event["name"] == "layer1.0.conv1";
  EXPECT_EQ(forward, 2 * 3) << "forward and two gradients, in each of two steps";
  EXPECT_EQ(count(result.output, "wgrad"), 0) << "a pipe gets whole words";
  EXPECT_FALSE(std::filesystem::exists(workplace.path("run"))) << "a profile creates no run folder";
  EXPECT_EQ(lines_naming(result.output, "warning", "--steps"), "") << "the trace is complete";
}

TEST(Profile, NamesTheKeysThatItLeavesOut) {
  const Workplace workplace("partial_profile");
  const ProgramResult result =
      run_shell(program("lockstep") + " profile " + workplace.path("config.toml").string() +
                " --steps 1 --set train.average_every=4");
  EXPECT_EQ(result.exit_code, 0) << result.output;
  EXPECT_NE(lines_naming(result.output, "leave out", "train.average_every"), "") << result.output;
}

TEST(Profile, IncompleteTraceCausesAWarning) {
  const Workplace workplace("long_profile", "lockstep", 4);
  const std::string trace = workplace.path("trace.json").string();
  const ProgramResult result =
      run_shell(program("lockstep") + " profile " + workplace.path("config.toml").string() +
                " --set model.name=resnet20 --set train.batch=2 --set train.accumulation=50 --steps 15" +
                " --set optimizer.clip_norm=1 --set train.ema_decay=0.9 --trace " + trace);
  ASSERT_EQ(result.exit_code, 0) << result.output;
  EXPECT_GT(Json::parse(text_of(trace)).at("droppedSpans"), 0);
  EXPECT_NE(lines_naming(result.output, "warning", trace, "--steps"), "") << result.output;
  EXPECT_EQ(lines_naming(result.output, "leave out"), "") << "keys that are not left out: " << result.output;
}

TEST(Info, ListsLibrariesDevicesAndPresets) {
  const ProgramResult result = run_shell(program("lockstep") + " info");
  EXPECT_EQ(result.exit_code, 0) << result.output;
  expect_parts(result.output, {"oneDNN", "Open MPI", "cuda", "fashion_mnist_cnn"});
  const CudaStatus cuda = cuda_status();
  for (const char* part : {"cuDNN 9.", "cuBLAS 1", "NCCL 2."}) {
    EXPECT_EQ(count(result.output, part), cuda.built ? 1 : 0) << part << " in\n" << result.output;
  }
  for (const CudaDevice& device : cuda.devices) EXPECT_EQ(count(result.output, device.uuid), 1);
  EXPECT_NE(result.output.find(cuda.message), std::string::npos) << "the reason why there is no device";
}

// mpirun ends a job when its first rank fails. That rank must not be one that leaves the message to rank 0.
// Rank 0 gives rank 1 some time to end, and then stops it, because rank 1 waits for rank 0 for only 5 s.
TEST(Usage, ErrorIsPrintedIfRank0StartsLast) {
  const Workplace workplace("last");
  const std::string process = workplace.path("process").string();
  const std::string late = workplace.script(
      fmt::format("if [ $OMPI_COMM_WORLD_RANK = 0 ]; then\n  until [ -s {0} ]; do sleep 0.01; done\n"
                  "  rank1=$(cat {0})\n  rm {0}\n"
                  "  for look in $(seq 15); do kill -0 $rank1 2>/dev/null || break; sleep 0.02; done\n"
                  "  kill -STOP $rank1 2>/dev/null\n"
                  "else\n  echo $$ > {0}\nfi\nexec \"$@\"\n",
                  process));
  const std::string lockstep = program("lockstep");
  expect_failure(run_ranks(2, late + " " + lockstep + " train"), exit_code::usage, {"CONFIG"});
  expect_failure(run_ranks(2, late + " " + lockstep), exit_code::usage, {"lockstep COMMAND"});
}

TEST(Usage, ErrorsFitATerminal) {
  const ProgramResult result = run_on_terminal(program("lockstep") + " train nosuch");
  EXPECT_EQ(result.exit_code, exit_code::config);
  EXPECT_LE(longest_line(result.output), 80u) << result.output;
  EXPECT_GE(count(result.output, "\n"), 2) << result.output;
}

TEST(BadInput, ProcessNamesAreNotPartOfTheMessage) {
  const std::string told =
      "a global batch of 800\n  Process name: [[3800,1],1]\n[node-1.example:8001] ended\n";
  expect_failure({exit_code::config, told}, exit_code::config, {"800"});
}

// config_test.cpp and golden_messages_test.cpp have the other errors.
TEST(BadInput, ConfigurationNamesTheKeyOnce) {
  const Workplace workplace("config");
  expect_failure(run_ranks(2, workplace.train({"train.bacth=3"})), exit_code::config, {"train.batch"});
}

// 4 x 4 pixels become 1 x 1 in the network's last stage.
TEST(BadInput, BatchNormOfOneValuePerChannelIsRefused) {
  const Workplace workplace("one_value", "lockstep", 4);
  const std::string weights = workplace.path("trained.safetensors").string();
  const auto run = [&](const std::vector<std::string>& more, int ranks = 2) {
    std::vector<std::string> settings = {"model.name=resnet20", "train.steps=2"};
    settings.insert(settings.end(), more.begin(), more.end());
    return run_ranks(ranks, workplace.train(settings, "--export " + weights));
  };
  expect_failure(run({"train.batch=1"}, 1), exit_code::config,
                 {"layer3.0.bn1", "[1, 64, 1, 1]", "train.batch"});
  // 512 samples are 15 batches of 2 x 17, and 2 samples.
  expect_failure(run({"train.batch=17", "data.tail=exact"}), exit_code::config,
                 {"data.tail = \"exact\"", "2 samples"});
  const ProgramResult synchronized = run({"train.batch=1", "model.sync_batch_norm=true"});
  EXPECT_EQ(synchronized.exit_code, 0) << synchronized.output;
  const ProgramResult evaluated = run_ranks(
      2, fmt::format("{} eval {} --set model.name=resnet20 --set train.batch=17 --set data.tail=exact "
                     "--init {}",
                     program("lockstep"), workplace.path("config.toml").string(), weights));
  EXPECT_EQ(evaluated.exit_code, 0) << "evaluation takes no steps: " << evaluated.output;
}

TEST(BadInput, MissingDeviceIsRefused) {
  const CudaStatus cuda = cuda_status();
  if (!cuda.devices.empty()) GTEST_SKIP() << "there is a CUDA device";
  const Workplace workplace("device");
  const std::vector<std::string> reason_and_remedy = {
      cuda.built ? "CUDA_VISIBLE_DEVICES" : "LOCKSTEP_CUDA=ON", "--device cpu"};
  expect_failure(run_ranks(2, workplace.train({}, "--device cuda")), exit_code::config, reason_and_remedy);
  expect_failure(run_shell(workplace.train({"world.share_device=true"}, "--device cuda")), exit_code::config,
                 reason_and_remedy);
  const ProgramResult any = run_shell(workplace.train({"train.steps=1"}, "--device auto"));
  EXPECT_EQ(any.exit_code, 0) << any.output;
  EXPECT_EQ(run_record(workplace.path("run"))["device"], "cpu");
}

// The error comes before kernels are timed, and before the system would kill the process.
TEST(BadInput, TooLargeBatchNamesTheLargestThatFits) {
  if (available_memory({}) > std::size_t{500} << 30) GTEST_SKIP() << "this machine has memory for it";
  const ProgramResult result =
      run_ranks(2, program("lockstep") + " train fashion_mnist_cnn --set model.name=resnet50 " +
                       "--set train.batch=30000 --set kernels.cache=none --set kernels.choose=time " +
                       "--set data.format=synthetic --set data.path=none --set data.synthetic.height=28 " +
                       "--set data.synthetic.width=28 --set data.synthetic.channels=1 " +
                       "--set data.synthetic.train_samples=60000");
  expect_failure(result, exit_code::io,
                 {"activations", "the largest batch that fits is ", "train.batch", " 30000 ",
                  "train.accumulation", "train.recompute", "bf16"});
}

TEST(BadInput, UnwritableRunFolderIsRefused) {
  const Workplace workplace("unwritable");
  expect_failure(run_shell(workplace.train({"run.dir=/proc/nowhere"})), exit_code::io, {"/proc/nowhere"});
}

TEST(BadInput, RanksWithDifferentConfigurationsStop) {
  const Workplace workplace("differ");
  const ProgramResult result =
      run_ranks(4, workplace.script("case $OMPI_COMM_WORLD_RANK in 1 | 2) exec " +
                                    workplace.train({"optimizer.momentum=0.8"}) + ";; *) exec " +
                                    workplace.train({}) + ";; esac"));
  expect_failure(result, exit_code::config, {"ranks 1, 2", "optimizer.momentum"});
}

// Otherwise a rank would wait for steps that its peers do not take.
TEST(BadInput, RanksWithDifferentFlagsStop) {
  const Workplace workplace("other_flags");
  struct Case {
    std::string command, flag;
    std::vector<std::string> parts;
  };
  for (const Case& each :
       {Case{"find-batch", "--accuracy", {"--accuracy true", "--accuracy false"}},
        Case{"profile", "--steps 3", {"--steps 3", "--steps 10"}}, Case{"plan", "--gpu h100", {"h100"}},
        Case{"train", "--print-config", {"--print-config"}},
        Case{"train", "--export " + workplace.path("weights").string(), {"--export"}},
        Case{"train", "--inject kill:rank=1,step=5", {"kill:rank=1,step=5"}}}) {
    const std::string command =
        fmt::format("{} {} {}", program("lockstep"), each.command, workplace.path("config.toml").string());
    const ProgramResult result = run_ranks(
        2, workplace.script(fmt::format(
               "case $OMPI_COMM_WORLD_RANK in 1) exec {0} {1} ;; *) exec {0} ;; esac", command, each.flag)));
    expect_failure(result, exit_code::config, each.parts);
    expect_parts(result.output, {"rank 1"});
  }
}

// The state equals the export of a run that ends before the failing step.
TEST(Failure, LossThatIsNotFiniteStopsWithTheLastGoodState) {
  const Workplace workplace("diverge");
  std::vector<std::string> settings = {"model.name=cnn",           "model.batch_norm=true",
                                       "train.accumulation=2",     "train.epochs=2",
                                       "schedule.warmup_epochs=1", "optimizer.learning_rate=1e30"};
  const ProgramResult result = run_ranks(2, workplace.train(settings));
  expect_failure(result, exit_code::failed, {"last_good.safetensors"});
  const std::string error = lines_naming(result.output, "last_good.safetensors");
  std::smatch step;
  ASSERT_TRUE(std::regex_search(error, step, std::regex(R"(\bstep (\d+))"))) << result.output;
  const int failing = std::stoi(step[1].str());
  ASSERT_GT(failing, 1) << "no step was taken before the failure";
  const auto last_good = tensors_of(workplace.path("run") / "last_good.safetensors");

  const auto oracle = workplace.path("oracle.safetensors");
  settings.push_back(fmt::format("train.steps={}", failing - 1));
  ASSERT_EQ(run_ranks(2, workplace.train(settings, "--export " + oracle.string())).exit_code, 0);
  EXPECT_EQ(last_good, tensors_of(oracle));
}

}  // namespace
}  // namespace lockstep
