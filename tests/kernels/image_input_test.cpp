// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <tuple>

#include <gtest/gtest.h>

#include "kernels/backend.h"
#include "kernels/mixing.h"
#include "tests/kernels/planned_memory.h"

namespace lockstep {
namespace {

std::vector<std::uint8_t> every_pixel_different(std::size_t count) {
  std::vector<std::uint8_t> pixels(count);
  for (std::size_t i = 0; i < count; ++i) pixels[i] = static_cast<std::uint8_t>(i * 37 + 11);
  return pixels;
}

TEST(ImageInput, NormalisesEachChannelIntoItsOwnPlane) {
  constexpr std::int64_t batch = 3, height = 4, width = 5, channels = 3;
  const std::array mean{0.1f, 0.5f, 0.9f};
  const std::array deviation{0.25f, 0.5f, 2.0f};
  const auto kernel = cpu_backend().image_input({.batch = batch,
                                                 .height = height,
                                                 .width = width,
                                                 .channels = channels,
                                                 .mean = mean,
                                                 .deviation = deviation});
  ASSERT_EQ(kernel->output(), Layout({batch, channels, height, width}, DType::f32));
  const auto pixels = every_pixel_different(batch * height * width * channels);
  std::vector<float> output(pixels.size());
  Stream stream(Device{}, StreamUse::compute);
  kernel->run(stream, pixels.data(), output.data());
  for (std::int64_t n = 0; n < batch; ++n) {
    for (std::int64_t p = 0; p < height * width; ++p) {
      for (std::int64_t c = 0; c < channels; ++c) {
        const double pixel = pixels[static_cast<std::size_t>((n * height * width + p) * channels + c)];
        const double expected = (pixel / 255 - mean[c]) / deviation[c];
        EXPECT_NEAR(output[static_cast<std::size_t>((n * channels + c) * height * width + p)], expected,
                    1e-5);
      }
    }
  }
}

TEST(ImageInput, WithoutStatisticsScalesToTheUnitInterval) {
  const auto kernel = cpu_backend().image_input({.batch = 1, .height = 1, .width = 2, .channels = 1});
  const std::vector<std::uint8_t> pixels{0, 255};
  std::vector<float> output(2, -1.0f);
  Stream stream(Device{}, StreamUse::compute);
  kernel->run(stream, pixels.data(), output.data());
  EXPECT_FLOAT_EQ(output[0], 0.0f);
  EXPECT_FLOAT_EQ(output[1], 1.0f);
}

TEST(ImageInput, SixteenBitResultsAreTheRoundedFloats) {
  const std::array mean{0.1f, 0.5f, 0.9f};
  const std::array deviation{0.25f, 0.5f, 2.0f};
  ImageInput input{.batch = 3, .height = 7, .width = 5, .channels = 3, .mean = mean, .deviation = deviation};
  const auto pixels = every_pixel_different(3 * 7 * 5 * 3);
  const auto run = [&](DType type) {
    input.type = type;
    const auto kernel = cpu_backend().image_input(input);
    EXPECT_EQ(kernel->output(), Layout({3, 3, 7, 5}, type));
    const GuardedMemory output(kernel->output().bytes(), type);
    Stream stream(Device{}, StreamUse::compute);
    kernel->run(stream, pixels.data(), output.data());
    EXPECT_TRUE(output.margin_intact());
    return output.values();
  };
  const Values floats = run(DType::f32);
  for (const DType type : {DType::f16, DType::bf16}) EXPECT_EQ(run(type), rounded(floats, type));
}

TEST(ImageInput, NumbersAreOnlyConvertedToTheType) {
  const Values numbers = random_values(3 * 7, "numbers");
  for (const DType type : {DType::f32, DType::f16, DType::bf16}) {
    const auto kernel = cpu_backend().image_input(
        {.batch = 3, .height = 1, .width = 7, .channels = 1, .source = DType::f32, .type = type});
    const GuardedMemory output(kernel->output().bytes(), type);
    Stream stream(Device{}, StreamUse::compute);
    const SampleId samples[3] = {};
    kernel->run(stream, numbers.data(), output.data(), samples);
    EXPECT_TRUE(output.margin_intact());
    EXPECT_EQ(output.values(), rounded(numbers, type));
  }
}

TEST(ImageInput, RefusesToNormaliseOrAugmentNumbers) {
  ImageInput input{.batch = 1, .height = 1, .width = 4, .channels = 1, .source = DType::f32};
  EXPECT_NO_THROW(cpu_backend().image_input(input));
  input.augmentation.horizontal_flip = true;
  EXPECT_THROW(cpu_backend().image_input(input), ConfigError);
  input.augmentation = {};
  const float mean[] = {0.5f};
  input.mean = mean;
  EXPECT_THROW(cpu_backend().image_input(input), ConfigError);
  EXPECT_THROW(
      cpu_backend().image_input({.batch = 1, .height = 1, .width = 4, .channels = 1, .source = DType::i32}),
      ConfigError);
}

// Images whose pixels all differ, cropped and flipped by hand.
class AugmentedImages : public testing::Test {
 protected:
  static constexpr int kHeight = 5, kWidth = 7, kPadding = 2, kBatch = 400;

