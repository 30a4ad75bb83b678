// SPDX-License-Identifier: Apache-2.0
//
// HDF5 files as a dataset: a folder with train.h5 or train.hdf5, and test or val beside it, each of which
// holds an array of images and one of labels, or two files of each split that hold one of them; or one file
// with arrays of both splits, whose names tell of which. Pixels are uint8, or numbers from 0 to 255, or
// floating-point numbers from 0 to 1, which become 0 to 255. A process of its own reads each split
// (data/hdf5/hdf5_protocol.h), for one thread at a time: `lockstep pack` makes record files of them, which
// are read many times as fast.
#pragma once

#include <filesystem>
#include <memory>

#include "data/dataset.h"

namespace lockstep {

// Throws IoError for missing files; DataError, with the file, for what is no HDF5 file or has no such arrays;
// ConfigError where lockstep-hdf5 was not built.
std::unique_ptr<Dataset> open_hdf5(const DatasetOptions& options, Split split);

}  // namespace lockstep
