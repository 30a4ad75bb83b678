// SPDX-License-Identifier: Apache-2.0
//
// WebDataset: tar files (POSIX ustar and pax, GNU) whose members are the parts of samples: those whose paths
// are the same up to the first dot of their names belong together, and follow each other. Of a sample its
// image
// (.jpg, .jpeg or .png) and its label (.cls: a number as text) are taken; other parts are passed over.
#pragma once

#include <filesystem>
#include <memory>

#include "data/dataset.h"

namespace lockstep {

// The files of a split are those with "train", or "test" or "val", and ".tar" in their names; compressed ones
// cannot be read at random and are refused. The headers of all members are read at the start. Throws IoError
// for what is missing or cannot be read; DataError, with file and offset, for what is no tar file, is damaged
// or cut off, and for a sample without an image or a label.
std::unique_ptr<Dataset> open_webdataset(const DatasetOptions& options, Split split);

}  // namespace lockstep