  std::vector<Values> run(const Augmentation& augmentation, const std::vector<SampleId>& samples) {
    const auto kernel = cpu_backend().image_input(
        {.batch = kBatch, .height = kHeight, .width = kWidth, .channels = 2, .augmentation = augmentation});
    std::vector<std::uint8_t> images;
    for (int i = 0; i < kBatch; ++i) images.insert(images.end(), image_.begin(), image_.end());
    Values output(images.size());
    Stream stream(Device{}, StreamUse::compute);
    kernel->run(stream, images.data(), output.data(), samples.empty() ? nullptr : samples.data());
    std::vector<Values> split;
    for (std::size_t i = 0; i < kBatch; ++i) {
      split.emplace_back(output.begin() + static_cast<std::ptrdiff_t>(i * image_.size()),
                         output.begin() + static_cast<std::ptrdiff_t>((i + 1) * image_.size()));
    }
    return split;
  }
  Values view(int down, int right, bool flipped) const {
    Values expected;
    for (int c = 0; c < 2; ++c) {
      for (int row = 0; row < kHeight; ++row) {
        for (int column = 0; column < kWidth; ++column) {
          const int y = row + down, x = (flipped ? kWidth - 1 - column : column) + right;
          const bool inside = y >= 0 && y < kHeight && x >= 0 && x < kWidth;
          const auto place = static_cast<std::size_t>((y * kWidth + x) * 2 + c);
          expected.push_back(inside ? static_cast<float>(image_[place]) / 255 : 0.0f);
        }
      }
    }
    return expected;
  }
  static std::vector<SampleId> samples_of(std::int32_t epoch, std::int32_t first = 0) {
    std::vector<SampleId> samples;
    for (std::int32_t i = 0; i < kBatch; ++i) samples.push_back({.epoch = epoch, .index = first + i});
    return samples;
  }
  static bool near(const Values& a, const Values& b) {
    return std::ranges::equal(a, b, [](float x, float y) { return std::abs(x - y) < 1e-6f; });
  }

