// SPDX-License-Identifier: Apache-2.0
#include "data/images/common_shape.h"

#include <exception>
#include <optional>

#include "core/error.h"
#include "core/log.h"
#include "data/images/image_decoder.h"

namespace lockstep {

std::int64_t channels_of(const DatasetOptions& options, std::int64_t most) {
  const std::int64_t channels = options.images.channels;
  if (channels == 2)
    throw ConfigError(
        "data.channels = 2: allowed are 1 (grayscale), 3 (RGB) and 0 (the channels of most images)");
  return channels == 0 ? most : channels;
}

ImageShape common_shape(const DatasetOptions& options, Split split, std::int64_t count,
                        const std::function<ImageShape(std::int64_t index)>& shape_of) {
  CHECK(count > 0, "no images");
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
  first->channels = channels_of(options, gray > colour ? 1 : 3);
  if (told && guessed && gray > 0 && colour > 0) {
    log::shared_warning(
        "{}: {} of {} examined training images are grayscale and {} are in colour; all are read with {} "
        "(data.channels sets this)",
        options.path, gray, gray + colour, colour, first->channels == 1 ? "1 channel" : "3 channels");
  }
  if (told && turned > 0) {
    log::info(
        "{}: {} of {} examined training images are turned or mirrored by their EXIF orientation "
        "(data.exif_orientation sets this)",
        options.path, turned, gray + colour);
  }
  if (told && animated > 0) {
    log::shared_warning("{}: {} of {} examined training images are animated; only the first frame is read",
                        options.path, animated, gray + colour);
  }
  return *first;
}

}  // namespace lockstep
