// SPDX-License-Identifier: Apache-2.0
//
// Jobs that share a node, on the emulated device: they use different devices, report the holders of devices,
// and find the least used device, with a stub of NVML instead of the driver.
#include <algorithm>
#include <fstream>
#include <set>
#include <sstream>
#include <vector>

#include <fcntl.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <sys/stat.h>
#include <unistd.h>

#include "core/error.h"
#include "core/system/file_claim.h"
#include "tests/data/jpeg_files.h"
#include "tests/launch/observe/monitor/nvml_stub.h"
#include "tests/launch/program/program.h"
#include "tests/message_of.h"

namespace lockstep {
namespace {

std::string uuid_of_gpu(int index) { return fmt::format("GPU-656d756c-6174-6564-2047-50550{}000000", index); }

class SharedNode : public testing::Test {
 protected:
  SharedNode() { std::filesystem::create_directories(claims_); }

  // The file by which another job, here this process, claims the device.
  std::filesystem::path claim_on(int index) const {
    return claims_ / fmt::format("lockstep-gpu.{}.{}", uuid_of_gpu(index), geteuid());
  }
  FileClaim take(int index) const { return {claim_on(index), FileClaim::By::owner}; }
  static std::string me() { return fmt::format("process {}", getpid()); }

  std::string machine(int gpus) const {
    return fmt::format("env LOCKSTEP_EMULATED_GPUS={} LOCKSTEP_EMULATED_REPORT={} LOCKSTEP_CLAIMS={} ", gpus,
                       report_.string(), claims_.string());
  }
  std::string train(const std::string& device, std::vector<std::string> settings = {}) const {
    settings.insert(settings.begin(), {"world.device=" + device, "train.steps=1", "model.mlp.width=16"});
    return workplace_.train(settings);
  }
  // The contexts per device of each ended process.
  std::multiset<std::string> contexts() const {
    std::ifstream file(report_);
    std::multiset<std::string> all;
    for (std::string line; std::getline(file, line);)
      all.insert(line.substr(line.find('['), line.find(']') + 1 - line.find('[')));
    return all;
  }
  ProgramResult run_well(const std::string& command, int ranks = 1) const {
    std::filesystem::remove(report_);
    const ProgramResult result = run_ranks(ranks, command);
    EXPECT_EQ(result.exit_code, 0) << result.output;
    return result;
  }
  // The device of rank 0 in the last training.
  std::string device_of_run() const {
    return nlohmann::json::parse(text_of(workplace_.path("run/run.json"))).at("device").get<std::string>();
  }

