// SPDX-License-Identifier: Apache-2.0
//
// Finds the arrays of a split in HDF5 files by their names.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "data/hdf5/hdf5_file.h"

namespace lockstep {

// The arguments of lockstep-hdf5 (data/hdf5/hdf5_protocol.h).
struct ArrayRequest {
  std::vector<std::string> words, others;  // of the wanted split, and of the other splits
  bool shared = false;                     // the files hold several splits
  std::string images, labels;              // names of arrays, or "auto"
};

// The split has images, but no labels.
struct Hdf5NoLabels : Hdf5Error {
  using Hdf5Error::Hdf5Error;
};

struct ArrayPlace {
  hid_t file;
  std::string array;
  bool operator==(const ArrayPlace&) const = default;
};

// The arrays of a split. word, other_word: as in Hdf5Facts.
struct SplitArrays {
  ArrayPlace images, labels;
  std::int64_t word = -1, other_word = -1;
};

// Finds the images and the labels of the first word of the split that has both. If the files hold only this
// split, their names may also have no word, or different words. Throws Hdf5Error if there are none or if the
// names of several fit equally well, Hdf5NoLabels if there are only images.
SplitArrays arrays_of(const std::vector<Hdf5File>& files, const ArrayRequest& request);

}  // namespace lockstep
