// SPDX-License-Identifier: Apache-2.0
#include "kernels/color_jitter_functors.h"
#include "kernels/cpu/backend.h"
#include "kernels/cpu/deal.h"
#include "kernels/shape_checks.h"

namespace lockstep {

void CpuBackend::color_jitter(Stream& stream, const ColorJitterArguments& a) {
  check_color_jitter(a.how, a.channels);
  in_order(stream, [a] {
    const Jitter jitter = Jitter::from(a);
    const std::int64_t pixels = a.height * a.width;
    deal(a.batch, [&](std::int64_t image) {
      const std::int64_t at = image * pixels * a.channels;
      jitter.run(a.samples[image], pixels, a.images + at, a.output + at);
    });
  });
}

}  // namespace lockstep
