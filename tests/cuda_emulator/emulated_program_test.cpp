// SPDX-License-Identifier: Apache-2.0
//
// lockstep-emulated on machines that only the emulator provides: with little memory, few or many devices, or
// failing calls.
#include <fstream>
#include <regex>
#include <set>
#include <utility>

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "tests/cuda_emulator/emulated_run.h"
#include "tests/launch/program/program.h"
#include "tests/launch/program/run_json.h"
#include "tests/message_of.h"

namespace lockstep {
namespace {

// Each rank has one context, on its own device: exclusive mode refuses a second one. Waits must not spin,
// because the loader's threads need the cores.
TEST_F(EmulatedDigest, EachRankOpensOneContextAndNeverSpins) {
  const std::string report = workplace_.path("report").string();
  const std::string machine =
      fmt::format("LOCKSTEP_EMULATED_GPUS=3 LOCKSTEP_EMULATED_REPORT={} LOCKSTEP_EMULATED_EXCLUSIVE={}",
                  report, workplace_.path("exclusive").string());
  digest_of(workplace_, {.ranks = 3, .settings = {"model.cnn.width=8", "train.steps=7"}, .machine = machine});
  std::ifstream file(report);
  std::set<std::string> contexts;
  for (std::string line; std::getline(file, line);) {
    const nlohmann::json process = nlohmann::json::parse(line);
    contexts.insert(process["contexts"].dump());
    EXPECT_EQ(process["spinning_waits"], 0);
  }
  EXPECT_EQ(contexts, (std::set<std::string>{"[1,0,0]", "[0,1,0]", "[0,0,1]"}));
}

// Each of 5 steps sends the shares of every bucket.
TEST_F(EmulatedDigest, CopyEnginesSendUpdatedParameters) {
  std::set<std::string> digests;
  for (const char* memory : {"window", "registered"}) {
    const auto report = workplace_.path(fmt::format("copied_{}", memory));
    digests.insert(digest_of(
        workplace_,
        {.settings = {"model.name=mlp", "model.mlp.width=32", "train.steps=5", "comm.exchange=sharded",
                      "comm.cta_policy=zero", fmt::format("comm.gradient_memory={}", memory)},
         .machine = "LOCKSTEP_EMULATED_REPORT=" + report.string()}));
    std::ifstream file(report);
    int ranks = 0;
    for (std::string line; std::getline(file, line); ++ranks) {
      const auto copied = nlohmann::json::parse(line)["copied_collectives"].get<int>();
      EXPECT_GE(copied, memory == std::string("window") ? 5 : 0);
      EXPECT_LE(copied, memory == std::string("window") ? 1000 : 0);
    }
    EXPECT_EQ(ranks, 2);
  }
  EXPECT_EQ(digests.size(), 1u) << "the bits must not depend on who sends them";
}

// A training shows the sums by NCCL's algorithm and number of thread blocks. Sums beside compute have one
// block; the last bucket of each step has both.
TEST_F(EmulatedDigest, PluginsLimitAndTimeTheKernelsOfSums) {
  EmulatedRun run{.settings = {"comm.bucket_mib=[0.002, 0.2, 0.002]", "comm.gradient_memory=registered",
                               "train.steps=7"}};
  const std::string expected = digest_of(workplace_, run);
  run.settings.insert(run.settings.end(),
                      {"comm.kernel_times=true", "comm.ctas_beside_compute=1", "train.cuda_graph=false"});
  const auto file = workplace_.path("plugins");
  const ProgramResult result = run_ranks(2, command_of(workplace_, run, "--digest " + file.string()));
  ASSERT_EQ(result.exit_code, 0) << result.output;
  EXPECT_EQ(text_of(file), expected);
  const auto sizes = [&](const std::string& blocks) {
    const std::regex pattern("NCCL: all_reduce of ([0-9]+) bytes: RING SIMPLE, " + blocks + ", 7 times");
    std::set<std::string> found;
    for (std::sregex_iterator each(result.output.begin(), result.output.end(), pattern), end; each != end;
         ++each)
      found.insert((*each)[1]);
    return found;
  };
  const std::set<std::string> beside = sizes("1 thread block"), after = sizes("2 thread blocks");
  EXPECT_GE(beside.size(), 1u) << result.output;
  EXPECT_GE(after.size(), 1u) << result.output;
  for (const std::string& bytes : after) EXPECT_FALSE(beside.contains(bytes)) << result.output;
}

TEST_F(EmulatedDigest, PluginsThatNcclDoesNotUseAreNamed) {
  const EmulatedRun run{.settings = {"comm.kernel_times=true", "comm.ctas_beside_compute=1",
                                     "train.cuda_graph=false", "train.steps=2"},
                        .machine = "NCCL_TUNER_PLUGIN=none NCCL_PROFILER_PLUGIN=none"};
  const ProgramResult result = run_ranks(2, command_of(workplace_, run, ""));
  EXPECT_EQ(result.exit_code, 0) << result.output;
  for (const std::string name : {"comm.kernel_times", "comm.ctas_beside_compute"})
    EXPECT_EQ(count(result.output, name + " has no effect"), 1) << result.output;
}

TEST_F(EmulatedDigest, LateRanksAreFoundByTheTimesOfDevices) {
  const EmulatedRun run{.settings = {"train.steps=5"}};
  const std::string flags = "--inject slow:rank=1,step=1,ms=400 --trace " + workplace_.path("trace").string();
  const ProgramResult result = run_ranks(2, command_of(workplace_, run, flags));
  ASSERT_EQ(result.exit_code, 0) << result.output;
  const nlohmann::json communication = last_metrics_of(workplace_.path("run"))["communication"];
  EXPECT_EQ(communication["late_rank"], 1) << communication;
}

TEST_F(EmulatedDigest, PlanListsTheDeviceOfEachRank) {
  const ProgramResult plan =
      run_ranks(2, program("lockstep-emulated") + " plan " + workplace_.path("config.toml").string() +
                       " --set world.device=cuda --set kernels.choose=direct --set train.epochs=2");
  EXPECT_EQ(plan.exit_code, 0) << plan.output;
  const auto rows = [&](const std::string& row) {
    const std::regex pattern("\n *" + row);
    return std::distance(std::sregex_iterator(plan.output.begin(), plan.output.end(), pattern), {});
  };
  for (const char* rank : {"0 +0 +0 +cuda:0 ", "1 +0 +1 +cuda:1 "}) EXPECT_EQ(rows(rank), 1) << plan.output;
  const std::string size = " +[0-9.]+ MiB";
  EXPECT_EQ(rows("dataset" + size), 2)
      << plan.output << "expected images on the device and labels on the host";
  for (const char* part : {"libraries", "context", "device"}) EXPECT_EQ(rows(part + size), 1) << plan.output;
}

TEST_F(EmulatedDigest, ImagesThatDoNotFitOnTheDeviceAreStreamed) {
  const auto run = [&](const std::string& loader) {
    const EmulatedRun little{
        .settings = {"train.epochs=2", "train.steps=2", "data.loader=" + loader, "data.format=synthetic",
                     "data.synthetic.height=12", "data.synthetic.width=12", "data.synthetic.channels=1",
                     "data.synthetic.train_samples=20000000", "data.synthetic.test_samples=16"}};
    return run_ranks(1, command_of(workplace_, little, ""));
  };
  const ProgramResult streamed = run("auto");
  EXPECT_EQ(streamed.exit_code, 0) << streamed.output;
  auto planned = nlohmann::json::parse(text_of(workplace_.path("run") / "run.json"))["planned_bytes"];
  EXPECT_TRUE(planned["device"].contains("activations")) << planned;
  EXPECT_FALSE(planned["device"].contains("dataset")) << planned;
  const ProgramResult refused = run("device");
  EXPECT_EQ(refused.exit_code, exit_code::config) << refused.output;
  expect_parts(refused.output, {"data.loader", "cuda:0", "preload"});
}

TEST_F(EmulatedDigest, RanksMayShareADevice) {
  Settings settings = {"model.name=mlp", "model.mlp.width=32", "train.steps=5"};
  const std::string apart = digest_of(workplace_, {.settings = settings});
  settings.push_back("world.share_device=true");
  EXPECT_EQ(digest_of(workplace_, {.settings = settings, .machine = "LOCKSTEP_EMULATED_GPUS=1"}), apart);
  const ProgramResult refused =
      run_ranks(2, command_of(workplace_, {.machine = "LOCKSTEP_EMULATED_GPUS=1"}, ""));
  // Rank 0 has the device; rank 1 has none.
  expect_failure(refused, exit_code::config, {"world.share_device", "cuda:0"});
}

TEST_F(EmulatedDigest, DevicesThatTheBuildCannotUseCountAsAbsent) {
  const std::string old = "LOCKSTEP_EMULATED_GPUS=1 LOCKSTEP_EMULATED_CAPABILITY=75";
  const std::string advice = "-DCMAKE_CUDA_ARCHITECTURES=75";
  const auto run = [&](const std::string& device, const std::string& machine) {
    const EmulatedRun one{.settings = {"world.device=" + device, "train.steps=1"}, .machine = machine};
    return run_ranks(1, command_of(workplace_, one, ""));
  };
  for (const char* device : {"cuda", "idle"})
    expect_failure(run(device, old), exit_code::config, {"cuda:0", "7.5;", advice});
  expect_failure(run("cuda", "LOCKSTEP_EMULATED_GPUS=1 LOCKSTEP_EMULATED_FAULTS=cudaGetDeviceProperties@0=3"),
                 exit_code::config, {"cuda:0", "nvidia-smi"});
  const ProgramResult on_cpu = run("auto", old);
  EXPECT_EQ(on_cpu.exit_code, 0) << on_cpu.output;
  EXPECT_EQ(count(on_cpu.output, advice), 1) << on_cpu.output;
  EXPECT_EQ(count(on_cpu.output, "CUDA_VISIBLE_DEVICES"), 1) << "the use of the CPU must be reported";
  const auto facts = nlohmann::json::parse(text_of(workplace_.path("run") / "run.json"));
  EXPECT_EQ(facts.at("device").get<std::string>(), "cpu");
  const ProgramResult info = run_shell("env " + old + " " + program("lockstep-emulated") + " info");
  EXPECT_EQ(count(info.output, advice), 1) << info.output;
}

TEST_F(EmulatedDigest, InsufficientMemoryIsReportedBeforeTraining) {
  const ProgramResult result = run_ranks(
      2, command_of(workplace_, {.settings = {"train.batch=64"}, .machine = "LOCKSTEP_EMULATED_MEMORY=1MiB"},
                    ""));
  EXPECT_EQ(result.exit_code, exit_code::io) << result.output;
}

// Training needs about 61, 53 and 102 MiB of the device. The dense layer's weights, 19.2 MB, have another
// layout in files; the device has no memory for a copy of them.
TEST_F(EmulatedDigest, CheckpointsTakeNoMemoryOfTheDevice) {
  for (const auto& [setting, memory] : {std::pair{"comm.exchange=dense", "70MiB"},
                                        {"comm.exchange=sharded", "62MiB"},
                                        {"train.staleness=1", "110MiB"}}) {
    SCOPED_TRACE(setting);
    std::filesystem::remove_all(workplace_.path("run"));
    EmulatedRun run{
        .settings = {"model.name=layers",
                     R"(model.layer=[{ kind = "convolution", channels = 8, kernel = 3, padding = "same" }, )"
                     R"({ kind = "dense", features = 20000 }, { kind = "dense" }])",
                     "data.format=synthetic", "data.synthetic.height=6", "data.synthetic.width=5",
                     "data.synthetic.channels=3", "data.synthetic.classes=3",
                     "data.synthetic.train_samples=64", "data.synthetic.test_samples=8",
                     "optimizer.learning_rate=1e-4", "train.batch=2", "train.steps=3", setting}};
    const std::string expected = digest_of(workplace_, run);
    run.settings.push_back("run.checkpoint_every=2");
    run.machine = fmt::format("LOCKSTEP_EMULATED_MEMORY={}", memory);
    EXPECT_EQ(digest_of(workplace_, run), expected);
    const std::string digest = workplace_.path("resumed").string();
    const std::string checkpoint = workplace_.path("run/checkpoints/step-000000002").string();
    const ProgramResult resumed = run_ranks(
        run.ranks, command_of(workplace_, run, fmt::format("--resume {} --digest {}", checkpoint, digest)));
    ASSERT_EQ(resumed.exit_code, 0) << resumed.output;
    EXPECT_EQ(text_of(digest), expected);
  }
}

// Measuring the peak needs 768 MiB and more.
TEST_F(EmulatedDigest, AProfileWithoutMemoryForMeasuringThePeakIsShownWithoutIt) {
  const std::string page = workplace_.path("layers.html").string();
  const ProgramResult result =
      run_shell(fmt::format("LOCKSTEP_EMULATED_MEMORY=600MiB {} profile {} --device cuda --steps 1 --set "
                            "model.mlp.width=32 --html {}",
                            program("lockstep-emulated"), workplace_.path("config.toml").string(), page));
  ASSERT_EQ(result.exit_code, 0) << result.output;
  const std::regex row(R"(\n +fc1 +forward [^\n]* -\n)");
  EXPECT_TRUE(std::regex_search(result.output, row)) << result.output;
  EXPECT_GE(count(text_of(page), "fc1"), 1);
}

// Ranks that share a device keep to their shares, which are smaller than the device.
TEST_F(EmulatedDigest, MemoryLimitIsTheMemoryOfARank) {
  const auto run = [&](const Settings& more) {
    Settings settings = {"world.share_device=true", "train.epochs=2", "train.steps=2"};
    settings.insert(settings.end(), more.begin(), more.end());
    return run_ranks(
        2, command_of(workplace_, {.settings = settings, .machine = "LOCKSTEP_EMULATED_GPUS=1"}, ""));
  };
  const auto planned = [&] {
    const auto parts =
        nlohmann::json::parse(text_of(workplace_.path("run") / "run.json"))["planned_bytes"]["device"];
    double bytes = 0;
    for (const auto& [name, part] : parts.items()) bytes += part.get<double>();
    return std::pair(bytes, parts.value("activations", 0.0));
  };
  const auto limit = [](double bytes) { return fmt::format("world.memory_limit={:.9f}", bytes * 0x1p-30); };
  const ProgramResult free = run({"data.loader=device"});
  ASSERT_EQ(free.exit_code, 0) << free.output;
  const double all = planned().first;

  const ProgramResult refused = run({"data.loader=device", limit(all / 2)});
  EXPECT_NE(refused.exit_code, 0);
  expect_parts(refused.output, {"cuda:0", "world.memory_limit"});
  const ProgramResult no_room = run({"data.loader=device", limit(1000)});
  EXPECT_EQ(no_room.exit_code, exit_code::config) << no_room.output;
  expect_parts(no_room.output, {"data.loader", "world.memory_limit"});
  const ProgramResult fits = run({"data.loader=device", limit(2 * all)});
  EXPECT_EQ(fits.exit_code, 0) << fits.output;

  const ProgramResult activations = run({"data.loader=stream", limit(0.9 * planned().second)});
  EXPECT_EQ(activations.exit_code, exit_code::io) << activations.output;
  expect_parts(activations.output,
               {"(world.memory_limit)", "train.recompute=auto", "raise world.memory_limit"});
}

// The configured batch fits the plan, but not the device of rank 1. The other ranks must not wait for it, and
// the error names it.
TEST_F(EmulatedDigest, TheRankWithTheLeastMemoryLimitsFindBatch) {
  const std::string found = workplace_.path("found").string();
  const ProgramResult result = run_ranks(
      2, fmt::format("env LOCKSTEP_EMULATED_FAULTS=1/cudaMalloc@600000=2 {} find-batch {} --set "
                     "world.device=cuda --set model.name=cnn --set kernels.choose=direct --set train.batch=8 "
                     "--seconds 1 --out {}",
                     program("lockstep-emulated"), workplace_.path("config.toml").string(), found));
  ASSERT_EQ(result.exit_code, 0) << result.output;
  const nlohmann::json json = nlohmann::json::parse(text_of(found + "/found_batch.json"));
  ASSERT_GE(json["batches"].size(), 2u) << json;
  const nlohmann::json& refused = json["batches"].back();
  EXPECT_EQ(refused["batch"], 8) << json;
  expect_parts(refused.value("problem", ""), {"rank 1", "cuda:1"});
  EXPECT_EQ(json["recommended"]["batch"], 4) << json;
  EXPECT_EQ(json["recommended"]["accumulation"], 2) << json;
  EXPECT_LT(json["largest"]["batch"], 8) << json;
}

// A sweep runs one training per device, and refuses to use more devices than the machine has.
TEST(Emulated, ASweepRunsOneTrainingPerDevice) {
  const Workplace workplace("emulated_sweep", "lockstep-emulated");
  const auto sweep = [&](int gpus, const std::string& jobs) {
    std::ofstream(workplace.path("sweep.toml")) << fmt::format(
        "[sweep]\nconfig = \"{}\"\nset = [\"world.device=cuda\", \"kernels.choose=direct\", "
        "\"train.steps=2\"]\nmethod = \"grid\"\ndir = \"{}\"\n{}\n[keys]\ntrain.seed = [1, 2]\n",
        workplace.path("config.toml").string(), workplace.path("sweep").string(), jobs);
    return run_shell(fmt::format("LOCKSTEP_EMULATED_GPUS={} {} sweep {} --json", gpus,
                                 program("lockstep-emulated"), workplace.path("sweep.toml").string()));
  };
  const ProgramResult refused = sweep(3, "jobs = 2\nranks = 2");
  EXPECT_EQ(refused.exit_code, exit_code::config) << refused.output;
  expect_parts(refused.output, {"sweep.jobs = 2", "sweep.ranks = 2", "4 GPUs", " 3 ", "world.device"});
  const ProgramResult result = sweep(2, "");
  ASSERT_EQ(result.exit_code, 0) << result.output;
  const auto outcome = nlohmann::json::parse(result.output, nullptr, false);
  ASSERT_TRUE(outcome.is_object()) << result.output;
  EXPECT_EQ(outcome["slots"], 2);
  EXPECT_EQ(outcome["trials"].size(), 2u);
  for (const char* trial : {"0000", "0001"}) {
    const auto facts = nlohmann::json::parse(text_of(workplace.path("sweep/trials") / trial / "run.json"));
    EXPECT_TRUE(facts["device"].get<std::string>().starts_with("cuda:")) << facts;
  }
}

}  // namespace
}  // namespace lockstep
