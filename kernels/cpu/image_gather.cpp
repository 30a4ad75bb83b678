// SPDX-License-Identifier: Apache-2.0
#include "kernels/image_gather.h"

#include <cstring>

#include "kernels/cpu/backend.h"
#include "kernels/cpu/deal.h"

namespace lockstep {

void CpuBackend::gather_images(Stream& stream, const ImageGather& a) {
  in_order(stream, [a] {
    deal(a.batch, [&](std::int64_t i) {
      const auto bytes = static_cast<std::size_t>(a.image_bytes);
      std::byte* to = a.output + i * a.image_bytes;
      if (a.rows[i] < 0) {
        std::memset(to, 0, bytes);
      } else {
        std::memcpy(to, a.images + a.rows[i] * a.image_bytes, bytes);
      }
    });
  });
}

}  // namespace lockstep
