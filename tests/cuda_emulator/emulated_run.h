// SPDX-License-Identifier: Apache-2.0
//
// Trainings by lockstep-emulated, for tests of the whole program.
#pragma once

#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/launch/program.h"

namespace lockstep {

using Settings = std::vector<std::string>;

// A machine with these variables, and a run on it.
struct EmulatedRun {
  int ranks = 2;
  Settings settings = {};
  std::string machine = {};  // "NAME=value .." of LOCKSTEP_EMULATED_
};

inline std::string command_of(const Workplace& workplace, const EmulatedRun& run, const std::string& flags) {
  // No choice by time, which would change what is summed in which order.
  Settings settings = {"world.device=cuda", "model.name=cnn", "train.steps=12", "kernels.choose=direct"};
  settings.insert(settings.end(), run.settings.begin(), run.settings.end());
  return "env " + run.machine + " " + workplace.train(settings, flags);
}

class EmulatedDigest : public testing::Test {
 protected:
  Workplace workplace_{"emulated_digest", "lockstep-emulated"};
};

}  // namespace lockstep
