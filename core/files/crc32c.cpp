// SPDX-License-Identifier: Apache-2.0
#include "core/files/crc32c.h"

#include <algorithm>
#include <bit>
#include <limits>

#include <isa-l/crc.h>

namespace lockstep {

std::uint32_t crc32c(std::string_view bytes) {
  constexpr std::size_t kMost = std::numeric_limits<int>::max();
  std::uint32_t crc = ~std::uint32_t{0};
  while (!bytes.empty()) {
    const std::string_view piece = bytes.substr(0, std::min(bytes.size(), kMost));
    // ISA-L's function only reads, although its parameter is not const.
    auto* data = reinterpret_cast<unsigned char*>(const_cast<char*>(piece.data()));
    crc = crc32_iscsi(data, static_cast<int>(piece.size()), crc);
    bytes.remove_prefix(piece.size());
  }
  return ~crc;
}

std::uint32_t masked_crc32c(std::string_view bytes) { return std::rotr(crc32c(bytes), 15) + 0xa282ead8u; }

}  // namespace lockstep
