// SPDX-License-Identifier: Apache-2.0
#include "data/dataset.h"

#include "core/error.h"
#include "data/idx.h"
#include "data/jpeg_folder.h"

namespace lockstep {

std::unique_ptr<Dataset> open_dataset(const DatasetOptions& options, Split split) {
  if (options.format == "idx") return open_idx(options.path, split);
  if (options.format == "jpeg_folder") return open_jpeg_folder(options.path, split);
  throw ConfigError(fmt::format("data.format = \"{}\": allowed are idx, jpeg_folder", options.format));
}

}  // namespace lockstep
