// SPDX-License-Identifier: Apache-2.0
#include <vector>

#include "core/error.h"
#include "kernels/cpu/element.h"
#include "kernels/cpu/kernels.h"
#include "kernels/functors.h"

namespace lockstep {
namespace {

class CpuImageInput final : public ImageInputKernel {
 public:
  explicit CpuImageInput(const ImageInput& input)
      : batch_(input.batch), pixels_(input.height * input.width), channels_(input.channels) {
    output_ = Layout({input.batch, input.channels, input.height, input.width}, input.type);
    for (std::size_t c = 0; c < static_cast<std::size_t>(channels_); ++c) {
      normalize_.push_back(Normalize::from(input.mean.empty() ? 0.0f : input.mean[c],
                                           input.deviation.empty() ? 1.0f : input.deviation[c]));
    }
  }

  void run(Stream&, const std::uint8_t* images, void* output) override {
    with_element(output_.dtype(), [&](auto element) {
      normalize(images, static_cast<typename decltype(element)::type*>(output));
    });
  }

 private:
  template <typename T>
  void normalize(const std::uint8_t* images, T* planes) const {
#pragma omp parallel for
    for (std::int64_t image = 0; image < batch_; ++image) {
      const std::uint8_t* pixels = images + image * pixels_ * channels_;
      for (std::int64_t c = 0; c < channels_; ++c) {
        const Normalize normalized = normalize_[static_cast<std::size_t>(c)];
        T* plane = planes + (image * channels_ + c) * pixels_;
        for (std::int64_t i = 0; i < pixels_; ++i)
          plane[i] = static_cast<T>(normalized(pixels[i * channels_ + c]));
      }
    }
  }

  std::int64_t batch_;
  std::int64_t pixels_;
  std::int64_t channels_;
  std::vector<Normalize> normalize_;  // by channel
};

}  // namespace

std::unique_ptr<ImageInputKernel> make_cpu_image_input(const ImageInput& input) {
  const auto channels = static_cast<std::size_t>(input.channels);
  const auto fits = [&](std::span<const float> values) {
    return values.empty() || values.size() == channels;
  };
  if (!fits(input.mean) || !fits(input.deviation)) {
    throw ConfigError(fmt::format("image input: {} means and {} deviations for {} channels",
                                  input.mean.size(), input.deviation.size(), channels));
  }
  return std::make_unique<CpuImageInput>(input);
}

}  // namespace lockstep