  const Workplace workplace_{"shared_node", "lockstep-emulated"};
  const std::filesystem::path claims_ = workplace_.path("claims"), report_ = workplace_.path("report");
};

using Contexts = std::multiset<std::string>;

TEST_F(SharedNode, DevicesOfAnotherJobAreNotUsed) {
  const FileClaim second = take(1);
  run_well(machine(3) + train("cuda"), 2);
  EXPECT_EQ(contexts(), (Contexts{"[1, 0, 0]", "[0, 0, 1]"}));
}

TEST_F(SharedNode, WithTooFewFreeDevicesTheJobNamesTheirHolders) {
  const FileClaim first = take(0);
  const std::vector<std::string> said = {me(), uuid_of_gpu(0), uuid_of_gpu(1), "CUDA_VISIBLE_DEVICES",
                                         "world.share_device"};
  for (const char* device : {"cuda", "idle"})
    expect_failure(run_ranks(2, machine(2) + train(device)), exit_code::config, said);
  EXPECT_EQ(count(run_well(machine(2) + train("cuda")).output, "CUDA_VISIBLE_DEVICES"), 0)
      << "a claimed device must not be recommended";
}

TEST_F(SharedNode, WithTooFewFreeDevicesAutoUsesTheCpuAndReportsTheHolder) {
  const FileClaim first = take(0);
  const ProgramResult result = run_well(machine(2) + train("auto"), 2);
  EXPECT_EQ(device_of_run(), "cpu");
  EXPECT_EQ(count(result.output, me()), 1) << result.output;
  run_well(machine(2) + train("auto"));
  EXPECT_EQ(device_of_run(), "cuda:1");
}

TEST_F(SharedNode, ShareDeviceIgnoresClaimsOfOtherJobs) {
  const FileClaim only = take(0);
  run_well(machine(1) + train("cuda", {"world.share_device=true"}), 2);
  EXPECT_EQ(contexts(), (Contexts{"[1]", "[1]"}));
}

TEST_F(SharedNode, ASweepRunsOneTrainingPerFreeGpu) {
  const FileClaim second = take(1);
  for (const std::string device : {"cuda", "idle"}) {
    const auto file = workplace_.path("sweep_" + device + ".toml");
    std::ofstream(file) << fmt::format(
        "[sweep]\nconfig = \"{}\"\nset = [\"world.device={}\", \"kernels.choose=direct\", "
        "\"train.steps=1\"]\nmethod = \"grid\"\ndir = \"{}\"\n[keys]\ntrain.seed = [1, 2]\n",
        workplace_.path("config.toml").string(), device, workplace_.path("sweep_" + device).string());
    const ProgramResult result =
        run_shell(machine(2) + program("lockstep-emulated") + " sweep " + file.string());
    EXPECT_EQ(result.exit_code, 0) << result.output;
    std::ifstream journal(workplace_.path("sweep_" + device) / "sweep.jsonl");
    std::vector<std::string> events;
    for (std::string line; std::getline(journal, line);) {
      const nlohmann::json json = nlohmann::json::parse(line);
      if (json.contains("event")) events.push_back(json["event"].get<std::string>());
    }
    EXPECT_EQ(events, (std::vector<std::string>{"start", "end", "start", "end", "finished"}))
        << result.output;
  }
}

// Two jobs run at once, a third finds no free device, and one is killed. Their steps mostly sleep, so that
// they leave the cores to other tests.
TEST_F(SharedNode, RunningJobsUseDifferentDevices) {
  const auto job = [&](const std::string& name) {
    return fmt::format(
        "{}{} --inject slow:rank=0,step=1,ms=100 >{} 2>&1", machine(2),
        train("cuda", {"train.steps=0", "train.epochs=100000", "run.dir=" + workplace_.path(name).string()}),
        workplace_.path(name + ".txt").string());
  };
  const auto begin = [&](const std::string& name) {
    return fmt::format("{} &\nrun=$!\n{}=$!\n{}", job(name), name,
                       wait_until(fmt::format("[ -e {}/metrics.jsonl ]", workplace_.path(name).string())));
  };
  const ProgramResult result = run_shell(workplace_.script(
      begin("one") + begin("two") + job("three") + "\necho three ended with $?\n" + "cat " +
      workplace_.path("three.txt").string() + "\nkill -KILL $one\nwait $one\n" + machine(2) + train("cuda") +
      "\necho four ended with $?\nkill -TERM $two\nwait $two\necho two ended with $?\necho $one, $two\n"));
  EXPECT_EQ(count(result.output, "three ended with 78\n"), 1) << result.output;
  const std::vector<double> numbers = numbers_named_in(result.output);
  ASSERT_GE(numbers.size(), 2u) << result.output;
  for (const double process : {numbers[numbers.size() - 2], numbers.back()})
    EXPECT_EQ(count(result.output, fmt::format("process {:.0f}", process)), 1)
        << "the third job must name the holders of the devices:\n"
        << result.output;
  EXPECT_EQ(count(result.output, "four ended with 0\n"), 1) << result.output;
  EXPECT_EQ(count(result.output, "two ended with 75\n"), 1) << result.output;
  // The fourth job used the device of the first. The third opened no context.
  EXPECT_EQ(contexts(), (Contexts{"[1, 0]", "[0, 1]"}));
}

// Like the last processes of a job that was ended and restarts. The claim ends when the job has found it.
TEST_F(SharedNode, AJobWaitsBrieflyForAClaimThatEnds) {
  const std::string held = workplace_.path("held").string(), found = workplace_.path("found").string();
  const ProgramResult result = run_shell(workplace_.script(
      fmt::format("python3 -c \"import fcntl, signal; file = open('{}', 'w'); fcntl.lockf(file, "
                  "fcntl.LOCK_EX); open('{}', 'w'); signal.pause()\" &\nrun=$! holder=$!\n",
                  claim_on(0).string(), held) +
      wait_until("[ -e " + held + " ]") + "LOCKSTEP_HOLD=claim:0:" + found + " " + machine(1) +
      train("cuda") + " &\nrun=$!\n" + wait_until("[ -e " + found + " ]") +
      "kill -KILL $holder\nwait $holder\nrm " + found + "\nwait $run\n"));
  EXPECT_EQ(result.exit_code, 0) << result.output;
  EXPECT_EQ(contexts(), Contexts{"[1]"});
}

// Several ranks give the same answers as one rank and as the CPU.
TEST_F(SharedNode, PredictUsesFreeDevices) {
  constexpr ImageShape kImage{.height = 12, .width = 12, .channels = 1};
  const std::filesystem::path images = workplace_.path("images");
  std::filesystem::create_directories(images);
  for (int i = 0; i < 7; ++i) {
    const Bytes file = encode(kImage, noise(kImage, static_cast<std::uint32_t>(i)));
    std::ofstream(images / fmt::format("{}.jpg", i), std::ios::binary)
        .write(reinterpret_cast<const char*>(file.data()), std::ssize(file));
  }
  const std::string weights = workplace_.path("x.safetensors").string();
  run_well(machine(1) + train("cuda", {"model.name=cnn"}) + " --export " + weights);
  const FileClaim first = take(0);
  const auto answers_of = [&](const std::string& device, int ranks) {
    const std::string file = workplace_.path("answers").string();
    run_well(machine(3) + program("lockstep-emulated") + " predict " + weights + " " + images.string() +
                 " --batch 2 --set world.device=" + device + " >" + file,
             ranks);
    std::vector<nlohmann::json> answers;
    std::istringstream lines(text_of(file));
    for (std::string line; std::getline(lines, line);) answers.push_back(nlohmann::json::parse(line));
    EXPECT_EQ(answers.size(), 7u);
    return answers;
  };
  const std::vector<nlohmann::json> expected = answers_of("cpu", 1), alone = answers_of("cuda", 1);
  EXPECT_EQ(contexts(), Contexts{"[0, 1, 0]"});
  EXPECT_EQ(answers_of("cuda", 2), alone);
  EXPECT_EQ(contexts(), (Contexts{"[0, 1, 0]", "[0, 0, 1]"}));
  for (std::size_t i = 0; i < std::min(alone.size(), expected.size()); ++i) {
    EXPECT_EQ(alone[i]["file"], expected[i]["file"]);
    EXPECT_NEAR(alone[i]["probability"].get<double>(), expected[i]["probability"].get<double>(), 1e-5);
  }
}

class SharedNodeWithNvml : public SharedNode {
 protected:
  SharedNodeWithNvml() {
    stub_.say_all();
    for (int index : {0, 1}) stub_.say(fmt::format("{}.uuid", index + 1), uuid_of_gpu(index));
    stub_.say({{"reasons", "0"}, {"memory.used", "0"}, {"utilization.gpu", "3"}});
  }
  std::string with_nvml() const {
    return fmt::format("LD_LIBRARY_PATH='{}' ", (build_folder() / "nvml_stub").string());
  }

