// SPDX-License-Identifier: Apache-2.0
//
// Which datasets are decoded once and kept (data.loader), in memory that the ranks of a node share.
#pragma once

#include <memory>
#include <string>

#include "comm/communicator.h"
#include "data/preloaded.h"

namespace lockstep {

// That several trainings may read.
struct Datasets {
  std::shared_ptr<Dataset> train;
  std::shared_ptr<Dataset> test;
};

struct Preloading {
  Datasets sets;       // as they are read from now on
  std::string told;    // how, for people; empty where there was nothing to choose
  std::string failed;  // why a node has no room for what was asked for; empty: it has
};

// Collective over the ranks of a node. Sets are preloaded (data/preloaded.h) where the mode says so, but for
// what is drawn anew in each epoch: with `automatic` where they are decoded at all and read in several
// epochs, and take no more than a quarter of the memory that is free and half of what ranks can share.
Preloading preload(const Datasets& sets, LoaderMode mode, bool several_epochs, Communicator& node);

}  // namespace lockstep
