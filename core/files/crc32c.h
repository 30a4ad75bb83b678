// SPDX-License-Identifier: Apache-2.0
//
// CRC-32C (Castagnoli; RFC 3720, B.4): the CRC of "123456789" is 0xe3069283. Computed by ISA-L, with the
// processor's instruction where available.
#pragma once

#include <cstdint>
#include <string_view>

namespace lockstep {

std::uint32_t crc32c(std::string_view bytes);

// The rotated and offset ("masked") CRC that TFRecord and TensorBoard files store with their data.
std::uint32_t masked_crc32c(std::string_view bytes);

}  // namespace lockstep
