// SPDX-License-Identifier: Apache-2.0
#include "tests/source_folder.h"

namespace lockstep {

std::string source_folder() { return LOCKSTEP_SOURCE_DIR; }

}  // namespace lockstep
