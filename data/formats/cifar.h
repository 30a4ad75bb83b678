// SPDX-License-Identifier: Apache-2.0
//
// CIFAR-10 and CIFAR-100 in their binary version (Krizhevsky): records of a label, or of a coarse and a fine
// label, and 32x32 pixels, channel by channel. A split is checked and held in memory, channels last.
#pragma once

#include <filesystem>
#include <memory>

#include "data/dataset.h"

namespace lockstep {

// The folder is what the archive unpacks to: data_batch_1.bin to data_batch_5.bin and test_batch.bin for
// CIFAR-10; train.bin and test.bin for CIFAR-100, of which the fine labels are used. Images are [32, 32, 3],
// RGB. Throws IoError for a missing file; DataError for a file of more than 4 GiB, a partial record or an
// invalid label (with file and offset), and for a folder that has files of both datasets.
std::unique_ptr<Dataset> open_cifar(const std::filesystem::path& folder, Split split);

}  // namespace lockstep
