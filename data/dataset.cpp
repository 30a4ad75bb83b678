// SPDX-License-Identifier: Apache-2.0
#include "data/dataset.h"

#include "core/error.h"
#include "data/idx.h"

namespace lockstep {

std::unique_ptr<Dataset> open_dataset(const DatasetOptions& options, Split split) {
  if (options.format == "idx") return open_idx(options.path, split);
  throw ConfigError(fmt::format("data.format = \"{}\": allowed is idx", options.format));
}

}  // namespace lockstep
