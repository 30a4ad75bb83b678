// SPDX-License-Identifier: Apache-2.0
#include "data/image_names.h"

#include <algorithm>
#include <functional>
#include <map>
#include <string_view>
#include <system_error>
#include <utility>

#include <fmt/ranges.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

#include "core/error.h"
#include "core/log.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

constexpr const char* kExpected =
    "data.path must name a folder that holds train/CLASS/*.jpg and test/CLASS/*.jpg (or .png; or val/ in "
    "place "
    "of test/)";

// In lower case, with its dot; "" where there is none.
std::string suffix_of(const fs::path& name) {
  std::string suffix = name.extension().string();
  for (char& c : suffix)
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  return suffix;
}

bool is_read(std::string_view suffix) { return suffix == ".jpg" || suffix == ".jpeg" || suffix == ".png"; }

bool is_other_image(std::string_view suffix) {
  constexpr std::string_view kOthers[] = {".avif", ".bmp", ".gif", ".heic", ".jp2",  ".jpe", ".jxl",
                                          ".pgm",  ".ppm", ".tga", ".tif",  ".tiff", ".webp"};
  return std::ranges::count(kOthers, suffix) > 0;
}

// Images that are left out, by how they end: nobody shall train on half of the images and not know it.
using LeftOut = std::map<std::string, std::int64_t>;

void tell(const LeftOut& left_out, const fs::path& folder) {
  if (left_out.empty()) return;
  std::vector<std::string> counts;
  for (const auto& [suffix, count] : left_out) counts.push_back(fmt::format("{} {}", count, suffix));
  log::shared_warning(
      "{}: images other than .jpg, .jpeg and .png are left out ({}); convert them to have them read",
      folder.string(), fmt::join(counts, ", "));
}

// Entries' names, sorted. What an entry is comes with its name from most file systems, without a look at the
// file; a link that leads nowhere counts as a file, so that reading it fails.
std::vector<std::string> sorted_names(const fs::path& folder, bool folders,
                                      const std::function<bool(const fs::path& name)>& wanted) {
  std::vector<std::string> names;
  std::error_code error;
  fs::directory_iterator entry(folder, error);
  for (; !error && entry != fs::directory_iterator(); entry.increment(error)) {
    const fs::path name = entry->path().filename();
    std::error_code unknown;
    if (wanted(name) && entry->is_directory(unknown) == folders) names.push_back(name.string());
  }
  if (error) throw IoError(fmt::format("{}: cannot be read: {}", folder.string(), error.message()));
  std::sort(names.begin(), names.end());
  return names;
}

std::vector<std::string> folders_in(const fs::path& folder) {
  return sorted_names(folder, true, [](const fs::path&) { return true; });
}

std::vector<std::string> images_in(const fs::path& folder, LeftOut& left_out) {
  return sorted_names(folder, false, [&](const fs::path& name) {
    const std::string suffix = suffix_of(name);
    if (is_other_image(suffix)) ++left_out[suffix];
    return is_read(suffix);
  });
}

void require_folder(const fs::path& folder) {
  std::error_code error;
  if (fs::is_directory(folder, error)) return;
  throw IoError(
      fmt::format("{}: {}; {}", folder.string(), error ? error.message() : "not a folder", kExpected));
}

fs::path split_folder(const fs::path& folder, Split split) {
  require_folder(folder);
  require_folder(folder / "train");
  if (split == Split::train) return folder / "train";
  for (const char* name : {"test", "val"}) {
    std::error_code error;
    if (fs::is_directory(folder / name, error)) return folder / name;
  }
  throw IoError(fmt::format("{}: holds neither test/ nor val/; {}", folder.string(), kExpected));
}

// An empty one would be a class that is never seen, left by a mistake in preparing the images.
std::vector<std::string> training_images(const fs::path& class_folder, LeftOut& left_out) {
  std::vector<std::string> names = images_in(class_folder, left_out);
  if (names.empty()) {
    throw DataError(
        fmt::format("{}: no .jpg, .jpeg or .png files in this folder of a class (folders within it are not "
                    "searched); {}",
                    class_folder.string(), kExpected));
  }
  return names;
}

}  // namespace

bool is_image_name(const fs::path& name) { return is_read(suffix_of(name)); }

ImageNames::ImageNames(const fs::path& folder, Split split) : folder_(split_folder(folder, split)) {
  const fs::path train = folder / "train";
  classes_ = folders_in(train);
  if (classes_.empty())
    throw DataError(fmt::format("{}: no folders of classes; {}", train.string(), kExpected));
  LeftOut left_out;
  if (split == Split::train) {
    for (const std::string& name : classes_) add_class(training_images(train / name, left_out));
    tell(left_out, folder_);
    first_of_training_ = path(0);
  } else {
    add_test_images();
    const fs::path first = train / classes_[0];
    first_of_training_ = (first / training_images(first, left_out).front()).string();
  }
  names_.shrink_to_fit();
  ends_.shrink_to_fit();
}

void ImageNames::add_test_images() {
  LeftOut left_out;
  const std::vector<std::string> found = folders_in(folder_);
  for (const std::string& name : found) {
    if (!std::binary_search(classes_.begin(), classes_.end(), name)) {
      throw DataError(fmt::format("{}: a class that train/ has no folder of; the two must have the same",
                                  (folder_ / name).string()));
    }
  }
  for (const std::string& name : classes_) {
    const bool there = std::binary_search(found.begin(), found.end(), name);
    add_class(there ? images_in(folder_ / name, left_out) : std::vector<std::string>());
  }
  if (size() == 0) {
    throw DataError(fmt::format("{}: no .jpg, .jpeg or .png files in its folders of classes; {}",
                                folder_.string(), kExpected));
  }
  tell(left_out, folder_);
}

void ImageNames::add_class(const std::vector<std::string>& names) {
  for (const std::string& name : names) {
    names_ += name;
    ends_.push_back(names_.size());
  }
  class_ends_.push_back(size());
}

std::vector<std::int64_t> ImageNames::class_counts() const {
  std::vector<std::int64_t> counts;
  std::int64_t begin = 0;
  for (const std::int64_t end : class_ends_) counts.push_back(end - std::exchange(begin, end));
  return counts;
}

std::int32_t ImageNames::label(std::int64_t index) const {
  return static_cast<std::int32_t>(std::upper_bound(class_ends_.begin(), class_ends_.end(), index) -
                                   class_ends_.begin());
}

std::string ImageNames::path(std::int64_t index) const {
  const auto at = static_cast<std::size_t>(index);
  const std::size_t begin = at == 0 ? 0 : ends_[at - 1];
  return fmt::format("{}/{}/{}", folder_.native(), classes_[static_cast<std::size_t>(label(index))],
                     std::string_view(names_).substr(begin, ends_[at] - begin));
}

std::uint64_t ImageNames::hash() const {
  std::uint64_t hash = 0;
  for (const std::string& name : classes_) hash = XXH3_64bits_withSeed(name.data(), name.size(), hash);
  hash = XXH3_64bits_withSeed(names_.data(), names_.size(), hash);
  hash = XXH3_64bits_withSeed(ends_.data(), sizeof(std::size_t) * ends_.size(), hash);
  return XXH3_64bits_withSeed(class_ends_.data(), sizeof(std::int64_t) * class_ends_.size(), hash);
}

std::size_t ImageNames::memory_bytes() const {
  std::size_t bytes = names_.capacity() + sizeof(std::size_t) * ends_.capacity() +
                      sizeof(std::int64_t) * class_ends_.capacity();
  for (const std::string& name : classes_) bytes += sizeof(name) + name.capacity();
  return bytes;
}

}  // namespace lockstep