  // All pixels differ, and none is black.
  std::vector<std::uint8_t> image_ = [] {
    std::vector<std::uint8_t> pixels(kHeight * kWidth * 2);
    for (std::size_t i = 0; i < pixels.size(); ++i) pixels[i] = static_cast<std::uint8_t>(3 * i + 5);
    return pixels;
  }();
  const Augmentation both_ = {.crop_padding = kPadding, .horizontal_flip = true, .key = {7, 9}};
};

TEST_F(AugmentedImages, CoverEveryWindowAndItsMirrorImage) {
  std::map<std::tuple<int, int, bool>, int> seen;
  for (const Values& output : run(both_, samples_of(0))) {
    bool found = false;
    for (int down = -kPadding; down <= kPadding; ++down) {
      for (int right = -kPadding; right <= kPadding; ++right) {
        for (const bool flipped : {false, true}) {
          if (!near(output, view(down, right, flipped))) continue;
          found = true;
          ++seen[{down, right, flipped}];
        }
      }
    }
    ASSERT_TRUE(found) << "neither a window nor its mirror image";
  }
  // 50 views of 400 images: if all are equally likely, a given view is missing for one of about 3000 keys.
  EXPECT_EQ(seen.size(), 50u);
  int flipped = 0;
  for (const auto& [which, count] : seen) flipped += std::get<bool>(which) ? count : 0;
  EXPECT_NEAR(flipped, kBatch / 2, 50);
}

TEST_F(AugmentedImages, DependOnSampleAndEpochAndNotOnThePlaceInTheBatch) {
  const std::vector<Values> first = run(both_, samples_of(3));
  const std::vector<Values> shifted = run(both_, samples_of(3, 100));
  for (std::size_t i = 100; i < kBatch; ++i) EXPECT_EQ(first[i], shifted[i - 100]);
  const std::vector<Values> later = run(both_, samples_of(4));
  EXPECT_NE(first, later);
  Augmentation other = both_;
  other.key = {7, 10};
  EXPECT_NE(first, run(other, samples_of(3)));
}

TEST_F(AugmentedImages, ApplyOnlyTheRequestedAugmentation) {
  const Values whole = view(0, 0, false), mirrored = view(0, 0, true);
  for (const Values& output : run({.horizontal_flip = true}, samples_of(0)))
    EXPECT_TRUE(near(output, whole) || near(output, mirrored));
  for (const Values& output : run(both_, {}))
    EXPECT_TRUE(near(output, whole)) << "evaluation does not augment";
}

TEST_F(AugmentedImages, InvalidPaddingIsRefused) {
  for (const std::int64_t padding : {-1, 6}) {
    EXPECT_THROW(cpu_backend().image_input({.batch = 1,
                                            .height = kHeight,
                                            .width = kWidth,
                                            .channels = 1,
                                            .augmentation = {.crop_padding = padding}}),
                 ConfigError);
  }
}

// White images. An erased area shows as zeros after the normalisation, in all channels.
class ErasedImages : public testing::Test {
 protected:
  static constexpr int kHeight = 24, kWidth = 32, kBatch = 2000;
  struct Box {
    int top = kHeight, bottom = 0, left = kWidth, right = 0;
    int rows() const { return bottom - top; }
    int columns() const { return right - left; }
  };