  NvmlStub stub_;
};

TEST_F(SharedNodeWithNvml, IdleChoosesTheLeastUsedDevice) {
  stub_.say("1.utilization.gpu", "8");  // both devices count as idle, so the first one is chosen
  run_well(machine(2) + with_nvml() + train("idle"));
  EXPECT_EQ(contexts(), Contexts{"[1, 0]"});
  for (const auto& [figure, value] :
       std::map<std::string, std::string>{{"1.utilization.gpu", "88"}, {"1.memory.used", "40000000000"}}) {
    stub_.say("1.utilization.gpu", "");
    stub_.say(figure, value);
    const ProgramResult result = run_well(machine(2) + with_nvml() + train("idle"));
    EXPECT_EQ(contexts(), (Contexts{"[0, 1]"})) << figure;
    EXPECT_EQ(lines_naming(result.output, "world.device"), "") << result.output;
  }
  const FileClaim second = take(1);
  stub_.say("1.utilization.gpu", "88");
  const ProgramResult busy = run_well(machine(2) + with_nvml() + train("idle"));
  EXPECT_EQ(contexts(), (Contexts{"[1, 0]"}));
  EXPECT_EQ(count(lines_naming(busy.output, "world.device"), uuid_of_gpu(0)), 1) << busy.output;
}

TEST_F(SharedNode, IdleWithoutNvmlChoosesDevicesInOrderWithAWarning) {
  const FileClaim first = take(0);
  const ProgramResult result = run_well(machine(3) + train("idle"), 2);
  EXPECT_EQ(contexts(), (Contexts{"[0, 1, 0]", "[0, 0, 1]"}));
  const std::string warning = lines_naming(result.output, "world.device");
  EXPECT_EQ(count(warning, "\n"), 1) << result.output;
  expect_parts(warning, {"libnvidia-ml"});
}

TEST_F(SharedNodeWithNvml, InfoNamesTheHoldersOfGpusAndHowTheyAreShared) {
  const FileClaim second = take(1);
  stub_.say("2.virtualization", "2");
  const std::filesystem::path control = workplace_.path("control");
  ASSERT_EQ(mkfifo(control.c_str(), 0666), 0);
  const std::string folder = control.parent_path().string();
  const std::string info = "CUDA_MPS_PIPE_DIRECTORY=" + folder + " " + machine(2) + with_nvml() +
                           "COLUMNS=500 " + program("lockstep-emulated");
  const ProgramResult result = run_shell(info + " info");
  EXPECT_EQ(result.exit_code, 0) << result.output;
  const std::string first = lines_naming(result.output, uuid_of_gpu(0));
  EXPECT_EQ(count(first, "\n"), 1) << result.output;
  EXPECT_EQ(count(first, "vGPU") + count(first, me()), 0) << first;
  const std::string taken = lines_naming(result.output, uuid_of_gpu(1));
  EXPECT_EQ(count(taken, "vGPU") * count(taken, me()), 1) << result.output;
  EXPECT_EQ(count(result.output, folder), 0) << result.output << "no MPS daemon reads the pipe";

  const int daemon = open(control.c_str(), O_RDONLY | O_NONBLOCK);
  ASSERT_GE(daemon, 0);
  EXPECT_EQ(count(run_shell(info + " info").output, folder), 1);
  const std::string train_served =
      "env CUDA_MPS_PIPE_DIRECTORY=" + folder + " " + machine(2) + with_nvml() + train("cuda");
  const auto told_of_mps = [&] { return lines_naming(run_well(train_served).output, "MPS"); };
  const std::string trained = told_of_mps();
  EXPECT_EQ(count(trained, folder), 1) << trained;
  EXPECT_EQ(count(trained, "vGPU"), 0) << trained;
  stub_.say("1.virtualization", "2");
  const std::string on_vgpu = told_of_mps();
  EXPECT_EQ(count(on_vgpu, folder) * count(on_vgpu, "vGPU"), 1) << on_vgpu;
  close(daemon);
}

}  // namespace
}  // namespace lockstep
