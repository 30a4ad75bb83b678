// SPDX-License-Identifier: Apache-2.0
#include "data/formats/shapes.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <vector>

#include "core/error.h"
#include "core/random.h"

namespace lockstep {
namespace {

constexpr int kSide = 64, kChannels = 3;
constexpr std::uint32_t kMostShapes = 2, kKinds = 3;
constexpr int kLeastRadius = 8, kMostRadius = 15;
constexpr std::uint32_t kDark = 96, kBright = 160;  // the background is below, shapes are at least this
constexpr int kNoise = 48;                          // added to each byte: from -kNoise to kNoise - 1
constexpr std::uint32_t kFirstNoise = 16;           // block of random numbers

struct DrawnShape {
  std::uint8_t kind = 0;  // the class
  int x = 0, y = 0, radius = 0;
  std::array<int, kChannels> colour = {};

  bool covers(int column, int row) const {
    const int right = column - x, down = row - y;
    if (kind == 1) return right * right + down * down <= radius * radius;
    if (kind == 2) return std::max(std::abs(right), std::abs(down)) <= radius - radius / 8;
    return down <= radius && 2 * std::abs(right) <= down + radius;  // the apex is at the top
  }
};

struct Scene {
  std::array<int, kChannels> background = {};
  std::vector<DrawnShape> shapes;

  // The last shape that covers the pixel; null: none.
  const DrawnShape* at(int column, int row) const {
    const auto found = std::find_if(shapes.rbegin(), shapes.rend(),
                                    [&](const DrawnShape& each) { return each.covers(column, row); });
    return found == shapes.rend() ? nullptr : &*found;
  }
};

class Shapes final : public Dataset {
 public:
  explicit Shapes(Split split)
      : size_(split == Split::train ? 4000 : 500),
        key_(key_for(0, split == Split::train ? "shapes train" : "shapes test")) {}

  std::int64_t size() const override { return size_; }
  ImageShape image_shape() const override { return {.height = kSide, .width = kSide, .channels = kChannels}; }
  std::int64_t classes() const override { return 1 + std::int64_t{kKinds}; }
  std::vector<std::string> class_names() const override {
    return {"background", "circle", "square", "triangle"};
  }
  bool verified() const override { return true; }
  bool has_masks() const override { return true; }

  std::int32_t read(std::int64_t index, std::span<std::uint8_t> image) const override {
    check(index, image.size() == std::size_t{kSide} * kSide * kChannels);
    const Scene scene = scene_of(index);
    std::size_t byte = 0;
    PhiloxCounter noise;
    for (int row = 0; row < kSide; ++row) {
      for (int column = 0; column < kSide; ++column) {
        const DrawnShape* shape = scene.at(column, row);
        const std::array<int, kChannels>& colour = shape == nullptr ? scene.background : shape->colour;
        for (const int level : colour) {
          // Each block is 16 bytes of noise, of which 0 to 95 is used.
          if (byte % 16 == 0) noise = words(index, kFirstNoise + static_cast<std::uint32_t>(byte / 16));
          const std::uint32_t drawn = noise[byte % 16 / 4] >> (8 * (byte % 4)) & 255;
          image[byte++] = static_cast<std::uint8_t>(
              std::clamp(level + static_cast<int>(drawn * 2 * kNoise / 256) - kNoise, 0, 255));
        }
      }
    }
    return 0;
  }

  void read_mask(std::int64_t index, std::span<std::uint8_t> mask) const override {
    check(index, mask.size() == std::size_t{kSide} * kSide);
    const Scene scene = scene_of(index);
    for (int row = 0; row < kSide; ++row) {
      for (int column = 0; column < kSide; ++column) {
        const DrawnShape* shape = scene.at(column, row);
        mask[static_cast<std::size_t>(row * kSide + column)] = shape == nullptr ? 0 : shape->kind;
      }
    }
  }

 private:
  void check(std::int64_t index, bool fits) const {
    CHECK(index >= 0 && index < size_ && fits, "sample {} of {} shapes", index, size_);
  }

  PhiloxCounter words(std::int64_t index, std::uint32_t block) const {
    return philox({block, 0, static_cast<std::uint32_t>(index), 0}, key_);
  }

  // The first block of random numbers is the background and the number of shapes; then two for each shape.
  Scene scene_of(std::int64_t index) const {
    Scene scene;
    const PhiloxCounter first = words(index, 0);
    for (std::size_t c = 0; c < kChannels; ++c) scene.background[c] = static_cast<int>(first[c] % kDark);
    const std::uint32_t count = 1 + first[3] % kMostShapes;
    for (std::uint32_t i = 0; i < count; ++i) {
      const PhiloxCounter place = words(index, 1 + 2 * i), colour = words(index, 2 + 2 * i);
      DrawnShape shape{.kind = static_cast<std::uint8_t>(1 + place[0] % kKinds)};
      shape.radius = kLeastRadius + static_cast<int>(place[1] % (kMostRadius - kLeastRadius + 1));
      const auto inside = static_cast<std::uint32_t>(kSide - 2 * shape.radius);
      shape.x = shape.radius + static_cast<int>(place[2] % inside);
      shape.y = shape.radius + static_cast<int>(place[3] % inside);
      for (std::size_t c = 0; c < kChannels; ++c)
        shape.colour[c] = static_cast<int>(kBright + colour[c] % (256 - kBright));
      scene.shapes.push_back(shape);
    }
    return scene;
  }

  std::int64_t size_;
  PhiloxKey key_;
};

}  // namespace

std::unique_ptr<Dataset> open_shapes(Split split) { return std::make_unique<Shapes>(split); }

}  // namespace lockstep
