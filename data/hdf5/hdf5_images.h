// SPDX-License-Identifier: Apache-2.0
//
// HDF5 files as a dataset: a folder with train.h5 or train.hdf5, and test or val beside it, each of which
// holds an array of images (uint8) and one of labels. A process of its own reads
// each file (data/hdf5/hdf5_protocol.h), for one thread at a time: `lockstep pack` makes record files of
// them, which are read many times as fast.
#pragma once

#include <filesystem>
#include <memory>

#include "data/dataset.h"

namespace lockstep {

// Throws IoError for missing files; DataError, with the file, for what is no HDF5 file or has no such arrays;
// ConfigError where lockstep-hdf5 was not built.
std::unique_ptr<Dataset> open_hdf5(const DatasetOptions& options, Split split);

}  // namespace lockstep
