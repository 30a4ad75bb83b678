// SPDX-License-Identifier: Apache-2.0
#include "models/precision.h"

#include "core/error.h"

namespace lockstep {

Precision parse_precision(std::string_view name) {
  if (name == "fp32") return Precision::fp32;
  if (name == "tf32") return Precision::tf32;
  if (name == "bf16") return Precision::bf16;
  if (name == "fp16") return Precision::fp16;
  throw ConfigError(fmt::format("precision \"{}\": allowed are fp32, tf32, bf16, fp16", name));
}

}  // namespace lockstep
