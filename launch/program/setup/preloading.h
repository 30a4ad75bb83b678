// SPDX-License-Identifier: Apache-2.0
//
// Decodes datasets once and keeps them (data.loader): in the memory of the training device, or in memory that
// the ranks of a node share.
#pragma once

#include <limits>
#include <memory>
#include <string>

#include "comm/communicator.h"
#include "data/sets/preloaded.h"
#include "data/sets/resident.h"

namespace lockstep {

// Several trainings may share them.
struct Datasets {
  std::shared_ptr<Dataset> train;
  std::shared_ptr<Dataset> test;
};

struct PreloadOptions {
  LoaderMode mode = LoaderMode::automatic;
  bool several_epochs = false;
  Device device;
  int sharing = 1;                                                     // ranks that share the device's memory
  std::size_t memory_limit = std::numeric_limits<std::size_t>::max();  // of the device, for each rank
  int threads = 1;                                                     // that read images for the device
  bool augments_on_host = false;                                       // images are needed on the host
  bool reads_images = true;                                            // ResidentOptions::read
};

struct Preloading {
  Datasets sets;       // to read from now on
  Datasets on_host;    // those of `sets` that keep their images in host memory; else null
  Datasets to_device;  // source for move_to_device(), of the sets that it moves; else null
  std::string told;    // the choice, for the log; empty if there was none
  std::string failed;  // why the requested mode does not fit; empty: it fits
};

// Collective over the ranks of a node. Keeps sets as `mode` says, except those that draw new samples in each
// epoch. `automatic` keeps them only if they are read in several epochs: in GPU memory if they take at most a
// tenth of what is free; otherwise, if they need decoding, in shared memory if they take at most a quarter of
// free memory and half of what can be shared. On a CPU, if images are augmented on the host, and for masks in
// files, `device` means `preload`.
Preloading preload(const Datasets& sets, const PreloadOptions& options, Communicator& node);

// Decodes the images of `on_host` now (data.preload = "before"), each rank of the node a share, and adds
// their number and the time to `told`. Collective over all ranks; errors are agreed. speaks: this rank shows
// the progress.
struct DecodingOptions {
  int threads = 1;
  OnError on_error = OnError::leave_out;
  bool speaks = false;
};
void decode_before_training(Preloading& made, const DecodingOptions& options, Communicator& host,
                            Communicator& node);

// Returns the sets, with those of `to_device` moved to the device; reads them whole. Throws what resident()
// throws (data/sets/resident.h).
Datasets move_to_device(const Preloading& made, const PreloadOptions& options, const Shard& shard);

}  // namespace lockstep
