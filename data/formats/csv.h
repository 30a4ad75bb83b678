// SPDX-License-Identifier: Apache-2.0
//
// Tables as text (RFC 4180): each row is a sample, with numbers and a label. A split is read, checked, scaled
// and held in memory as fp32.
#pragma once

#include <memory>

#include "data/dataset.h"

namespace lockstep {

// options.path is a folder with files that have ".csv", and "train", or "test" or "val", in their names; or
// one file, which data.validation_share then divides. Samples are [1, columns, 1]. Gzip files are unpacked
// (data/containers/unpacked_file.h).
//
// Cells are separated by commas, semicolons (numbers may then have decimal commas) or tabs; a byte order mark
// is skipped. Delimiter, header row and label column are guessed from the first rows unless options.csv sets
// them; the log shows the guesses. If all labels are whole numbers from 0, they are the classes; otherwise
// labels are names, and classes are numbered in the order of the names. Columns are scaled by the statistics
// of the training rows (without those kept for testing); a scaled column with a single value becomes zeros.
//
// A row is left out and counted if its number of cells differs from the first row's, a cell is not a finite
// number, its label is missing (an empty cell, or "NA", "nan" and the like among numbers), or its label is
// not in the training set; the log names the first such rows. Throws DataError for such a row if
// options.on_error is stop, for files of a split with different decimal points, for a split of which more
// than half would be left out, and for a label column of 20 or more training rows with a different value in
// each. Throws IoError for missing files and ConfigError for unknown columns.
std::unique_ptr<Dataset> open_csv(const DatasetOptions& options, Split split);

}  // namespace lockstep