  // Returns each image's erased box. Fails if the erased area is no rectangle.
  std::vector<Box> erased(const Augmentation& augmentation) {
    const std::array mean{0.25f, 0.5f}, deviation{0.5f, 2.0f};
    const auto kernel = cpu_backend().image_input({.batch = kBatch,
                                                   .height = kHeight,
                                                   .width = kWidth,
                                                   .channels = 2,
                                                   .mean = mean,
                                                   .deviation = deviation,
                                                   .augmentation = augmentation});
    const std::vector<std::uint8_t> white(std::size_t{2} * kBatch * kHeight * kWidth, 255);
    std::vector<SampleId> samples;
    for (std::int32_t i = 0; i < kBatch; ++i) samples.push_back({.epoch = 1, .index = i});
    Values output(white.size());
    Stream stream(Device{}, StreamUse::compute);
    kernel->run(stream, white.data(), output.data(), samples.data());
    std::vector<Box> boxes(kBatch);
    for (std::size_t i = 0; i < kBatch; ++i) {
      const float* planes = output.data() + 2 * i * kHeight * kWidth;
      Box& box = boxes[i];
      int count = 0, changed = 0;  // pixels; one expectation per pixel is slow
      for (int row = 0; row < kHeight; ++row) {
        for (int column = 0; column < kWidth; ++column) {
          const float* pixel = planes + row * kWidth + column;
          const bool zero = pixel[0] == 0 && pixel[kHeight * kWidth] == 0;
          if (!zero) {
            const bool kept =
                std::abs(pixel[0] - 1.5f) < 1e-5f && std::abs(pixel[kHeight * kWidth] - 0.25f) < 1e-5f;
            changed += kept ? 0 : 1;
            continue;
          }
          ++count;
          box.top = std::min(box.top, row), box.bottom = std::max(box.bottom, row + 1);
          box.left = std::min(box.left, column), box.right = std::max(box.right, column + 1);
        }
      }
      EXPECT_EQ(count, count == 0 ? 0 : box.rows() * box.columns()) << "of image " << i;
      EXPECT_EQ(changed, 0) << "of image " << i;
    }
    return boxes;
  }
};

TEST_F(ErasedImages, CutoutIsASquareCentredOnAnyPixel) {
  std::map<std::pair<int, int>, int> corners;
  int whole = 0;
  for (const Box& box : erased({.cutout = 8, .key = {7, 9}})) {
    ASSERT_LE(box.rows(), 8);
    ASSERT_LE(box.columns(), 8);
    // The centre is a pixel of the image: four rows above it and three below, clipped at the border.
    ASSERT_GE(box.rows(), 4);
    ASSERT_GE(box.columns(), 4);
    EXPECT_TRUE(box.rows() == 8 || box.top == 0 || box.bottom == kHeight);
    EXPECT_TRUE(box.columns() == 8 || box.left == 0 || box.right == kWidth);
    whole += box.rows() == 8 && box.columns() == 8 ? 1 : 0;
    ++corners[{box.top, box.left}];
  }
  EXPECT_NEAR(whole, kBatch * (17.0 / 24) * (25.0 / 32), 90) << "centres must be uniform over the image";
  EXPECT_GT(corners.size(), 400u);
}

// torchvision's numbers: p = 0.25, scale = (0.02, 0.33), ratio = (0.3, 3.3).
TEST_F(ErasedImages, RandomErasingClearsARectangleOfSomeImages) {
  int count = 0, tall = 0, large = 0;
  for (const Box& box : erased({.random_erasing = 0.25, .key = {7, 9}})) {
    if (box.bottom == 0) continue;
    ++count;
    const double share = 1.0 * box.rows() * box.columns() / (kHeight * kWidth);
    const double ratio = 1.0 * box.rows() / box.columns();
    // Within the rounding to whole pixels.
    EXPECT_GT((box.rows() + 0.5) * (box.columns() + 0.5), 0.02 * kHeight * kWidth);
    EXPECT_LT((box.rows() - 0.5) * (box.columns() - 0.5), 0.33 * kHeight * kWidth);
    EXPECT_GT((box.rows() + 0.5) / (box.columns() - 0.5), 0.3);
    EXPECT_LT((box.rows() - 0.5) / (box.columns() + 0.5), 3.3);
    EXPECT_TRUE(box.rows() < kHeight && box.columns() < kWidth);
    tall += ratio > 1 ? 1 : 0;
    large += share > 0.15 ? 1 : 0;
  }
  EXPECT_NEAR(count, kBatch / 4, 80);
  EXPECT_NEAR(tall, count / 2, count / 8);
  EXPECT_NEAR(large, count / 2, count / 6);
  for (const Box& box : erased({.random_erasing = 1, .key = {7, 9}})) EXPECT_GT(box.rows(), 0);
}

TEST_F(ErasedImages, DependOnTheKey) {
  const auto first = erased({.cutout = 8, .key = {7, 9}}), other = erased({.cutout = 8, .key = {7, 10}});
  EXPECT_FALSE(std::ranges::equal(first, other, {}, &Box::top, &Box::top));
}

TEST_F(ErasedImages, RefuseInvalidNumbers) {
  for (const Augmentation& invalid :
       {Augmentation{.cutout = 65}, Augmentation{.cutout = -1}, Augmentation{.random_erasing = -0.5},
        Augmentation{.random_erasing = 1.5}, Augmentation{.mixup = -1}, Augmentation{.cutmix = std::nan("")}})
    EXPECT_THROW(erased(invalid), ConfigError);
}

TEST(BetaQuantile, IsTheInverseOfTheDistributionFunction) {
  for (const double p : {0.001, 0.1, 0.25, 0.5, 0.6, 0.9, 0.999}) {
    EXPECT_NEAR(beta_quantile(1, p), p, 1e-12);
    const double of_two = beta_quantile(2, p), of_half = beta_quantile(0.5, p);
    EXPECT_NEAR(3 * of_two * of_two - 2 * of_two * of_two * of_two, p, 1e-12);
    EXPECT_NEAR(std::asin(std::sqrt(of_half)) * 2 / 3.14159265358979324, p, 1e-12);
    for (const double alpha : {0.2, 0.4, 8.0, 100.0}) {
      EXPECT_NEAR(beta_quantile(alpha, p) + beta_quantile(alpha, 1 - p), 1, 1e-12);
      EXPECT_LT(beta_quantile(alpha, p - 0.0005), beta_quantile(alpha, p));
    }
  }
  // By the power series of the incomplete beta function (DLMF 8.17.7).
  EXPECT_NEAR(beta_quantile(0.2, 0.25), 0.0238147, 1e-6);
  EXPECT_NEAR(beta_quantile(8, 0.1), 0.3415208, 1e-6);
}

// Each image has one value, so that a result shows which images contribute to it. The batch is odd: its last
// sample has no partner.
class MixedImages : public testing::Test {
 protected:
  static constexpr int kHeight = 12, kWidth = 16, kBatch = 201, kPixels = kHeight * kWidth;
  struct Mixed {
    Values output, shares;
    const float* image(int i) const { return output.data() + std::ptrdiff_t{i} * kPixels; }
  };

