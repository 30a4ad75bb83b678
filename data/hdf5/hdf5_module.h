// SPDX-License-Identifier: Apache-2.0
//
// What data/hdf5/hdf5_images.cpp calls of lockstep_hdf5.so, which is loaded where an HDF5 file is to be read:
// the HDF5 library brings thirty others with it, and ten milliseconds to every start. One thread at a time.
// Functions that fail return null or -1, and write why into `message`, of kMessageBytes.
#pragma once

#include <cstddef>
#include <cstdint>

namespace lockstep {

struct Hdf5File;  // the module's

// Images are uint8.
struct Hdf5Facts {
  std::int64_t samples = 0;
  std::int64_t height = 0, width = 0, channels = 0;
};

struct Hdf5Module {
  static constexpr int kVersion = 1;
  static constexpr std::size_t kMessageBytes = 1024;
  // The one symbol of the module.
  static constexpr const char* kSymbol = "lockstep_hdf5_module";

  int version;
  // images, labels: names of datasets, or "auto".
  Hdf5File* (*open)(const char* path, const char* images, const char* labels, Hdf5Facts* facts,
                    char* message);
  // Of all samples.
  int (*read_labels)(Hdf5File* file, std::int32_t* labels, char* message);
  // [H, W, C].
  int (*read_image)(Hdf5File* file, std::int64_t index, std::uint8_t* image, char* message);
  void (*close)(Hdf5File* file);
};

}  // namespace lockstep
