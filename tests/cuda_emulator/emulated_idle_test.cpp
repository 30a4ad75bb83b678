// SPDX-License-Identifier: Apache-2.0
//
// A GPU that is made idle, or slow, and what the real program says of it: on the emulated device, with the
// stub of NVML in the driver's place.
#include <fstream>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/launch/monitor/nvml_stub.h"
#include "tests/launch/program.h"

namespace lockstep {
namespace {

const std::vector<std::string> kToldOfEachLine = {
    "world.device=cuda",     "train.batch=32",          "train.steps=12",   "train.precision=fp32",
    "kernels.choose=direct", "run.log_every=2",         "run.busy_lines=1", "run.event_pause_seconds=0",
    "run.peak_below=0",      "run.monitor_seconds=0.01"};

// Of the first event with this cause, its text.
std::string told_cause(const Workplace& workplace, const std::string& cause, const std::string& command) {
  const ProgramResult result = run_shell(command + " 2>&1");
  EXPECT_EQ(result.exit_code, 0) << result.output;
  std::ifstream events(workplace.path("run/events.jsonl"));
  for (std::string line; std::getline(events, line);)
    if (const auto event = nlohmann::json::parse(line); event["cause"] == cause) return event["text"];
  ADD_FAILURE() << cause << " was not told:\n" << result.output;
  return {};
}

// Its host is slow, and what would make up for it does not fit; nor would it in bf16, in which this network's
// rows are padded.
TEST(EmulatedIdle, ADeviceWithoutRoomForALargerBatchIsMemory) {
  const Workplace workplace("emulated_memory", "lockstep-emulated", 28);
  std::vector<std::string> settings = kToldOfEachLine;
  settings.insert(settings.end(), {"train.batch=256", "train.epochs=6"});
  const std::string text = told_cause(workplace, "memory",
                                      "LOCKSTEP_EMULATED_CONTEXT=0 LOCKSTEP_EMULATED_MEMORY=12MiB " +
                                          workplace.train(settings, "--inject slow:rank=0,step=1,ms=400"));
  EXPECT_NE(
      text.find("a batch of 512 needs 11.8 MiB of memory where there are 11.5 MiB; train.accumulation=2"),
      std::string::npos)
      << text;
}

TEST(EmulatedIdle, AGpuThatIsTooHotIsAllocation) {
  const Workplace workplace("emulated_hot", "lockstep-emulated", 28);
  NvmlStub stub;
  stub.say_all();
  stub.say(
      {{"1.uuid", "GPU-656d756c-6174-6564-2047-505500000000"}, {"clock.sm", "990"}, {"reasons", "0x40"}});
  const std::string text = told_cause(
      workplace, "allocation",
      "LD_LIBRARY_PATH=" + (build_folder() / "nvml_stub").string() + " " + workplace.train(kToldOfEachLine));
  EXPECT_NE(
      text.find("the clock of GPU 00000000:3B:00.0 is held at 50 % of what it has (hw_thermal_slowdown)"),
      std::string::npos)
      << text;
  EXPECT_NE(text.find("(+100 %)"), std::string::npos) << text;
}

}  // namespace
}  // namespace lockstep