  static float value_of(int i) { return static_cast<float>(i % 2 == 0 ? 10 + i / 2 : 250 - i / 2) / 255; }
  static Mixed run(const Augmentation& augmentation, Values weights = {}, std::int32_t first = 0) {
    const auto kernel = cpu_backend().image_input(
        {.batch = kBatch, .height = kHeight, .width = kWidth, .channels = 1, .augmentation = augmentation});
    std::vector<std::uint8_t> images;
    std::vector<SampleId> samples;
    for (int i = 0; i < kBatch; ++i) {
      images.insert(images.end(), kPixels, static_cast<std::uint8_t>(std::lround(255 * value_of(i))));
      samples.push_back({.epoch = 1, .index = first + i});
    }
    Mixed mixed{.output = Values(images.size()), .shares = Values(kBatch, -1.0f)};
    Stream stream(Device{}, StreamUse::compute);
    kernel->run(stream, images.data(), mixed.output.data(), samples.data(),
                {.weights = weights.empty() ? nullptr : weights.data(), .shares = mixed.shares.data()});
    return mixed;
  }
};

TEST_F(MixedImages, MixupAddsThePartnersPixels) {
  const Mixed mixed = run({.mixup = 1, .key = {7, 9}});
  double sum = 0;
  for (int i = 0; i < kBatch; ++i) {
    const float share = mixed.shares[static_cast<std::size_t>(i)];
    ASSERT_TRUE(share >= 0 && share <= 1) << share;
    const float expected = share * value_of(i) + (1 - share) * value_of(i ^ 1);
    for (int pixel = 0; pixel < kPixels; ++pixel) ASSERT_NEAR(mixed.image(i)[pixel], expected, 1e-5f) << i;
    sum += static_cast<double>(share);
  }
  EXPECT_NEAR(sum / kBatch, 0.5, 0.08);
  EXPECT_NE(mixed.shares[0], mixed.shares[1]) << "each sample draws its own share";
  // With a small alpha one of the two shares is close to 1.
  const Mixed unlike = run({.mixup = 0.1, .key = {7, 9}});
  EXPECT_GT(std::ranges::count_if(unlike.shares, [](float share) { return share < 0.1f || share > 0.9f; }),
            kBatch / 2);
}

TEST_F(MixedImages, CutmixPastesARectangleAndReportsTheKeptShare) {
  const Mixed mixed = run({.cutmix = 1, .key = {7, 9}});
  double sum = 0;
  for (int i = 0; i < kBatch; ++i) {
    int own = 0, top = kHeight, bottom = 0, left = kWidth, right = 0;
    for (int pixel = 0; pixel < kPixels; ++pixel) {
      const int row = pixel / kWidth, column = pixel % kWidth;
      if (std::abs(mixed.image(i)[pixel] - value_of(i)) < 1e-5f) {
        ++own;
        continue;
      }
      ASSERT_NEAR(mixed.image(i)[pixel], value_of(i ^ 1), 1e-5f) << i;
      top = std::min(top, row), bottom = std::max(bottom, row + 1);
      left = std::min(left, column), right = std::max(right, column + 1);
    }
    ASSERT_FLOAT_EQ(mixed.shares[static_cast<std::size_t>(i)], static_cast<float>(own) / kPixels);
    ASSERT_EQ(kPixels - own, own == kPixels ? 0 : (bottom - top) * (right - left)) << "a rectangle";
    sum += static_cast<double>(mixed.shares[static_cast<std::size_t>(i)]);
  }
  EXPECT_GT(sum / kBatch, 0.5) << "parts of the rectangle outside the image do not count";
  EXPECT_LT(sum / kBatch, 0.8);
}

TEST_F(MixedImages, MixupAndCutmixTogetherAreEquallyLikely) {
  const Mixed mixed = run({.mixup = 1, .cutmix = 1, .key = {7, 9}});
  int pasted = 0;
  for (int i = 0; i < kBatch; ++i) {
    const auto [least, most] = std::minmax_element(mixed.image(i), mixed.image(i) + kPixels);
    pasted += *most - *least > 1e-5f ? 1 : 0;
  }
  EXPECT_NEAR(pasted, kBatch / 2, 30);
}

// A sample's random numbers depend on the sample only. A sample with weight 0 or without a partner is not
// mixed.
TEST_F(MixedImages, DependOnTheSampleAndIgnoreSamplesOfZeroWeight) {
  const Augmentation augmentation{.mixup = 1, .key = {7, 9}};
  const Mixed whole = run(augmentation), later = run(augmentation, {}, 50);
  for (std::size_t i = 50; i < kBatch - 1; ++i) ASSERT_EQ(whole.shares[i], later.shares[i - 50]);
  EXPECT_EQ(whole.shares[kBatch - 1], 1.0f);
  Values weights(kBatch, 1.0f);
  weights[7] = 0;
  const Mixed without = run(augmentation, weights);
  for (const std::size_t i : {std::size_t{6}, std::size_t{7}}) {
    EXPECT_EQ(without.shares[i], 1.0f);
    EXPECT_NEAR(without.image(static_cast<int>(i))[0], value_of(static_cast<int>(i)), 1e-5f);
  }
  EXPECT_EQ(without.shares[8], whole.shares[8]);
}

TEST(ImageInput, RefusesStatisticsForAnotherNumberOfChannelsAndADeviationOfZero) {
  const std::array mean{0.5f, 0.5f}, deviation{1.0f, 0.0f};
  for (const std::int64_t channels : {2, 3})
    EXPECT_THROW(cpu_backend().image_input({.batch = 1,
                                            .height = 2,
                                            .width = 2,
                                            .channels = channels,
                                            .mean = mean,
                                            .deviation = deviation}),
                 ConfigError);
}

}  // namespace
}  // namespace lockstep
