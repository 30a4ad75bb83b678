// SPDX-License-Identifier: Apache-2.0
//
// CRC-32C, Castagnoli's (RFC 3720, B.4): of "123456789" it is 0xe3069283. Made by ISA-L, with the processor's
// instruction where it has one.
#pragma once

#include <cstdint>
#include <string_view>

namespace lockstep {

std::uint32_t crc32c(std::string_view bytes);

// The same, turned about and shifted, as TFRecord files and TensorBoard's have it beside data that hold
// checksums themselves.
std::uint32_t masked_crc32c(std::string_view bytes);

}  // namespace lockstep
