// SPDX-License-Identifier: Apache-2.0
//
// TFRecord: files of records, each a length and bytes with CRC-32C of both, that hold a tf.Example: an image
// under "image/encoded" or "image", and its label, a number, under "image/class/label" or "label".
//
// Such a file cannot be entered at random. What is learned by reading it once stands in an index beside it,
// FILE.lsindex, from then on; a file that has changed since is read again. Where the folder cannot be written
// to, every start reads the files as a whole.
#pragma once

#include <filesystem>
#include <memory>

#include "data/dataset.h"

namespace lockstep {

// The files of a split are those with "train", or "test" or "val", in their names that have ".tfrecord" there
// or end as shards do ("train-00003-of-01024"). Throws IoError for what is missing or cannot be read;
// DataError, with file and offset, for what is damaged or cut off, is no tf.Example, or has no image or
// label.
std::unique_ptr<Dataset> open_tfrecord(const DatasetOptions& options, Split split);

}  // namespace lockstep
