// SPDX-License-Identifier: Apache-2.0
//
// Writes HDF5 files in the form that other programs write. Has a small dataset for them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <numeric>
#include <vector>

#include <gtest/gtest.h>
#include <hdf5.h>

#include "data/dataset.h"
#include "tests/temporary_folder.h"

namespace lockstep {

// Writes a file.
class Hdf5Writer {
 public:
  using Shape = std::vector<hsize_t>;

  explicit Hdf5Writer(const std::filesystem::path& path)
      : file_(H5Fcreate(path.c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT)) {}
  ~Hdf5Writer() { H5Fclose(file_); }

  hid_t id() const { return file_; }
  // Optionally compressed, in chunks of two along the first dimension.
  template <typename T>
  void put(const char* name, const Shape& shape, hid_t type, const std::vector<T>& values,
           bool zipped = false) const {
    const hid_t space = H5Screate_simple(static_cast<int>(shape.size()), shape.data(), nullptr);
    const hid_t how = H5Pcreate(H5P_DATASET_CREATE), links = H5Pcreate(H5P_LINK_CREATE);
    H5Pset_create_intermediate_group(links, 1);
    if (zipped) {
      Shape chunk = shape;
      chunk[0] = 2;
      H5Pset_chunk(how, static_cast<int>(chunk.size()), chunk.data());
      H5Pset_deflate(how, 4);
    }
    const hid_t set = H5Dcreate2(file_, name, type, space, links, how, H5P_DEFAULT);
    ASSERT_GE(set, 0);
    ASSERT_GE(H5Dwrite(set, type, H5S_ALL, H5S_ALL, H5P_DEFAULT, values.data()), 0);
    H5Dclose(set);
    H5Pclose(links);
    H5Pclose(how);
    H5Sclose(space);
  }

 private:
  hid_t file_;
};

// Writes a file of two gray images, 3 pixels high and 5 wide, and of their labels if there are any.
template <typename T>
void write_two(const TemporaryFolder& folder, const std::string& name, hid_t type,
               const std::vector<T>& pixels, const std::vector<std::int64_t>& labels = {0, 1}) {
  const Hdf5Writer file(folder.path() / name);
  file.put("images", {2, 3, 5}, type, pixels);
  if (!labels.empty()) file.put("labels", {2}, H5T_NATIVE_INT64, labels);
}

inline constexpr std::int64_t kImages = 5, kHeight = 4, kWidth = 6, kChannels = 3;

// Pixels with a different value at each place.
inline Bytes pixels() {
  Bytes all(static_cast<std::size_t>(kImages * kHeight * kWidth * kChannels));
  std::iota(all.begin(), all.end(), std::uint8_t{7});
  return all;
}

inline const std::vector<std::int64_t> kLabels = {2, 0, 1, 2, 2};

inline DatasetOptions options_of(const TemporaryFolder& folder) {
  DatasetOptions options;
  options.format = "hdf5";
  options.path = folder.path();
  return options;
}

inline void expect_all(const Dataset& dataset) {
  const Bytes all = pixels();
  const ImageShape shape{.height = kHeight, .width = kWidth, .channels = kChannels};
  ASSERT_EQ(dataset.image_shape(), shape);
  ASSERT_EQ(dataset.size(), kImages);
  Bytes image(static_cast<std::size_t>(shape.bytes()));
  for (std::int64_t i = 0; i < kImages; ++i) {
    EXPECT_EQ(dataset.read(i, image), kLabels[static_cast<std::size_t>(i)]);
    EXPECT_EQ(dataset.label(i), kLabels[static_cast<std::size_t>(i)]);
    EXPECT_TRUE(std::equal(image.begin(), image.end(), all.begin() + i * shape.bytes())) << i;
  }
}

}  // namespace lockstep
