// SPDX-License-Identifier: Apache-2.0
//
// Mixes images of a batch in pairs: places 2k and 2k + 1 are partners, so a sample has the same partner on
// any number of ranks with an even batch. Mixup (Zhang et al., "mixup: Beyond Empirical Risk Minimization",
// ICLR 2018) adds the partner's pixels, CutMix (Yun et al., "CutMix: Regularization Strategy to Train Strong
// Classifiers with Localizable Features", ICCV 2019) pastes a rectangle of them; the labels are weighted by
// the same shares. Like torchvision's MixUp and CutMix, except that each sample draws its own share. With
// both enabled, each is used with probability 1/2.
#pragma once

#include <cstdint>

#include "core/random.h"
#include "core/sample_id.h"
#include "kernels/functors.h"
#include "kernels/image_input.h"

namespace lockstep {

inline constexpr int kMixQuantiles = 256;

// How a sample is mixed with its partner. On host and device.
struct Mix {
  // mixup_share: the 256 equally likely quantiles of Beta(alpha, alpha), the share kept of a sample.
  // cutmix_half: sqrt(1 - quantile) / 2, half the side of the rectangle as a fraction of the image's side.
  float mixup_share[kMixQuantiles] = {};
  float cutmix_half[kMixQuantiles] = {};
  bool mixes = false;  // mixup
  bool pastes = false;
  int height = 0;
  int width = 0;
  PhiloxKey key = {};

  struct View {
    float share = 1;  // of the sample itself
    bool pasted = false;
    PixelBox box = {};  // the pasted rectangle of the partner

    LOCKSTEP_HOST_DEVICE float operator()(float own, float partners, int row, int column) const {
      if (pasted) return box.has(row, column) ? partners : own;
      return own * share + partners * (1.0f - share);
    }
  };

  static Mix from(const Augmentation& augmentation, std::int64_t height, std::int64_t width);
  bool any() const { return mixes || pastes; }

  // The mix of place i of a batch, whose partner is place i ^ 1.
  LOCKSTEP_HOST_DEVICE View view(std::int64_t i, std::int64_t batch, const SampleId* samples,
                                 const float* weights) const {
    const std::int64_t partner = i ^ 1;
    if (partner >= batch) return {};
    if (weights != nullptr && (weights[i] == 0 || weights[partner] == 0)) return {};
    return view(samples[i]);
  }

 private:
  LOCKSTEP_HOST_DEVICE View view(SampleId sample) const {
    const PhiloxCounter words = sample_words(sample, kBlock, key);
    const std::uint32_t quantile = words[0] >> 24;
    if (mixes && (!pastes || (words[1] & 1) == 0)) return {.share = mixup_share[quantile]};
    const float half = cutmix_half[quantile];
    const int rows = static_cast<int>(half * static_cast<float>(height));
    const int columns = static_cast<int>(half * static_cast<float>(width));
    const int row = even_below(words[2], height), column = even_below(words[3], width);
    const PixelBox box{.top = row > rows ? row - rows : 0,
                       .bottom = row + rows < height ? row + rows : height,
                       .left = column > columns ? column - columns : 0,
                       .right = column + columns < width ? column + columns : width};
    const int kept = height * width - (box.bottom - box.top) * (box.right - box.left);
    return {
        .share = static_cast<float>(kept) / static_cast<float>(height * width), .pasted = true, .box = box};
  }

  static constexpr std::uint32_t kBlock = 64;  // block number, distinct from those of Augment
};

// The quantile function of Beta(alpha, alpha): the x whose cumulative probability is p.
double beta_quantile(double alpha, double p);

}  // namespace lockstep
