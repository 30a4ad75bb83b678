// SPDX-License-Identifier: Apache-2.0
#include "data/images/jpeg_decoder.h"

#include <algorithm>
#include <cstring>

#include <turbojpeg.h>

#include "core/error.h"
#include "data/images/jpeg_header.h"
#include "data/images/luma.h"

namespace lockstep {
namespace {

constexpr std::int64_t kParts[] = {1, 2, 4, 8};

// CMYK to RGB; 255 is no ink (data/images/jpeg_decoder.h).
std::uint8_t mixed(std::uint8_t colour, std::uint8_t black) {
  return static_cast<std::uint8_t>((colour * black + 127) / 255);
}

}  // namespace

void JpegDecoder::Destroy::operator()(void* handle) const { tjDestroy(handle); }

ImageShape JpegDecoder::open(std::string_view name, std::span<const std::uint8_t> image, HeaderCheck check) {
  name_ = name;
  image_ = image;
  if (image_.empty()) fail("the file is empty; expected a JPEG image");
  if (check == HeaderCheck::size && find_size()) return shape();
  tolerate(parse_header());
  if (width_ < 1 || height_ < 1) fail("the JPEG file contains no image");  // it may hold tables only
  return shape();
}

std::optional<ImageShape> JpegDecoder::open_part(std::string_view name, std::span<const std::uint8_t> part) {
  name_ = name;
  image_ = part;
  if (parse_header() != 0 || width_ < 1) return std::nullopt;
  return shape();
}

bool JpegDecoder::reduces_by(std::int64_t reduction) const {
  const tjscalingfactor wanted{1, static_cast<int>(reduction)};
  const auto fits = [&](const tjscalingfactor& factor) {
    return TJSCALED(width_, factor) <= TJSCALED(width_, wanted) &&
           TJSCALED(height_, factor) <= TJSCALED(height_, wanted);
  };
  int count = 0;
  const tjscalingfactor* factors = tjGetScalingFactors(&count);
  const auto* taken = std::find_if(factors, factors + count, fits);  // largest first
  return taken != factors + count && taken->num * reduction == taken->denom;
}

void JpegDecoder::decode(const ImageShape& shape, std::span<std::uint8_t> image) {
  const bool has_this_size = std::ranges::any_of(kParts, [&](std::int64_t part) {
    return shape.height == (height_ + part - 1) / part && shape.width == (width_ + part - 1) / part;
  });
  CHECK(has_this_size && static_cast<std::int64_t>(image.size()) == shape.bytes(),
        "{} is {} x {}, not {} x {} in {} bytes", name_, height_, width_, shape.height, shape.width,
        image.size());
  if (colours_ != TJCS_CMYK && colours_ != TJCS_YCCK) {
    return decode_as(shape.channels == 1 ? TJPF_GRAY : TJPF_RGB, shape, image.data());
  }
  const auto pixels = static_cast<std::size_t>(shape.height * shape.width);
  if (inks_.size() < 4 * pixels) inks_.resize(4 * pixels);
  decode_as(TJPF_CMYK, shape, inks_.data());
  for (std::size_t i = 0; i < pixels; ++i) {
    const std::uint8_t* ink = inks_.data() + 4 * i;
    const std::uint8_t red = mixed(ink[0], ink[3]);
    const std::uint8_t green = mixed(ink[1], ink[3]);
    const std::uint8_t blue = mixed(ink[2], ink[3]);
    if (shape.channels == 1) {
      image[i] = luma(red, green, blue);
    } else {
      image[3 * i] = red;
      image[3 * i + 1] = green;
      image[3 * i + 2] = blue;
    }
  }
}

void JpegDecoder::fail(const std::string& what) const { throw DataError(fmt::format("{}: {}", name_, what)); }

ImageShape JpegDecoder::shape() const {
  return {.height = height_, .width = width_, .channels = colours_ == TJCS_GRAY ? 1 : 3};
}

// Creates a new decompressor, in 0.3 us: a used one keeps the previous image's tables, and after an error its
// position, so that pixels would depend on the images that the thread decoded before.
void JpegDecoder::renew() {
  decompressor_.reset(tjInitDecompress());
  CHECK(decompressor_ != nullptr, "TurboJPEG: {}", tjGetErrorStr2(nullptr));
  warning_.clear();
  reusable_ = true;
}

int JpegDecoder::parse_header() {
  renew();
  width_ = height_ = 0;
  int subsampling = 0;
  return tjDecompressHeader3(decompressor_.get(), image_.data(), image_.size(), &width_, &height_,
                             &subsampling, &colours_);
}

bool JpegDecoder::find_size() {
  const std::optional<JpegHeader> header = read_jpeg_header(image_);
  if (!header) return false;
  height_ = header->height;
  width_ = header->width;
  colours_ = header->components == 1 ? TJCS_GRAY : header->components == 4 ? TJCS_CMYK : TJCS_YCbCr;
  if (header->has_its_tables && reusable_) {
    warning_.clear();
  } else {
    renew();
  }
  return true;
}

// libjpeg-turbo writes rows at multiples of 32 bytes past the caches, which costs small images 10 % of their
// time: they are decoded into unaligned memory and copied.
void JpegDecoder::decode_as(int format, const ImageShape& shape, std::uint8_t* pixels) {
  constexpr int kFlags = TJFLAG_ACCURATEDCT | TJFLAG_LIMITSCANS;
  constexpr std::size_t kSmallBytes = 16384, kRowAlignment = 32;
  const auto bytes = static_cast<std::size_t>(shape.height * shape.width * tjPixelSize[format]);
  const auto begins_at = [](const std::uint8_t* memory) {
    return reinterpret_cast<std::uintptr_t>(memory) % kRowAlignment;
  };
  std::uint8_t* into = pixels;
  if (bytes <= kSmallBytes && begins_at(pixels) == 0) {
    small_.resize(kSmallBytes + kRowAlignment);
    into = small_.data() + (begins_at(small_.data()) == 0 ? 1 : 0);
  }
  tolerate(tjDecompress2(decompressor_.get(), image_.data(), image_.size(), into,
                         static_cast<int>(shape.width), 0, static_cast<int>(shape.height), format, kFlags));
  if (into != pixels) std::memcpy(pixels, into, bytes);
}

void JpegDecoder::tolerate(int result) {
  if (result == 0) return;
  reusable_ = false;
  const char* reason = tjGetErrorStr2(decompressor_.get());
  if (tjGetErrorCode(decompressor_.get()) != TJERR_WARNING) {
    fail(fmt::format("not a JPEG image, truncated or corrupt: {}", reason));
  }
  if (warning_.empty()) warning_ = reason;
}

std::vector<std::uint8_t> encode_jpeg(const ImageShape& shape, std::span<const std::uint8_t> pixels,
                                      int quality) {
  const bool gray = shape.channels == 1;
  CHECK((gray || shape.channels == 3) && static_cast<std::int64_t>(pixels.size()) == shape.bytes(),
        "{} bytes of {} channels", pixels.size(), shape.channels);
  const std::unique_ptr<void, int (*)(void*)> compressor(tjInitCompress(), &tjDestroy);
  unsigned char* buffer = nullptr;
  unsigned long size = 0;
  const int result = tjCompress2(compressor.get(), pixels.data(), static_cast<int>(shape.width), 0,
                                 static_cast<int>(shape.height), gray ? TJPF_GRAY : TJPF_RGB, &buffer, &size,
                                 gray ? TJSAMP_GRAY : TJSAMP_420, quality, TJFLAG_ACCURATEDCT);
  const std::unique_ptr<unsigned char, void (*)(unsigned char*)> owned(buffer, &tjFree);
  CHECK(result == 0, "TurboJPEG: {}", tjGetErrorStr2(compressor.get()));
  return {buffer, buffer + size};
}

}  // namespace lockstep
