// SPDX-License-Identifier: Apache-2.0
//
// Datasets in the IDX format of MNIST (LeCun, Cortes, Burges): big-endian headers, raw bytes, plain or gzip.
// Both files of a split are checked and held in memory.
#pragma once

#include <filesystem>
#include <memory>

#include "data/dataset.h"

namespace lockstep {

// The folder holds train-images-idx3-ubyte, train-labels-idx1-ubyte and the same with t10k for the test
// split, each plain or with .gz; if both exist, the plain one is read. Images of several channels are in
// -images-idx4-ubyte instead, [N, H, W, C]. classes() is the split's largest label plus 1. Throws IoError for
// a missing file, and DataError for a corrupt one, with the file, the offset in its uncompressed bytes, and
// what is wrong there.
std::unique_ptr<Dataset> open_idx(const std::filesystem::path& folder, Split split);

}  // namespace lockstep
