// SPDX-License-Identifier: Apache-2.0
//
// What a dataset (data/hdf5/hdf5_images.cpp) and the program lockstep-hdf5, which reads an HDF5 file for it,
// say to each other over the program's standard input and output. A process of its own, because the HDF5
// library crashes on some damaged files, and brings thirty other libraries, and ten milliseconds, to the
// start of whoever links it.
//
//   lockstep-hdf5 WORDS OTHERS SHARED IMAGES LABELS FILE...
//
// WORDS: of the split that is wanted ("train,training"); OTHERS: of the other splits. SHARED: 1 where the
// files hold several splits, so that an array's own name must tell which it is of; 0 where all is of this
// one. IMAGES and LABELS: names of arrays, in which {split} stands for each of WORDS, or "auto". They may be
// in two files.
//
// Every answer begins with an Hdf5Answer. The first follows at once: of a file that can be read Hdf5Facts and
// a label (int32) for each sample. Then each number of a sample (int64) is answered by its image, uint8 [H,
// W, C].
#pragma once

#include <cstdint>

namespace lockstep {

struct Hdf5Answer {
  std::uint32_t failed = 0;         // 1: what follows is text that says why
  std::uint32_t message_bytes = 0;  // of the text
};

struct Hdf5Facts {
  std::int64_t samples = 0;
  std::int64_t height = 0, width = 0, channels = 0;
  std::int64_t largest = 255;  // that stands for 255: 1 where pixels are floating-point numbers from 0 to 1
};

// Of the program: its cache has 64 MiB, and a chunk that it unpacks may have gigabytes.
inline constexpr std::uint64_t kMostHdf5Memory = std::uint64_t{8} << 30;

inline constexpr const char* kHdf5Program = "lockstep-hdf5";

}  // namespace lockstep
