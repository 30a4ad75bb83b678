// SPDX-License-Identifier: Apache-2.0
//
// The page of `lockstep profile --html`: the time of a step by layer, and how close each layer is to the peak
// of the machine. One file, which loads nothing.
#pragma once

#include <span>
#include <string>

#include "core/timeline.h"
#include "launch/observe/profile/layer_profile.h"

namespace lockstep {

struct LayerPage {
  std::string network;
  std::string where;    // "on cpu, 2 ranks x batch 32 ..."
  StepAccount account;  // of all steps
  int steps = 1;
  double peak_gigaflops = 0;  // per second, in the precision of the training; 0: not measured
  double peak_gigabytes = 0;
  double step_gigaflops = 0;                     // per second, reached by the step
  std::span<const LayerProfile::Row> rows = {};  // the longest first
};

std::string layer_page(const LayerPage& page);

}  // namespace lockstep
