// SPDX-License-Identifier: Apache-2.0
//
// Tables as text (RFC 4180): a row is a sample, of numbers and a label. A split is read, checked, scaled and
// held in memory, as fp32.
#pragma once

#include <memory>

#include "data/dataset.h"

namespace lockstep {

// options.path is a folder with files that end in ".csv" and have "train", or "test" or "val", in their
// names; or a file, which data.validation_share then divides. Samples are [1, columns, 1].
//
// Cells may be parted by commas, semicolons (numbers then with decimal commas, too) or tabs, and a byte order
// mark may lead. Which, whether the first row holds the columns' names, and which column is the label, is
// guessed from the first rows unless options.csv says it, and told. Labels of which all are whole numbers
// from 0 on are classes as they are; others are names, and classes in their order. Columns are scaled by what
// the training set's rows are (without those that are kept to test with); a column of one value becomes
// zeros.
//
// A row with another number of cells than the first, a cell that is no finite number, or a label that the
// training set has not is left out and counted, the first of them named in the log, or throws DataError
// (options.on_error); so does a table of which more than half would be left out. Throws IoError for what is
// missing, ConfigError for columns that there are not, and DataError for a label column with another value in
// every row.
std::unique_ptr<Dataset> open_csv(const DatasetOptions& options, Split split);

}  // namespace lockstep
