// SPDX-License-Identifier: Apache-2.0
//
// Packs a dataset into record files. Threads read the images, in any order; files are written in the order of
// samples, so that the same dataset and options give the same bytes, whatever the number of threads and
// however often packing was interrupted.
//
// All files come to be in FOLDER.partial, each whole or not at all, which takes the name FOLDER when it has
// all of them: what was interrupted cannot be opened. Files that a run finds there, of the same dataset and
// options, are kept.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "data/dataset.h"

namespace lockstep {

// What goes into a folder: a split's name is what its files begin with.
struct PackSplit {
  std::string name;  // "train"
  const Dataset* dataset = nullptr;
};

struct PackOptions {
  ImageCoding coding = ImageCoding::pixels;
  // Of image files: above 0, JPEG of this quality (1 to 100) is made of the pixels. 0: files as they are, of
  // datasets that have them.
  int jpeg_quality = 0;
  // Of files as they are: images may have sizes of their own, for whoever reads them resizes them.
  bool own_sizes = false;
  std::int64_t shard_bytes = std::int64_t{1} << 30;  // of pixels in a shard, about; one image at least
  int threads = 1;
  // Images that cannot be decoded are left out, instead of ending it all.
  bool leave_out_damaged = false;
};

struct PackProgress {
  std::int64_t done = 0;  // samples, those of shards that were found included
  std::int64_t samples = 0;
  std::int64_t kept_shards = 0;  // which were found
  std::int64_t left_out = 0;     // samples
};

// Calls told_progress after every few samples, by the thread that calls this, and once at the end. Throws
// ConfigError for a folder that is there already, for a FOLDER.partial of something else, and for a coding
// that a dataset does not have; what reading throws, DataError with a hint how to leave such images out; and
// IoError where files cannot be written.
PackProgress pack(const std::vector<PackSplit>& splits, const std::filesystem::path& folder,
                  const PackOptions& options,
                  const std::function<void(const PackProgress&)>& told_progress = {});

}  // namespace lockstep
