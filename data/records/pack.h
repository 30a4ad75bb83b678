// SPDX-License-Identifier: Apache-2.0
//
// Packs a dataset into record files. Threads read the images in any order, but files are written in the order
// of samples: the same dataset and options give the same bytes, for any number of threads and interruptions.
//
// Files are written to FOLDER.partial, each atomically, which is renamed to FOLDER when it is complete: an
// interrupted set cannot be opened. A later run keeps complete files of the same dataset and options.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "data/dataset.h"

namespace lockstep {

// One split of the folder; its files' names begin with `name`.
struct PackSplit {
  std::string name;  // "train"
  const Dataset* dataset = nullptr;
};

struct PackOptions {
  ImageCoding coding = ImageCoding::pixels;
  // For ImageCoding::file. 1 to 100: encode the pixels as JPEG of this quality. 0: copy the dataset's image
  // files.
  int jpeg_quality = 0;
  // For copied image files: images may differ in size; the reader must resize them.
  bool own_sizes = false;
  std::int64_t shard_bytes = std::int64_t{1} << 30;  // about, of decoded pixels; at least one image
  int threads = 1;
  // Leave out images that cannot be decoded, instead of throwing.
  bool leave_out_damaged = false;
  // How the datasets prepare images, as any text that is equal only for equal pixels.
  std::string preparation = {};
};

struct PackProgress {
  std::int64_t done = 0;  // samples, including those of kept shards
  std::int64_t samples = 0;
  std::int64_t kept_shards = 0;  // from an earlier run
  std::int64_t left_out = 0;     // samples
};

// Calls told_progress on the calling thread, after every few samples and after each shard. Throws ConfigError
// if the folder exists, if FOLDER.partial is of another dataset or other options, and for a coding that a
// dataset does not have; what reading throws; and IoError if files cannot be written.
PackProgress pack(const std::vector<PackSplit>& splits, const std::filesystem::path& folder,
                  const PackOptions& options,
                  const std::function<void(const PackProgress&)>& told_progress = {});

}  // namespace lockstep
