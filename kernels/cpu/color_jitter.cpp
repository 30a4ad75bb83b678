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
      const std::uint8_t* from = a.images + image * pixels * a.channels;
      std::uint8_t* to = a.output + image * pixels * a.channels;
      Jitter::View view = jitter.view(a.samples[image]);
      if (jitter.needs_gray()) {
        double sum = 0;
        for (std::int64_t i = 0; i < pixels; ++i)
          sum += jitter.gray_before_contrast(jitter.load(from + i * a.channels), view);
        view.gray = Jitter::mean_gray(sum, pixels);
      }
      for (std::int64_t i = 0; i < pixels; ++i)
        jitter.store(jitter(jitter.load(from + i * a.channels), view), to + i * a.channels);
    });
  });
}

}  // namespace lockstep
