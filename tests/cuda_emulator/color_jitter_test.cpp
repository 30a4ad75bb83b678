// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/color_jitter.h"

#include <gtest/gtest.h>

#include "kernels/backend.h"
#include "tests/cuda_emulator/device_memory.h"

namespace lockstep {
namespace {

TEST(CudaColorJitter, EqualsTheCpu) {
  Stream stream(Device{}, StreamUse::compute);
  for (const std::int64_t channels : {1, 3}) {
    for (const auto& [batch, height, width] : {std::tuple{1, 1, 1}, {3, 5, 7}, {2, 32, 33}}) {
      std::vector<std::uint8_t> images(static_cast<std::size_t>(batch * height * width * channels));
      for (std::size_t i = 0; i < images.size(); ++i)
        images[i] = static_cast<std::uint8_t>(i * i % 253 + i % 3);
      std::vector<SampleId> samples;
      for (std::int32_t i = 0; i < batch; ++i) samples.push_back({.epoch = 3, .index = 100 - i});
      for (const ColorJitter& how : {ColorJitter{.contrast = 0.5},
                                     {.saturation = 0.5, .hue = 0.25},
                                     {.brightness = 0.4, .contrast = 0.4, .saturation = 0.4, .hue = 0.1}}) {
        const DeviceMemory from(images);
        DeviceMemory output(images.size());
        ColorJitterArguments arguments{.batch = batch,
                                       .height = height,
                                       .width = width,
                                       .channels = channels,
                                       .how = how,
                                       .key = {3, 4},
                                       .images = from.as<const std::uint8_t>(),
                                       .samples = samples.data(),
                                       .output = output.as<std::uint8_t>()};
        const auto bytes = [&] {
          const auto* first = output.as<std::uint8_t>();
          return Values(first, first + images.size());
        };
        backend_for(Device{}).color_jitter(stream, arguments);
        const Values expected = bytes();
        output.spoil();
        EXPECT_EQ(in_any_order([&] {
                    cuda_color_jitter(stream, arguments);
                    return bytes();
                  }),
                  expected);
      }
    }
  }
}

}  // namespace
}  // namespace lockstep
