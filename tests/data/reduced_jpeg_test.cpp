// SPDX-License-Identifier: Apache-2.0
//
// JPEG images reduced while they are decoded, compared with fully decoded images.
//
// A reduced pixel is exactly the mean of a square of pixels: libjpeg omits the waves of a block whose mean
// over each square is 0, and no others. This holds for any pattern in which no value is clipped to 0 or 255,
// so all patterns stay between 64 and 192. Where single pixels differ much, a resize of these means differs
// from a resize of all pixels, because means filter, too. The tests therefore compare high frequencies with
// means over squares, and only smooth images with all pixels.
#include <algorithm>
#include <cmath>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "data/images/image_decoder.h"
#include "data/images/resized.h"
#include "tests/data/jpeg_files.h"
#include "tests/thinning.h"

namespace lockstep {
namespace {

// A full pixel and a reduced one are each rounded, by half a level at most. The fixed point of libjpeg's
// transforms adds less than a tenth.
constexpr double kMeanBound = 1.1;
// Rows and columns are rounded separately.
constexpr double kResizeBound = 1;

using Pattern = std::function<int(std::int64_t y, std::int64_t x, std::int64_t channel)>;
struct NamedPattern {
  const char* name;
  Pattern at;
};

int either(std::int64_t which) { return which % 2 == 0 ? 64 : 192; }

int noise_at(std::int64_t y, std::int64_t x, std::int64_t channel) {
  auto word = static_cast<std::uint32_t>(y * 73856093 ^ x * 19349663 ^ channel * 83492791);
  word = (word ^ word >> 15) * 2246822519u;
  return 64 + static_cast<int>((word ^ word >> 13) % 129);
}

// Smooth waves of at least 24 pixels, different in each channel.
int wave_at(std::int64_t y, std::int64_t x, std::int64_t channel) {
  constexpr double kCircle = 6.283185307179586;
  const auto wave = [&](std::int64_t at, double length) {
    return std::sin(kCircle *
                    ((static_cast<double>(at) + 0.5) / length + 0.2 * static_cast<double>(channel)));
  };
  return static_cast<int>(std::lround(128 + 35 * wave(x, 32) + 25 * wave(y, 24)));
}

const NamedPattern kPatterns[] = {
    {"checkerboard", [](auto y, auto x, auto) { return either(y + x); }},
    {"columns of one pixel", [](auto, auto x, auto) { return either(x); }},
    {"rows of one pixel", [](auto y, auto, auto) { return either(y); }},
    {"columns of two pixels", [](auto, auto x, auto) { return either(x / 2); }},
    {"diagonals of three pixels", [](auto y, auto x, auto) { return either((x + y) / 3); }},
    {"noise", noise_at},
    {"waves", wave_at},
};

// Outside the shape, up to the multiple, the image repeats the last pixel, as in the blocks of a JPEG file.
Bytes drawn(const ImageShape& shape, const Pattern& pattern, std::int64_t multiple = 1) {
  const auto up = [&](std::int64_t side) { return (side + multiple - 1) / multiple * multiple; };
  Bytes pixels;
  for (std::int64_t y = 0; y < up(shape.height); ++y)
    for (std::int64_t x = 0; x < up(shape.width); ++x)
      for (std::int64_t c = 0; c < shape.channels; ++c)
        pixels.push_back(static_cast<std::uint8_t>(
            pattern(std::min(y, shape.height - 1), std::min(x, shape.width - 1), c)));
  return pixels;
}

Bytes encode_as(const ImageShape& shape, const Bytes& pixels, int subsampling) {
  return shape.channels == 1 ? encode(shape, pixels) : encode(shape, pixels, {.subsampling = subsampling});
}

// Values [H, W, C].
struct PreciseImage {
  ImageShape shape;
  std::vector<double> values;
  double at(std::int64_t y, std::int64_t x, std::int64_t channel) const {
    return values[static_cast<std::size_t>((y * shape.width + x) * shape.channels + channel)];
  }
};

// Means over squares of the fully decoded image, including its padded blocks.
PreciseImage means_of(const ImageShape& shape, const Pattern& pattern, std::int64_t reduction,
                      int subsampling) {
  const std::int64_t multiple = subsampling == TJSAMP_420 ? 16 : 8;
  const auto over = [](std::int64_t side, std::int64_t part) { return (side + part - 1) / part; };
  const ImageShape whole{over(shape.height, multiple) * multiple, over(shape.width, multiple) * multiple,
                         shape.channels};
  const Bytes pixels = decode(encode_as(whole, drawn(shape, pattern, multiple), subsampling), whole);
  PreciseImage means{.shape = {over(shape.height, reduction), over(shape.width, reduction), shape.channels},
                     .values = {}};
  for (std::int64_t y = 0; y < means.shape.height; ++y) {
    for (std::int64_t x = 0; x < means.shape.width; ++x) {
      for (std::int64_t c = 0; c < shape.channels; ++c) {
        double sum = 0;
        for (std::int64_t i = 0; i < reduction * reduction; ++i) {
          const std::int64_t row = y * reduction + i / reduction, column = x * reduction + i % reduction;
          sum += pixels[static_cast<std::size_t>((row * whole.width + column) * shape.channels + c)];
        }
        means.values.push_back(sum / static_cast<double>(reduction * reduction));
      }
    }
  }
  return means;
}

std::vector<std::int64_t> sides() {
  std::vector<std::int64_t> sides;
  for (std::int64_t side = 1; side <= 64; ++side) sides.push_back(side);
  for (const std::int64_t power : {128, 256})
    for (const std::int64_t beside : {-1, 0, 1}) sides.push_back(power + beside);
  return sides;
}

// Each side length with itself, and with another one.
std::vector<ImageShape> shapes(std::int64_t channels) {
  const std::vector<std::int64_t> all = sides();
  std::vector<ImageShape> shapes;
  for (std::size_t i = 0; i < all.size(); ++i) {
    shapes.push_back({all[i], all[i], channels});
    shapes.push_back({all[i], all[i * 37 % all.size()], channels});
  }
  return shapes;
}

std::string text_of(const ImageShape& shape) {
  return fmt::format("{} x {} x {}", shape.height, shape.width, shape.channels);
}

void expect_reduced_pixels_are_means(std::int64_t channels, int subsampling, double bound) {
  Thinning thinning;
  int reduced = 0;
  for (const ImageShape& shape : shapes(channels)) {
    for (const auto& [name, pattern] : kPatterns) {
      if (!thinning.takes()) continue;
      const Bytes file = encode_as(shape, drawn(shape, pattern), subsampling);
      for (const std::int64_t reduction : {1, 2, 4, 8}) {
        JpegDecoder decoder;
        ASSERT_EQ(decoder.open("x.jpg", file, HeaderCheck::whole), shape);
        // libjpeg uses the largest of its scales that fits, and these are eighths. From 8 pixels on, the next
        // scale has at least one pixel more.
        if (std::max(shape.height, shape.width) >= 8) {
          ASSERT_TRUE(decoder.reduces_by(reduction)) << text_of(shape) << " by " << reduction;
        } else if (!decoder.reduces_by(reduction)) {
          continue;
        }
        ++reduced;
        const PreciseImage expected = means_of(shape, pattern, reduction, subsampling);
        Bytes found(static_cast<std::size_t>(expected.shape.bytes()));
        decoder.decode(expected.shape, found);
        for (std::size_t i = 0; i < found.size(); ++i)
          ASSERT_NEAR(found[i], expected.values[i], bound)
              << name << ", " << text_of(shape) << " by " << reduction << ", at " << i;
      }
    }
  }
  EXPECT_GT(reduced, 100);
}

TEST(ReducedJpeg, GrayPixelsAreMeansOfSquares) {
  expect_reduced_pixels_are_means(1, TJSAMP_GRAY, kMeanBound);
}

// Blue is luma plus 1.772 times a difference: the errors add up, and the sum is rounded in both images.
TEST(ReducedJpeg, ColourPixelsAreMeansOfSquares) {
  expect_reduced_pixels_are_means(3, TJSAMP_444, (1 + 1.772) * kMeanBound + 1);
}

// One image in memory, read like an image of a folder.
class OneJpegFile final : public Dataset {
 public:
  OneJpegFile(Bytes file, std::int64_t channels) : file_(std::move(file)), channels_(channels) {}
  std::int64_t size() const override { return 1; }
  ImageShape image_shape() const override { return {1, 1, channels_}; }
  std::int64_t classes() const override { return 1; }
  std::int32_t read(std::int64_t, std::span<std::uint8_t>) const override { return 0; }
  std::int32_t read_own_size(std::int64_t, const LeastSize& least, OwnSizeImage& image) const override {
    decode_own_size(ImageDecoder::of_this_thread().open("x.jpg", file_, ExifOrientation::apply), channels_,
                    least, image);
    reduction_ = image.reduction;
    return 0;
  }
  std::int64_t last_reduction() const { return reduction_; }

