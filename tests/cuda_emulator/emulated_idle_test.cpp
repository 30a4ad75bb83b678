// SPDX-License-Identifier: Apache-2.0
//
// The causes that the program reports for an idle or slow GPU, on the emulated device, with a stub of NVML
// instead of the driver.
#include <fstream>
#include <regex>

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/launch/observe/monitor/nvml_stub.h"
#include "tests/launch/program/program.h"
#include "tests/message_of.h"

namespace lockstep {
namespace {

const std::vector<std::string> kToldOfEachLine = {
    "world.device=cuda",     "train.batch=32",          "train.steps=12",   "train.precision=fp32",
    "kernels.choose=direct", "run.log_every=2",         "run.busy_lines=1", "run.event_pause_seconds=0",
    "run.peak_below=0",      "run.monitor_seconds=0.01"};

// The first event with this cause whose text contains the part; an empty object without one.
nlohmann::json event_of(const Workplace& workplace, const std::string& cause, const std::string& command,
                        const std::string& part = "") {
  const ProgramResult result = run_shell(command + " 2>&1");
  EXPECT_EQ(result.exit_code, 0) << result.output;
  std::ifstream events(workplace.path("run/events.jsonl"));
  for (std::string line; std::getline(events, line);)
    if (auto event = nlohmann::json::parse(line);
        event["cause"] == cause && count(event.value("text", ""), part) > 0)
      return event;
  ADD_FAILURE() << "no event has the cause " << cause << " " << part << ":\n" << result.output;
  return nlohmann::json::object();
}

// The host is slow in steps 3 and 4, and a larger batch that would hide this does not fit into memory, not
// even in bf16, whose padding enlarges this network's rows.
TEST(EmulatedIdle, ADeviceWithoutSpaceForALargerBatchHasCauseMemory) {
  const Workplace workplace("emulated_memory", "lockstep-emulated", 28);
  std::vector<std::string> settings = kToldOfEachLine;
  settings.insert(settings.end(), {"train.batch=256", "train.epochs=2"});
  const nlohmann::json event = event_of(workplace, "memory",
                                        "LOCKSTEP_EMULATED_CONTEXT=0 LOCKSTEP_EMULATED_MEMORY=12MiB " +
                                            workplace.train(settings, "--inject slow:rank=0,step=3,ms=2000"));
  EXPECT_EQ(event.value("key", ""), "train.accumulation");
  EXPECT_EQ(event.value("value", ""), "2");
  const std::string text = event.value("text", "");
  EXPECT_TRUE(std::regex_search(text, std::regex(R"(batch\D*\b512\b)"))) << text;
  expect_parts(text, {"11.8 MiB", "11.5 MiB", "train.accumulation=2"});
}

// The training is held after its first step until the monitor has written two samples.
TEST(EmulatedIdle, AnOverheatedGpuHasCauseAllocation) {
  const Workplace workplace("emulated_hot", "lockstep-emulated", 28);
  NvmlStub stub;
  stub.say_all();
  stub.say(
      {{"1.uuid", "GPU-656d756c-6174-6564-2047-505500000000"}, {"clock.sm", "990"}, {"reasons", "0x40"}});
  const std::string held = workplace.path("held").string();
  const std::string sampled = wait_until(fmt::format("[ -e {} ] && [ $(cat {} 2>/dev/null | wc -l) -ge 3 ]",
                                                     held, workplace.path("run/monitor.csv").string()));
  const nlohmann::json event = event_of(
      workplace, "allocation",
      fmt::format("LOCKSTEP_HOLD=step:0:{0} LD_LIBRARY_PATH='{1}' {2} & run=$!\n{3}rm {0}\nwait $run", held,
                  (build_folder() / "nvml_stub").string(), workplace.train(kToldOfEachLine), sampled),
      "hw_thermal_slowdown");
  expect_parts(event.value("text", ""), {"00000000:3B:00.0", "50 %", "hw_thermal_slowdown"});
  EXPECT_NEAR(event.value("samples_per_second_estimated", 0.0), 2 * event.value("samples_per_second", 0.0),
              0.01 * event.value("samples_per_second", 1.0));
}

}  // namespace
}  // namespace lockstep
