// SPDX-License-Identifier: Apache-2.0
//
// TFRecord: files of records, each a length and bytes with CRC-32C of both, that hold a tf.Example: an image
// and its label, a whole number. TfRecordOptions names the two features.
//
// TFRecord files have no random access. The first start reads a file as a whole and writes an index beside
// it, FILE.lsindex; a file that has changed since is read again. If the folder is not writable, every start
// reads the files as a whole.
#pragma once

#include <memory>

#include "data/dataset.h"

namespace lockstep {

// The files of a split have "train", or "test" or "val", in their names, and ".tfrec", or end like shards
// ("train-00003-of-01024"). Throws IoError for files that are missing or cannot be read; DataError, with file
// and offset, for records that are damaged, cut off, no tf.Example, without an image or label, or with
// several images or labels, such as a one-hot vector.
std::unique_ptr<Dataset> open_tfrecord(const DatasetOptions& options, Split split);

}  // namespace lockstep
