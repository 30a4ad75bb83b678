// SPDX-License-Identifier: Apache-2.0
#include "data/common_shape.h"

#include <exception>
#include <optional>

#include "core/error.h"
#include "core/log.h"
#include "data/image_decoder.h"

namespace lockstep {

ImageShape common_shape(const DatasetOptions& options, Split split, std::int64_t count,
                        const std::function<ImageShape(std::int64_t index)>& shape_of) {
  CHECK(count > 0, "no images");
  if (options.images.channels == 2)
    throw ConfigError(
        "data.channels = 2: 1 (grayscale) and 3 (RGB) are possible, and 0 for what most images have");
  std::optional<ImageShape> first;
  std::exception_ptr fault;
  std::int64_t gray = 0, colour = 0, turned = 0, animated = 0;
  const auto look = [&](std::int64_t index) {
    const ImageShape shape = shape_of(index);
    if (!first) first = shape;
    ++(shape.channels == 1 ? gray : colour);
    const ImageDecoder& decoder = ImageDecoder::of_this_thread();
    turned += decoder.orientation() != 1;
    animated += decoder.animated();
  };
  for (std::int64_t i = 0; i < count; ++i) {
    try {
      look(i);
    } catch (const DataError&) {
      if (!fault) fault = std::current_exception();
    } catch (const IoError&) {
      if (!fault) fault = std::current_exception();
    }
  }
  if (!first) std::rethrow_exception(fault);
  const bool told = split == Split::train;
  const bool guessed = options.images.channels == 0;
  first->channels = guessed ? (gray > colour ? 1 : 3) : options.images.channels;
  if (told && guessed && gray > 0 && colour > 0) {
    log::shared_warning(
        "{}: {} of {} training images that were looked at are grayscale and {} are colour: all are read with "
        "{} "
        "(data.channels decides)",
        options.path, gray, gray + colour, colour, first->channels == 1 ? "1 channel" : "3 channels");
  }
  if (told && turned > 0) {
    log::info(
        "{}: {} of {} training images that were looked at are turned or mirrored as their EXIF says "
        "(data.exif_orientation decides)",
        options.path, turned, gray + colour);
  }
  if (told && animated > 0) {
    log::shared_warning(
        "{}: {} of {} training images that were looked at are animated; only their first frame is "
        "read",
        options.path, animated, gray + colour);
  }
  return *first;
}

}  // namespace lockstep
