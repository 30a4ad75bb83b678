// SPDX-License-Identifier: Apache-2.0
//
// The protocol between a dataset (data/hdf5/hdf5_images.cpp) and the program lockstep-hdf5, which reads HDF5
// files for it, over the program's standard input and output. It is a separate process because the HDF5
// library crashes on some damaged files, and adds thirty libraries and 10 ms to the start of a program that
// links it.
//
//   lockstep-hdf5 WORDS OTHERS SHARED IMAGES LABELS FILE...
//
// WORDS: words of the wanted split ("train,training"); OTHERS: words of the other splits. SHARED: 1 if the
// files may hold several splits, so that an array's name must contain a word of its split; 0 if they hold
// only this one. IMAGES and LABELS: names of arrays, in which {split} is replaced by a word, or "auto". The
// arrays of the first of WORDS that has both are used. They may be in two files.
//
// Every answer begins with an Hdf5Answer. The first is sent at once: for files that can be read, Hdf5Facts
// and a label (int32) for each sample follow. Then the program answers each sample index (int64) with its
// image, uint8 [H, W, C].
#pragma once

#include <cstdint>

namespace lockstep {

// in_use: another program has a file open for writing. unlabelled: there are images, but no labels.
enum class Hdf5Failure : std::uint32_t { none, damaged, in_use, unlabelled };

struct Hdf5Answer {
  Hdf5Failure failure = Hdf5Failure::none;  // another value: an error message follows
  std::uint32_t message_bytes = 0;          // of the error message
};

struct Hdf5Facts {
  std::int64_t samples = 0;
  std::int64_t height = 0, width = 0, channels = 0;
  std::int64_t largest = 255;  // stored value that becomes 255: 1 for floating-point pixels from 0 to 1
  std::int64_t guessed = 0;    // 1: `largest` was guessed from some pixels, which are floating-point numbers
  // Places in WORDS. word: that of the arrays that are used. other_word: the first with images in another
  // array; -1 if there is none, and for files of one split. If it comes before `word`, it has no labels.
  std::int64_t word = -1, other_word = -1;
};

// Address space limit of the program: its cache has 64 MiB, and an unpacked chunk may have gigabytes.
inline constexpr std::uint64_t kMostHdf5Memory = std::uint64_t{8} << 30;

inline constexpr const char* kHdf5Program = "lockstep-hdf5";

}  // namespace lockstep
