// SPDX-License-Identifier: Apache-2.0
//
// Resident: a dataset with all images in a device's memory. Loaders then prepare only labels, and the images
// of a batch are gathered in device memory (data/device_batches.h).
#pragma once

#include <cstddef>
#include <memory>

#include "core/device.h"
#include "data/batch_loader.h"
#include "data/dataset.h"

namespace lockstep {

// Bytes of device memory that the dataset's images take.
std::size_t resident_bytes(const Dataset& dataset);

struct ResidentOptions {
  Device device;
  int threads = 1;  // that read images
  Shard shard;  // where this rank begins to read, among ranks that share a preload (data/sets/preloaded.h)
  bool read = true;  // false: only allocate; all images are black with label 0
};

// Reads all images now. For an image that cannot be decoded, each later read() throws DataError, as the
// dataset's own does. Throws Error for a dataset with random augmentation (Dataset::draws()), MemoryError if
// the device has no room, and what read() throws for files that cannot be read. source: a faster copy of the
// dataset to read from, released on return; null: read the dataset itself.
std::unique_ptr<Dataset> resident(std::shared_ptr<const Dataset> dataset,
                                  std::shared_ptr<const Dataset> source, const ResidentOptions& options);

}  // namespace lockstep
