// SPDX-License-Identifier: Apache-2.0
//
// IDX files made by the tests, plain or compressed with gzip.
#pragma once

#include <cstdint>

#include "data/dataset.h"
#include "tests/temporary_folder.h"

namespace lockstep {

Bytes idx_images(std::uint32_t count, std::uint32_t height, std::uint32_t width, const Bytes& pixels);
Bytes idx_colour_images(std::uint32_t count, const ImageShape& shape, const Bytes& pixels);
Bytes idx_labels(const Bytes& labels);
Bytes gzip(const Bytes& bytes);

}  // namespace lockstep