 private:
  Bytes file_;
  std::int64_t channels_;
  mutable std::int64_t reduction_ = 0;
};

struct Made {
  Bytes image;
  std::int64_t reduction = 0;
  ImageBox box;
  bool cut = false;  // the box is cut out before it is resized
};

// draw: a random crop; null: the centre crop.
Made made(const Bytes& file, const ImageShape& shape, std::int64_t size, const Draw* draw = nullptr) {
  const ResizeOptions options{.size = size, .random_crop = draw != nullptr};
  auto owned = std::make_unique<OneJpegFile>(file, shape.channels);
  const OneJpegFile& one = *owned;
  const std::unique_ptr<Dataset> dataset = resized(std::move(owned), options);
  Made result{.image = Bytes(static_cast<std::size_t>(size * size * shape.channels)),
              .box = draw == nullptr ? center_box(shape, options) : random_box(shape, *draw, 0),
              .cut = draw != nullptr};
  if (draw == nullptr)
    dataset->read(0, result.image);
  else
    dataset->read_augmented(0, *draw, result.image);
  result.reduction = one.last_reduction();
  return result;
}

// The weights of a line's pixels in one pixel of the result: a triangle over twice the distance of two such
// pixels. Pixels count by their share in [low, high).
std::vector<double> triangle(std::int64_t pixels, double center, double distance, double low, double high) {
  const double reach = std::max(distance, 1.0);
  std::vector<double> weights(static_cast<std::size_t>(pixels));
  double sum = 0;
  for (std::int64_t i = 0; i < pixels; ++i) {
    const double begin = std::max(static_cast<double>(i), low),
                 end = std::min(static_cast<double>(i + 1), high);
    const double weight = std::max(0.0, 1 - std::abs((begin + end) / 2 - center) / reach);
    sum += weights[static_cast<std::size_t>(i)] = end > begin ? weight * (end - begin) : 0;
  }
  for (double& weight : weights) weight /= sum;
  return weights;
}

// The box, in pixels of the full image, resized to size x size in double precision.
PreciseImage resized_means(const PreciseImage& means, const ImageShape& whole, const ImageBox& box,
                           std::int64_t reduction, std::int64_t size, bool cut) {
  const double scale = 1 / static_cast<double>(reduction);
  const auto weights = [&](std::int64_t pixels, std::int64_t side, double begin, double length,
                           std::int64_t i) {
    const double distance = length * scale / static_cast<double>(size);
    const double low = cut ? begin * scale : 0;
    const double high = cut ? (begin + length) * scale : static_cast<double>(side) * scale;
    return triangle(pixels, begin * scale + (static_cast<double>(i) + 0.5) * distance, distance, low, high);
  };
  const std::int64_t channels = means.shape.channels;
  std::vector<std::vector<double>> across;
  for (std::int64_t j = 0; j < size; ++j)
    across.push_back(weights(means.shape.width, whole.width, box.x, box.width, j));
  PreciseImage result{.shape = {size, size, channels}, .values = {}};
  for (std::int64_t i = 0; i < size; ++i) {
    const std::vector<double> down = weights(means.shape.height, whole.height, box.y, box.height, i);
    std::vector<double> row(static_cast<std::size_t>(means.shape.width * channels));
    for (std::int64_t y = 0; y < means.shape.height; ++y) {
      const double weight = down[static_cast<std::size_t>(y)];
      for (std::size_t at = 0; weight > 0 && at < row.size(); ++at)
        row[at] += weight * means.values[static_cast<std::size_t>(y) * row.size() + at];
    }
    for (const std::vector<double>& of_pixel : across) {
      for (std::int64_t c = 0; c < channels; ++c) {
        double sum = 0;
        for (std::int64_t x = 0; x < means.shape.width; ++x)
          sum += of_pixel[static_cast<std::size_t>(x)] * row[static_cast<std::size_t>(x * channels + c)];
        result.values.push_back(sum);
      }
    }
  }
  return result;
}

// The centre of each image and a random part. A pixel at a part's border counts by its share in it.
TEST(ReducedJpeg, ResizedImagesEqualResizedMeans) {
  Thinning thinning;
  std::vector<int> of_reduction(9);
  double worst = 0;
  std::string worst_at;
  for (const ImageShape& shape : shapes(1)) {
    for (const auto& [name, pattern] : kPatterns) {
      Bytes file;
      for (const std::int64_t size : {1, 3, 8, 16, 31}) {
        for (std::int64_t epoch = -1; epoch < 1; ++epoch) {
          if (size > std::min(shape.height, shape.width) || !thinning.takes()) continue;
          if (file.empty()) file = encode(shape, drawn(shape, pattern));
          const Draw draw{.seed = 1, .epoch = epoch};
          const Made found = made(file, shape, size, epoch < 0 ? nullptr : &draw);
          ++of_reduction[static_cast<std::size_t>(found.reduction)];
          const PreciseImage expected = resized_means(means_of(shape, pattern, found.reduction, TJSAMP_GRAY),
                                                      shape, found.box, found.reduction, size, found.cut);
          for (std::size_t i = 0; i < found.image.size(); ++i) {
            const double off = std::abs(found.image[i] - expected.values[i]);
            if (off <= worst) continue;
            worst = off;
            worst_at =
                fmt::format("{}, {} by {} to {}, epoch {}, at {}: {}, expected {}", name, text_of(shape),
                            found.reduction, size, epoch, i, found.image[i], expected.values[i]);
          }
        }
      }
    }
  }
  EXPECT_LE(worst, kMeanBound + kResizeBound) << worst_at;
  for (const std::size_t reduction : {1, 2, 4, 8}) EXPECT_GT(of_reduction[reduction], 0) << reduction;
}

// Sides that every reduction divides, so that each square has equally many dark and bright pixels.
TEST(ReducedJpeg, PatternsOfSinglePixelsBecomeTheirMean) {
  int reduced = 0;
  for (const std::int64_t side : {32, 64, 128, 256}) {
    for (const auto& [name, pattern] : std::span(kPatterns).first(3)) {
      const ImageShape shape{side, side, 1};
      const Bytes file = encode(shape, drawn(shape, pattern));
      for (const std::int64_t size : {3, 5, 8, 15, 16, 31, 63, 64}) {
        const Made found = made(file, shape, size);
        if (found.reduction == 1) continue;
        ++reduced;
        for (const std::uint8_t level : found.image)
          ASSERT_NEAR(level, 128, kMeanBound + kResizeBound) << name << ", " << side << " to " << size;
      }
    }
  }
  EXPECT_GT(reduced, 30);
}

// One wave in each direction, different in each channel, of at least 24 pixels and at least the side. The
// amplitudes add up to 50.
Bytes soft_colours(const ImageShape& shape) {
  const auto wave = [](std::int64_t at, std::int64_t side, std::int64_t channel) {
    const double length = std::max(24.0, static_cast<double>(side));
    return std::sin(6.283185307179586 *
                    ((static_cast<double>(at) + 0.5) / length + 0.21 * static_cast<double>(channel)));
  };
  return drawn(shape, [&](std::int64_t y, std::int64_t x, std::int64_t c) {
    return static_cast<int>(
        std::lround(128 + 30 * wave(x, shape.width, c) + 20 * wave(y, shape.height, c + 1)));
  });
}

struct ColourFormat {
  const char* name;
  Encoding encoding;
  bool even_chroma = true;  // as many pixels for each chroma value in both directions
};
const ColourFormat kColourFormats[] = {{"gray", {.format = TJPF_GRAY, .subsampling = TJSAMP_GRAY}},
                                       {"4:4:4", {.subsampling = TJSAMP_444}},
                                       {"4:2:2", {.subsampling = TJSAMP_422}, false},
                                       {"4:2:0", {.subsampling = TJSAMP_420}},
                                       {"4:4:0", {.subsampling = TJSAMP_440}, false},
                                       {"CMYK", {.format = TJPF_CMYK, .subsampling = TJSAMP_444}},
                                       {"CMYK 4:2:0", {.format = TJPF_CMYK, .subsampling = TJSAMP_420}}};

PreciseImage precise(const ImageShape& shape, const Bytes& pixels) {
  return {.shape = shape, .values = {pixels.begin(), pixels.end()}};
}

// The luma of an image of shape [H, W, C].
template <typename Values>
double luma_of(const ImageShape& shape, const Values& values, std::size_t at) {
  if (shape.channels == 1) return values[at];
  return 0.299 * values[at] + 0.587 * values[at + 1] + 0.114 * values[at + 2];
}

// Compared with a full decode that is resized in double precision: within two levels.
//
// A reduction keeps at least 16 pixels of a side, so the means over its squares take at most a share of (pi /
// 16)^2 / 6 of a wave, 0.3 levels. The triangle, whose weights are those of the squares' centres, takes as
// much again. The roundings of many pixels average out in a pixel of the result; the resize leaves a level at
// most. If a chroma value covers two pixels in one direction only, libjpeg keeps half of its resolution
// there: the test then compares the luma only.
TEST(ReducedJpeg, SmoothImagesOfEveryColourFormatMatchAFullDecode) {
  constexpr double kLevels = 2;
  Thinning thinning;
  int reduced = 0;
  for (const auto& [name, encoding, even_chroma] : kColourFormats) {
    for (const ImageShape& stored : shapes(tjPixelSize[encoding.format])) {
      if (std::min(stored.height, stored.width) < 16 || !thinning.takes()) continue;
      const Bytes file = encode(stored, soft_colours(stored), encoding);
      const ImageShape shape{stored.height, stored.width, stored.channels == 1 ? 1 : 3};
      JpegDecoder decoder;
      ASSERT_EQ(decoder.open("x.jpg", file, HeaderCheck::whole), shape);
      Bytes whole(static_cast<std::size_t>(shape.bytes()));
      decoder.decode(shape, whole);
      for (const std::int64_t size : {2, 5, 8, 15, 31}) {
        const Made found = made(file, shape, size);
        if (found.reduction == 1) continue;
        ++reduced;
        SCOPED_TRACE(fmt::format("{}, {} by {} to {}", name, text_of(shape), found.reduction, size));
        const PreciseImage expected =
            resized_means(precise(shape, whole), shape, found.box, 1, size, found.cut);
        for (std::size_t i = 0; i < found.image.size(); ++i) {
          if (even_chroma) {
            ASSERT_NEAR(found.image[i], expected.values[i], kLevels) << "at " << i;
          }
          if (i % static_cast<std::size_t>(shape.channels) != 0) continue;
          ASSERT_NEAR(luma_of(shape, found.image, i), luma_of(shape, expected.values, i), kLevels)
              << "at " << i;
        }
      }
    }
  }
  EXPECT_GT(reduced, 30);
}

}  // namespace
}  // namespace lockstep
