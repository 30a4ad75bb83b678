// SPDX-License-Identifier: Apache-2.0
//
// Resident: a dataset whose images lie in a device's memory, all of them. Loaders then prepare labels alone,
// and the images of a batch are gathered where they lie (data/device_batches.h).
#pragma once

#include <cstddef>
#include <memory>

#include "core/device.h"
#include "data/batch_loader.h"
#include "data/dataset.h"

namespace lockstep {

// Of the device's memory.
std::size_t resident_bytes(const Dataset& dataset);

struct ResidentOptions {
  Device device;
  int threads = 1;   // that read images
  Shard shard;       // where this one begins to read, of those who share what they decode (data/preloaded.h)
  bool read = true;  // false: all are black and of label 0, for who asks for the memory alone
};

// Reads all images now. One that cannot be decoded is an error of each who wants it later, as it is of the
// dataset itself. What is drawn at random to train with cannot be resident (Dataset::draws()): an Error.
// source: read in place of the dataset, of which it is a copy that is quicker, and given back then; null: the
// dataset itself. Throws MemoryError where the device has no room, and what read() throws of files that
// cannot be read.
std::unique_ptr<Dataset> resident(std::shared_ptr<const Dataset> dataset,
                                  std::shared_ptr<const Dataset> source, const ResidentOptions& options);

}  // namespace lockstep
