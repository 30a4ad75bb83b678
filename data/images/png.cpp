// SPDX-License-Identifier: Apache-2.0
#include "data/images/png.h"

#include <algorithm>
#include <cstdlib>
#include <initializer_list>
#include <memory>

#include <spng.h>

#include "core/error.h"
#include "data/images/luma.h"

namespace lockstep {
namespace {

constexpr std::uint8_t kSignature[] = {0x89, 'P', 'N', 'G', '\r', '\n', 0x1a, '\n'};
constexpr std::uint32_t kMostSide = 1 << 20;
constexpr std::size_t kMostChunk = std::size_t{64} << 20;  // also of all cached chunks together

struct FreeContext {
  void operator()(spng_ctx* context) const { spng_ctx_free(context); }
};
using Context = std::unique_ptr<spng_ctx, FreeContext>;

[[noreturn]] void fail(std::string_view name, int error) {
  throw DataError(fmt::format("{}: not a PNG image, truncated or corrupt: {}", name, spng_strerror(error)));
}

struct Opened {
  Context context;
  spng_ihdr header;
};

Opened open_image(std::string_view name, std::span<const std::uint8_t> image) {
  Opened opened{.context = Context(spng_ctx_new(0)), .header = {}};
  spng_ctx* context = opened.context.get();
  CHECK(context != nullptr, "cannot allocate a PNG decoder");
  int error = spng_set_image_limits(context, kMostSide, kMostSide);
  if (error == 0) error = spng_set_chunk_limits(context, kMostChunk, kMostChunk);
  if (error == 0) error = spng_set_png_buffer(context, image.data(), image.size());
  if (error == 0) error = spng_get_ihdr(context, &opened.header);
  if (error != 0) fail(name, error);
  return opened;
}

// Decodes the pixels and reads the file to its end, because the checksum after the last pixel is checked only
// then.
void decode_all(std::string_view name, const Opened& opened, spng_format format, void* to,
                std::size_t bytes) {
  int error = spng_decode_image(opened.context.get(), to, bytes, format, 0);
  if (error == 0) error = spng_decode_chunks(opened.context.get());
  if (error != 0) fail(name, error);
}

// Decodes to 16-bit RGBA.
std::span<const std::uint16_t> decode_wide(std::string_view name, const Opened& opened) {
  thread_local std::vector<std::uint16_t> values;
  values.resize(std::size_t{4} * opened.header.height * opened.header.width);
  decode_all(name, opened, SPNG_FMT_RGBA16, values.data(), values.size() * sizeof(std::uint16_t));
  return values;
}

// 65535 / 255 = 257.
std::uint8_t rounded_to_byte(std::uint16_t value) { return static_cast<std::uint8_t>((value + 128) / 257); }

bool is_gray(const spng_ihdr& header) {
  return header.color_type == SPNG_COLOR_TYPE_GRAYSCALE ||
         header.color_type == SPNG_COLOR_TYPE_GRAYSCALE_ALPHA;
}

// The first chunk with one of these names; "" for bytes that end before it and for other formats. A chunk is
// a length, a name, data of that length and a checksum.
std::string_view first_chunk(std::span<const std::uint8_t> image,
                             std::initializer_list<std::string_view> names) {
  constexpr std::size_t kName = 4, kBesideData = 12;
  if (!is_png(image)) return {};
  for (std::size_t at = sizeof(kSignature); at + kBesideData <= image.size();) {
    const std::string_view name(reinterpret_cast<const char*>(image.data() + at + kName), kName);
    if (std::ranges::count(names, name) > 0) return name;
    std::size_t length = 0;
    for (std::size_t i = 0; i < kName; ++i) length = length << 8 | image[at + i];
    if (length > image.size() - at - kBesideData) return {};
    at += kBesideData + length;
  }
  return {};
}

}  // namespace

bool is_png(std::span<const std::uint8_t> image) {
  return image.size() >= sizeof(kSignature) &&
         std::equal(std::begin(kSignature), std::end(kSignature), image.begin());
}

ImageShape png_shape(std::string_view name, std::span<const std::uint8_t> image) {
  const spng_ihdr header = open_image(name, image).header;
  return {.height = header.height, .width = header.width, .channels = is_gray(header) ? 1 : 3};
}

bool holds_png_header(std::span<const std::uint8_t> part) { return first_chunk(part, {"IDAT"}) == "IDAT"; }

// acTL comes before the first IDAT (PNG 3rd edition).
bool is_animated_png(std::span<const std::uint8_t> image) {
  return first_chunk(image, {"acTL", "IDAT"}) == "acTL";
}

std::optional<std::uint32_t> largest_16_bit_gray(std::string_view name, std::span<const std::uint8_t> image) {
  if (!is_png(image)) return std::nullopt;
  const Opened opened = open_image(name, image);
  if (opened.header.bit_depth < 16 || !is_gray(opened.header)) return std::nullopt;
  if (std::int64_t{opened.header.height} * opened.header.width > kMostImageBytes)
    throw DataError(fmt::format("{}: the image is {} pixels wide and {} high; the limit is {} pixels", name,
                                opened.header.width, opened.header.height, kMostImageBytes));
  const std::span<const std::uint16_t> values = decode_wide(name, opened);
  std::uint32_t largest = 0;
  for (std::size_t i = 0; i < values.size(); i += 4) largest = std::max<std::uint32_t>(largest, values[i]);
  return largest;
}

bool varies_in_transparency_only(std::string_view name, std::span<const std::uint8_t> image) {
  if (!is_png(image)) return false;
  const Opened opened = open_image(name, image);
  const spng_ihdr& header = opened.header;
  const bool may_be_transparent = header.color_type == SPNG_COLOR_TYPE_GRAYSCALE_ALPHA ||
                                  header.color_type == SPNG_COLOR_TYPE_TRUECOLOR_ALPHA ||
                                  header.color_type == SPNG_COLOR_TYPE_INDEXED;
  if (!may_be_transparent || std::int64_t{4} * header.height * header.width > kMostImageBytes) return false;
  std::vector<std::uint8_t> pixels(std::size_t{4} * header.height * header.width);  // RGBA
  const int error =
      spng_decode_image(opened.context.get(), pixels.data(), pixels.size(), SPNG_FMT_RGBA8, SPNG_DECODE_TRNS);
  if (error != 0) fail(name, error);
  bool varies = false;
  for (const std::uint8_t *first = pixels.data(), *each = first; each < first + pixels.size(); each += 4) {
    if (!std::equal(first, first + 3, each)) return false;
    varies = varies || each[3] != first[3];
  }
  return varies;
}

void decode_png(std::string_view name, std::span<const std::uint8_t> image, const ImageShape& shape,
                std::span<std::uint8_t> pixels) {
  const Opened opened = open_image(name, image);
  CHECK(shape.height == opened.header.height && shape.width == opened.header.width &&
            static_cast<std::int64_t>(pixels.size()) == shape.bytes(),
        "{} is {} x {}, not {} x {} in {} bytes", name, opened.header.height, opened.header.width,
        shape.height, shape.width, pixels.size());
  const auto decode = [&](std::span<std::uint8_t> to) {
    if (opened.header.bit_depth < 16) return decode_all(name, opened, SPNG_FMT_RGB8, to.data(), to.size());
    const std::span<const std::uint16_t> values = decode_wide(name, opened);
    for (std::size_t i = 0; i < to.size(); ++i) to[i] = rounded_to_byte(values[i / 3 * 4 + i % 3]);
  };
  if (shape.channels == 3) return decode(pixels);
  thread_local std::vector<std::uint8_t> colours;
  colours.resize(3 * pixels.size());
  decode(colours);
  for (std::size_t i = 0; i < pixels.size(); ++i)
    pixels[i] = luma(colours[3 * i], colours[3 * i + 1], colours[3 * i + 2]);
}

void decode_png_values(std::string_view name, std::span<const std::uint8_t> image, const ImageShape& shape,
                       std::span<std::uint8_t> values) {
  const Opened opened = open_image(name, image);
  const spng_ihdr& header = opened.header;
  CHECK(shape.height == header.height && shape.width == header.width &&
            static_cast<std::int64_t>(values.size()) == shape.height * shape.width,
        "{} is {} x {}, not {} x {}", name, header.height, header.width, shape.height, shape.width);
  if ((header.color_type != SPNG_COLOR_TYPE_GRAYSCALE && header.color_type != SPNG_COLOR_TYPE_INDEXED) ||
      header.bit_depth > 8) {
    throw DataError(fmt::format(
        "{}: a mask is expected to be a grayscale or palette PNG image of at most 8 bits whose values are "
        "classes; this one has {} bits in {}",
        name, header.bit_depth, is_gray(header) ? "gray" : "colour"));
  }
  if (header.bit_depth == 8) return decode_all(name, opened, SPNG_FMT_RAW, values.data(), values.size());
  // Rows of packed values begin at whole bytes, the first value in the highest bits.
  const std::size_t depth = header.bit_depth, row_bytes = (header.width * depth + 7) / 8;
  thread_local std::vector<std::uint8_t> packed;
  packed.assign(row_bytes * header.height, 0);  // libspng adds the bits of interlaced rows to what is there
  decode_all(name, opened, SPNG_FMT_RAW, packed.data(), packed.size());
  for (std::size_t i = 0; i < values.size(); ++i) {
    const std::size_t bit = i % header.width * depth;
    const unsigned byte = packed[i / header.width * row_bytes + bit / 8];
    values[i] = static_cast<std::uint8_t>(byte >> (8 - depth - bit % 8) & ((1u << depth) - 1));
  }
}

std::vector<std::uint8_t> png_palette(std::string_view name, std::span<const std::uint8_t> image) {
  const Opened opened = open_image(name, image);
  if (opened.header.color_type != SPNG_COLOR_TYPE_INDEXED) return {};
  spng_plte palette = {};
  if (const int error = spng_get_plte(opened.context.get(), &palette); error != 0) fail(name, error);
  std::vector<std::uint8_t> colours;
  for (const spng_plte_entry& entry : std::span(palette.entries).first(palette.n_entries))
    colours.insert(colours.end(), {entry.red, entry.green, entry.blue});
  return colours;
}

namespace {

// The bits of the value, three at a time from the lowest, are spread over the highest bits of red, green and
// blue.
spng_plte_entry voc_colour(unsigned value) {
  unsigned colour[3] = {};
  for (unsigned bit = 0; bit < 8; ++bit) colour[bit % 3] |= (value >> bit & 1u) << (7 - bit / 3);
  return {.red = static_cast<std::uint8_t>(colour[0]),
          .green = static_cast<std::uint8_t>(colour[1]),
          .blue = static_cast<std::uint8_t>(colour[2]),
          .alpha = 255};
}

std::vector<std::uint8_t> encoded(const ImageShape& shape, std::span<const std::uint8_t> pixels,
                                  spng_color_type type, spng_plte* palette) {
  const Context context(spng_ctx_new(SPNG_CTX_ENCODER));
  spng_ihdr header = {.width = static_cast<std::uint32_t>(shape.width),
                      .height = static_cast<std::uint32_t>(shape.height),
                      .bit_depth = 8,
                      .color_type = static_cast<std::uint8_t>(type)};
  int error = context == nullptr ? SPNG_EMEM : spng_set_option(context.get(), SPNG_ENCODE_TO_BUFFER, 1);
  if (error == 0) error = spng_set_ihdr(context.get(), &header);
  if (error == 0 && palette != nullptr) error = spng_set_plte(context.get(), palette);
  if (error == 0)
    error =
        spng_encode_image(context.get(), pixels.data(), pixels.size(), SPNG_FMT_PNG, SPNG_ENCODE_FINALIZE);
  std::size_t size = 0;
  const std::unique_ptr<void, decltype(&std::free)> png(
      error == 0 ? spng_get_png_buffer(context.get(), &size, &error) : nullptr, &std::free);
  CHECK(error == 0, "libspng: {}", spng_strerror(error));
  const auto* bytes = static_cast<const std::uint8_t*>(png.get());
  return {bytes, bytes + size};
}

}  // namespace

std::vector<std::uint8_t> encode_png(const ImageShape& shape, std::span<const std::uint8_t> pixels) {
  CHECK((shape.channels == 1 || shape.channels == 3) &&
            static_cast<std::int64_t>(pixels.size()) == shape.bytes(),
        "{} bytes of {} channels", pixels.size(), shape.channels);
  return encoded(shape, pixels, shape.channels == 1 ? SPNG_COLOR_TYPE_GRAYSCALE : SPNG_COLOR_TYPE_TRUECOLOR,
                 nullptr);
}

std::vector<std::uint8_t> encode_png_values(const ImageShape& shape, std::span<const std::uint8_t> values) {
  CHECK(static_cast<std::int64_t>(values.size()) == shape.height * shape.width, "{} values of {} x {} pixels",
        values.size(), shape.height, shape.width);
  spng_plte palette = {.n_entries = 256, .entries = {}};
  for (unsigned value = 0; value < 256; ++value) palette.entries[value] = voc_colour(value);
  return encoded(shape, values, SPNG_COLOR_TYPE_INDEXED, &palette);
}

}  // namespace lockstep
