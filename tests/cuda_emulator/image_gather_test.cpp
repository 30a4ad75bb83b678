// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/image_gather.h"

#include <gtest/gtest.h>

#include "kernels/backend.h"
#include "tests/cuda_emulator/device_memory.h"

namespace lockstep {
namespace {

using Bytes = std::vector<std::uint8_t>;

// The rows of `images`, each with this many bytes; zeros for rows below 0.
Bytes gathered(const Bytes& images, const std::vector<std::int32_t>& rows, std::int64_t image_bytes) {
  Bytes all;
  for (const std::int32_t row : rows) {
    for (std::int64_t i = 0; i < image_bytes; ++i)
      all.push_back(row < 0 ? std::uint8_t{0} : images[static_cast<std::size_t>(row * image_bytes + i)]);
  }
  return all;
}

TEST(ImageGather, CopiesTheRowsOfADatasetOnBothDevices) {
  constexpr std::int64_t kImages = 7;
  const std::vector<std::int32_t> rows = {6, -1, 0, 3, 3, -1};
  Stream stream(Device{}, StreamUse::compute);
  for (const std::int64_t image_bytes : {1, 12, 16, 75, 784, 3072, 70000}) {
    Bytes images(static_cast<std::size_t>(kImages * image_bytes));
    for (std::size_t i = 0; i < images.size(); ++i) images[i] = static_cast<std::uint8_t>(i % 251 + 1);
    const DeviceMemory set(images);
    const DeviceMemory which(rows);
    DeviceMemory output(rows.size() * static_cast<std::size_t>(image_bytes));
    const ImageGather arguments{.batch = std::ssize(rows),
                                .image_bytes = image_bytes,
                                .images = set.as<const std::byte>(),
                                .rows = which.as<const std::int32_t>(),
                                .output = output.as<std::byte>()};
    const Bytes expected = gathered(images, rows, image_bytes);
    backend_for(Device{}).gather_images(stream, arguments);
    EXPECT_EQ(output.items<std::uint8_t>(), expected) << image_bytes << " bytes, CPU";
    for (const auto order : {emulator::Order::descending, emulator::Order::ascending}) {
      output.spoil();
      emulator::set_order(order);
      cuda_gather_images(stream, arguments);
      EXPECT_EQ(output.items<std::uint8_t>(), expected) << image_bytes << " bytes";
    }
  }
}

TEST(ImageGather, AnEmptyGatherDoesNothing) {
  Stream stream(Device{}, StreamUse::compute);
  cuda_gather_images(stream, {});
  backend_for(Device{}).gather_images(stream, {});
}

}  // namespace
}  // namespace lockstep
