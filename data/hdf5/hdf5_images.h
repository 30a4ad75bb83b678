// SPDX-License-Identifier: Apache-2.0
//
// HDF5 files as a dataset: a folder with train.h5 or train.hdf5, and test or val, each with an array of
// images and one of labels, or with two files per split that hold one array each; or one file with arrays of
// both splits, named by split. The path may be that of a file; if its name has only words of one split, names
// of the arrays of that split need no word. If there are test images with several words (test.h5 and val.h5,
// or X_test and X_val), the first word that also has labels is used and logged.
//
// Pixels are uint8, or numbers from 0 to 255, or floating-point numbers from 0 to 1, which become 0 to 255. A
// separate process reads each split (data/hdf5/hdf5_protocol.h), for one thread at a time: convert to record
// files with `lockstep pack` for many times the speed.
#pragma once

#include <memory>

#include "data/dataset.h"

namespace lockstep {

// Throws IoError for files that are missing, not readable, or open for writing in another program; DataError,
// with the file, for one that is no HDF5 file or lacks the arrays, and for floating-point pixels of both
// splits whose ranges seem to differ; ConfigError if lockstep-hdf5 was not built, and for one array that
// options.hdf5 names for both splits.
std::unique_ptr<Dataset> open_hdf5(const DatasetOptions& options, Split split);

}  // namespace lockstep
