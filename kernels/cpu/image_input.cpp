// SPDX-License-Identifier: Apache-2.0
#include <vector>

#include "kernels/cpu/backend.h"
#include "kernels/cpu/deal.h"
#include "kernels/cpu/element.h"
#include "kernels/functors.h"
#include "kernels/mixing.h"
#include "kernels/shape_checks.h"

namespace lockstep {
namespace {

class CpuImageInput final : public ImageInputKernel {
 public:
  explicit CpuImageInput(const ImageInput& input)
      : batch_(input.batch),
        height_(static_cast<int>(input.height)),
        width_(static_cast<int>(input.width)),
        channels_(input.channels),
        source_(input.source),
        augment_(Augment::from(input.augmentation, input.height, input.width)),
        augments_(input.augmentation.places_or_mixes()),
        mix_(Mix::from(input.augmentation, input.height, input.width)) {
    output_ = Layout({input.batch, input.channels, input.height, input.width}, input.type);
    for (std::size_t c = 0; c < static_cast<std::size_t>(channels_); ++c) {
      normalize_.push_back(Normalize::from(input.mean.empty() ? 0.0f : input.mean[c],
                                           input.deviation.empty() ? 1.0f : input.deviation[c]));
    }
  }

  void run(Stream&, const void* from, void* output, const SampleId* samples,
           const MixedSamples& mixed) override {
    if (source_ == DType::f32) return take(static_cast<const float*>(from), output);
    const auto* images = static_cast<const std::uint8_t*>(from);
    with_element(output_.dtype(), [&](auto element) {
      using T = typename decltype(element)::type;
      const std::int64_t size = std::int64_t{height_} * width_ * channels_;
      deal(batch_, [&](std::int64_t i) {
        T* planes = static_cast<T*>(output) + i * size;
        if (mix_.any() && samples != nullptr) {
          const Mix::View mix = mix_.view(i, batch_, samples, mixed.weights);
          mixed.shares[i] = mix.share;
          if (mix.share < 1) {
            const std::int64_t j = i ^ 1;
            return this->mixed({images + i * size, augment_.view(samples[i])},
                               {images + j * size, augment_.view(samples[j])}, mix, planes);
          }
        }
        if (augments_ && samples != nullptr) {
          augmented({images + i * size, augment_.view(samples[i])}, planes);
        } else {
          whole(images + i * size, planes);
        }
      });
    });
  }

 private:
  void take(const float* values, void* output) const {
    with_element(output_.dtype(), [&](auto element) {
      using T = typename decltype(element)::type;
      const std::int64_t size = std::int64_t{height_} * width_ * channels_;
      deal(batch_, [&](std::int64_t i) { whole(values + i * size, static_cast<T*>(output) + i * size); });
    });
  }

  template <typename From, typename T>
  void whole(const From* pixels, T* planes) const {
    const std::int64_t count = std::int64_t{height_} * width_;
    for (std::int64_t c = 0; c < channels_; ++c) {
      const Normalize normalized = normalize_[static_cast<std::size_t>(c)];
      for (std::int64_t i = 0; i < count; ++i)
        planes[c * count + i] = static_cast<T>(normalized(pixels[i * channels_ + c]));
    }
  }

  struct Shown {
    const std::uint8_t* pixels;
    Augment::View view;
  };

  float value_at(const Shown& shown, std::int64_t c, int row, int column) const {
    if (shown.view.blank(row, column)) return 0;
    const std::int64_t seen = augment_.seen(shown.view, row, column);
    return normalize_[static_cast<std::size_t>(c)](seen < 0 ? std::uint8_t{0}
                                                            : shown.pixels[seen * channels_ + c]);
  }

  template <typename T>
  void mixed(const Shown& own, const Shown& partner, const Mix::View& mix, T* planes) const {
    for (std::int64_t c = 0; c < channels_; ++c) {
      for (int row = 0; row < height_; ++row) {
        for (int column = 0; column < width_; ++column) {
          *planes++ = static_cast<T>(
              mix(value_at(own, c, row, column), value_at(partner, c, row, column), row, column));
        }
      }
    }
  }

  template <typename T>
  void augmented(const Shown& shown, T* planes) const {
    for (std::int64_t c = 0; c < channels_; ++c) {
      for (int row = 0; row < height_; ++row) {
        for (int column = 0; column < width_; ++column)
          *planes++ = static_cast<T>(value_at(shown, c, row, column));
      }
    }
  }

  std::int64_t batch_;
  int height_;
  int width_;
  std::int64_t channels_;
  DType source_;
  Augment augment_;
  bool augments_;
  Mix mix_;
  std::vector<Normalize> normalize_;  // by channel
};

}  // namespace

std::unique_ptr<ImageInputKernel> CpuBackend::image_input(const ImageInput& input) {
  check_image_input(input);
  return std::make_unique<CpuImageInput>(input);
}

}  // namespace lockstep
