// SPDX-License-Identifier: Apache-2.0
//
// Which datasets are decoded once and kept (data.loader): in the memory of the device that trains, or in
// memory that the ranks of a node share.
#pragma once

#include <memory>
#include <string>

#include "comm/communicator.h"
#include "data/preloaded.h"
#include "data/resident.h"

namespace lockstep {

// That several trainings may read.
struct Datasets {
  std::shared_ptr<Dataset> train;
  std::shared_ptr<Dataset> test;
};

struct PreloadOptions {
  LoaderMode mode = LoaderMode::automatic;
  bool several_epochs = false;
  Device device;
  int sharing = 1;                // ranks that share the device's memory
  int threads = 1;                // that read what goes to the device
  bool augments_on_host = false;  // and so needs images there
  bool reads_images = true;       // ResidentOptions::read
};

struct Preloading {
  Datasets sets;       // as they are read from now on
  Datasets to_device;  // of them what move_to_device() puts there, as it is read for that; else null
  std::string told;    // how, for people; empty where there was nothing to choose
  std::string failed;  // why there is no room for what was asked for; empty: there is
};

// Collective over the ranks of a node. Sets are kept where the mode says so, but for what is drawn anew in
// each epoch. `automatic` does that where they are read in several epochs: in a GPU's memory where they take
// no more than a tenth of what is free there; else, if they are decoded at all, in memory that ranks share
// where they take no more than a quarter of what is free and half of what can be shared. On a CPU, whose
// memory is the host's, and where images are augmented on the host, `device` is `preload`.
Preloading preload(const Datasets& sets, const PreloadOptions& options, Communicator& node);

// Returns the sets with those on the device that are to go there. Reads these whole, and throws what
// resident() throws (data/resident.h).
Datasets move_to_device(const Preloading& made, const PreloadOptions& options, const Shard& shard);

}  // namespace lockstep
