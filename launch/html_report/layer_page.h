// SPDX-License-Identifier: Apache-2.0
//
// The page of `lockstep profile --html`: where the time of a step goes, layer by layer, and how near each is
// to what the machine could do. One file, which loads nothing.
#pragma once

#include <span>
#include <string>

#include "core/timeline.h"
#include "launch/layer_profile.h"

namespace lockstep {

struct LayerPage {
  std::string network;
  std::string where;    // "on cpu, 2 ranks x batch 32 ..."
  StepAccount account;  // of all steps
  int steps = 1;
  double peak_gigaflops = 0;  // per second, in the precision of the training
  double peak_gigabytes = 0;
  double step_gigaflops = 0;                     // per second, that the step reaches
  std::span<const LayerProfile::Row> rows = {};  // the longest first
};

std::string layer_page(const LayerPage& page);

}  // namespace lockstep
