// SPDX-License-Identifier: Apache-2.0
//
// Trainings by the whole program on the emulated device or on a GPU.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "core/device.h"
#include "tests/launch/program/program.h"

namespace lockstep {

using Settings = std::vector<std::string>;

// A run on a machine with these variables.
struct EmulatedRun {
  int ranks = 2;
  Settings settings = {};
  std::string machine = {};  // "NAME=value .." of LOCKSTEP_EMULATED_; a GPU ignores them
};

inline std::string command_of(const Workplace& workplace, const EmulatedRun& run, const std::string& flags) {
  // No timed choices, because they would change the order of sums.
  Settings settings = {"world.device=cuda", "model.name=cnn", "train.steps=12", "kernels.choose=direct"};
  settings.insert(settings.end(), run.settings.begin(), run.settings.end());
  return "env " + run.machine + " " + workplace.train(settings, flags);
}

// The digest of the state at the end of the run.
inline std::string digest_of(const Workplace& workplace, const EmulatedRun& run) {
  const auto file = workplace.path("digest");
  std::filesystem::remove(file);
  const ProgramResult result = run_ranks(run.ranks, command_of(workplace, run, "--digest " + file.string()));
  EXPECT_EQ(result.exit_code, 0) << result.output;
  return text_of(file);
}

// Skipped if the tested program needs a GPU and the machine has none.
class OnDevice : public testing::Test {
 protected:
  void SetUp() override {
    if (device_program() == "lockstep" && cuda_status().devices.empty()) GTEST_SKIP() << "no CUDA device";
  }
};

class DigestOnDevice : public OnDevice {
 protected:
  Workplace workplace_{"device_digest", device_program()};
};

class EmulatedDigest : public testing::Test {
 protected:
  Workplace workplace_{"emulated_digest", "lockstep-emulated"};
};

}  // namespace lockstep
