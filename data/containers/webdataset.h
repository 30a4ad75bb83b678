// SPDX-License-Identifier: Apache-2.0
//
// WebDataset: tar files (POSIX ustar and pax, GNU) whose members are parts of samples. Consecutive members
// whose paths are equal up to the first dot of their names form a sample. Its image (.jpg, .jpeg or .png) and
// its label (.cls: a number as text) are used. Other parts and hidden members ("._0001.jpg") are skipped, and
// so are, with a warning, further images of a sample, and images and labels that are links. A file may hold
// several archives ("cat a.tar b.tar"). The first sample that is skipped because its name has several dots
// ("3.5.jpg") causes a warning, and so does the first file without the mark of an archive's end.
#pragma once

#include <memory>

#include "data/dataset.h"

namespace lockstep {

// The files of a split have "train", or "test" or "val", and ".tar" in their names; gzip files are unpacked
// first (data/containers/unpacked_file.h). Every start reads the headers of all members. Throws IoError for
// files that are missing or cannot be read; DataError, with file and offset, for files that are no tar files,
// damaged or cut off, and for a sample without an image or a label or with two labels.
std::unique_ptr<Dataset> open_webdataset(const DatasetOptions& options, Split split);

}  // namespace lockstep
