// SPDX-License-Identifier: Apache-2.0
#include "data/sets/set_checks.h"

#include <algorithm>
#include <array>
#include <unordered_map>
#include <vector>

#include <fmt/ranges.h>

#include "core/error.h"
#include "core/log.h"
#include "core/system/printable.h"
#include "kernels/pixel_targets.h"

namespace lockstep {
namespace {

// Indices of the samples that are compared.
std::vector<std::int64_t> looked_at(const Dataset& set) {
  constexpr std::int64_t kMost = 4096;
  constexpr std::int64_t kQuickBytes = std::int64_t{1} << 30;
  const bool quick = !set.decodes() && set.size() <= kQuickBytes / set.image_shape().bytes();
  return some_samples(set.size(), quick ? set.size() : kMost);
}

template <typename Take>
void for_each_hash(const Dataset& set, Take take) {
  for (const std::int64_t index : looked_at(set)) {
    try {
      take(index, set.content_hash(index));
    } catch (const DataError&) {  // reported when the sample is read
    } catch (const IoError&) {
    }
  }
}

void tell_of_classes(const Dataset& train, const std::string& path) {
  const std::vector<std::int64_t> counts = train.class_counts();
  if (train.classes() == 1)
    log::shared_warning("{}: there is only one class, so the model learns nothing", path);
  const std::vector<std::string> names = train.class_names();
  const auto classes_of = [&](std::int64_t samples) {
    constexpr std::size_t kNamedClasses = 5;
    std::vector<std::string> found;
    std::size_t count = 0;
    for (std::size_t label = 0; label < counts.size(); ++label) {
      if (counts[label] != samples || ++count > kNamedClasses) continue;
      found.push_back(names.empty() ? std::to_string(label) : printable(names[label]));
    }
    if (count > kNamedClasses) found.push_back(fmt::format("{} more", count - kNamedClasses));
    return fmt::format("{}", fmt::join(found, ", "));
  };
  if (const std::string none = classes_of(0); !none.empty())
    log::shared_warning("{}: classes without training samples: {} (labels start at 0)", path, none);
  if (const std::string single = classes_of(1); !single.empty() && train.size() > 2 * train.classes())
    log::shared_warning("{}: classes with a single training sample: {}", path, single);
}

// Calls look(index) for some samples. Returns their number; 0 if look() returns false for one of them.
template <typename Look>
std::int64_t examined(const Dataset& set, Look look) {
  std::int64_t count = 0;
  for (const std::int64_t index : some_samples(set.size(), 8)) {
    try {
      if (!look(index)) return 0;
      ++count;
    } catch (const DataError&) {  // reported when the sample is read
    } catch (const IoError&) {
    }
  }
  return count;
}

// Images of two levels are often stored as 0 and 1.
void tell_of_black_images(const Dataset& train, const std::string& path) {
  const ImageShape shape = train.image_shape();
  if (shape.type != DType::u8) return;
  std::vector<std::uint8_t> image(static_cast<std::size_t>(shape.bytes()));
  bool ones = false;
  const std::int64_t count = examined(train, [&](std::int64_t index) {
    train.read(index, image);
    ones = ones || std::ranges::count(image, std::uint8_t{1}) > 0;
    return std::ranges::all_of(image, [](std::uint8_t pixel) { return pixel <= 1; });
  });
  if (count == 0 || !ones) return;
  log::shared_warning(
      "{}: all pixels of {} examined training images are 0 or 1, which is black, because pixels range from 0 "
      "to 255; write 255 instead of 1",
      path, count);
}

// Masks of two classes often have the values 0 and 255, but 255 is ignored by default.
void tell_of_ignored_class(const Dataset& train, const std::string& path) {
  if (!train.has_masks() || train.classes() < 2) return;
  const ImageShape shape = train.image_shape();
  std::vector<std::uint8_t> mask(static_cast<std::size_t>(shape.height * shape.width));
  std::array<bool, 256> found = {};
  const std::int64_t count = examined(train, [&](std::int64_t index) {
    train.read_mask(index, mask);
    for (const std::uint8_t pixel : mask) found[pixel] = true;
    return true;
  });
  if (!found[kIgnoredPixel] || std::count(found.begin(), found.begin() + kIgnoredPixel, true) > 1) return;
  log::shared_warning(
      "{}: the pixels of {} examined training masks have at most one class, or the value that is ignored "
      "(data.masks.ignore_index); if that value marks a class, write the masks with values from 0 to {}",
      path, count, train.classes() - 1);
}

}  // namespace

bool SharedSamples::are_remarkable() const {
  constexpr std::int64_t kNatural = 2;  // times the rate at which training samples repeat
  return 1000 * shared > looked_at && (!few_values || shared > kNatural * repeated);
}

SharedSamples shared_samples(const Dataset& train, const Dataset& test) {
  constexpr std::int64_t kFewBytes = 64;
  const ImageShape shape = train.image_shape();
  std::unordered_map<std::uint64_t, std::int64_t> known;  // content hash to the first training sample
  SharedSamples found{.few_values = shape.type != DType::u8 || shape.bytes() <= kFewBytes};
  std::int64_t trained = 0, repeated = 0;
  for_each_hash(train, [&](std::int64_t index, std::uint64_t hash) {
    ++trained;
    if (!known.emplace(hash, index).second) ++repeated;
  });
  for_each_hash(test, [&](std::int64_t index, std::uint64_t hash) {
    ++found.looked_at;
    const auto same = known.find(hash);
    if (same == known.end()) return;
    if (found.shared++ > 0) return;
    found.first_test = index;
    found.first_train = same->second;
  });
  if (trained > 0) found.repeated = repeated * found.looked_at / trained;
  return found;
}

void tell_of_sets(const Dataset& train, const Dataset& test, const std::string& path) {
  tell_of_classes(train, path);
  tell_of_black_images(train, path);
  tell_of_ignored_class(train, path);
  const SharedSamples found = shared_samples(train, test);
  if (!found.are_remarkable()) return;
  log::shared_warning(
      "{}: {} of {} examined test samples ({:.1f} %) are also training samples (the first: test sample {}, "
      "training sample {}); results on them do not show how the model performs on new samples",
      path, found.shared, found.looked_at,
      100 * static_cast<double>(found.shared) / static_cast<double>(found.looked_at), found.first_test,
      found.first_train);
}

}  // namespace lockstep
