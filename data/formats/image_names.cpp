// SPDX-License-Identifier: Apache-2.0
#include "data/formats/image_names.h"

#include <algorithm>
#include <fstream>
#include <map>
#include <string_view>
#include <system_error>
#include <utility>

#include <fmt/ranges.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

#include "core/error.h"
#include "core/log.h"
#include "core/text/text.h"
#include "data/containers/split_files.h"
#include "data/formats/split_words.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

constexpr const char* kExpected =
    "data.path must name a folder with train/CLASS/*.jpg and test/CLASS/*.jpg (or .png; or val/ instead of "
    "test/)";

using Names = std::vector<std::string>;

// The suffix in lower case, with its dot; "" if there is none.
std::string suffix_of(const fs::path& name) { return lower_case(name.extension().string()); }

bool is_read(std::string_view suffix) {
  constexpr std::string_view kRead[] = {".jfif", ".jpe", ".jpeg", ".jpg", ".png"};
  return std::ranges::count(kRead, suffix) > 0;
}

bool is_other_image(std::string_view suffix) {
  constexpr std::string_view kOthers[] = {".avif", ".bmp", ".gif", ".heic", ".heif", ".jp2", ".jxl",
                                          ".pgm",  ".ppm", ".tga", ".tif",  ".tiff", ".webp"};
  return std::ranges::count(kOthers, suffix) > 0;
}

bool begins_as_image(const fs::path& path) {
  std::error_code unknown;
  if (!fs::is_regular_file(path, unknown)) return false;  // opening a FIFO would wait for a writer
  constexpr std::string_view kJpeg = "\xff\xd8\xff", kPng = "\x89PNG\r\n\x1a\n";
  std::ifstream file(path, std::ios::binary);
  char begin[kPng.size()] = {};
  file.read(begin, sizeof(begin));
  const std::string_view read(begin, static_cast<std::size_t>(file.gcount()));
  return read.starts_with(kJpeg) || read.starts_with(kPng);
}

constexpr const char* kWithinClasses = "in folders within classes";  // of data.recursive = false
constexpr const char* kBesideClasses = "beside the class folders";

// Files of a split that are left out, counted by kind and logged in one line.
class LeftOut {
 public:
  void add_image(const std::string& kind) { ++images_[kind]; }
  // A file that is not read.
  void add_file(const std::string& suffix) {
    ++(is_other_image(suffix) ? images_[suffix] : others_[suffix.empty() ? "without a suffix" : suffix]);
  }
  void add_of_a_system(const std::string& name) { ++of_systems_[name.starts_with("._") ? "._*" : name]; }

  void tell(const fs::path& folder) const {
    Names kinds;
    for (const auto& [kind, count] : images_) kinds.push_back(fmt::format("{} {}", count, kind));
    for (const auto& [kind, count] : others_) kinds.push_back(fmt::format("{} {}", count, kind));
    for (const auto& [name, count] : of_systems_)
      kinds.push_back(count == 1 ? name : fmt::format("{} {}", count, name));
    constexpr std::size_t kNamedKinds = 8;
    if (kinds.size() > kNamedKinds) {
      const std::size_t more = kinds.size() - kNamedKinds;
      kinds.resize(kNamedKinds);
      kinds.push_back(fmt::format("and {} more kinds", more));
    }
    const std::string left_out = fmt::format("{}", fmt::join(kinds, ", "));
    if (!images_.empty()) {
      log::shared_warning(
          "{}: skipped files, some of which are images: {}. JPEG and PNG files are read (.jpg, .jpeg, .jpe, "
          ".jfif, .png, or without a suffix){}",
          folder.string(), left_out,
          images_.contains(kWithinClasses) ? ", also in folders within classes unless data.recursive = false"
                                           : "");
    } else if (!kinds.empty()) {
      log::info("{}: skipped files that are not images: {}", folder.string(), left_out);
    }
  }

 private:
  std::map<std::string, std::int64_t> images_, others_, of_systems_;
};

// Visits a folder's entries, except those of systems. Most file systems return an entry's type with its name,
// without a stat(); a broken link counts as a file, so that reading it fails.
template <typename Visit>
void visit_entries(const fs::path& folder, LeftOut& left_out, Visit visit) {
  std::error_code error;
  fs::directory_iterator entry(folder, error);
  for (; !error && entry != fs::directory_iterator(); entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    std::error_code unknown;
    if (is_of_a_system(name)) {
      left_out.add_of_a_system(name);
    } else {
      visit(name, entry->is_directory(unknown));
    }
  }
  if (error) throw IoError(fmt::format("{}: cannot be read: {}", folder.string(), error.message()));
}

Names folders_in(const fs::path& folder, LeftOut& left_out) {
  Names names;
  visit_entries(folder, left_out, [&](const std::string& name, bool is_folder) {
    if (is_folder) return names.push_back(name);
    const std::string suffix = suffix_of(name);
    if (is_read(suffix)) return left_out.add_image(kBesideClasses);
    left_out.add_file(suffix);
  });
  std::ranges::sort(names);
  return names;
}

// The images in a folder, such as that of a class, and its subfolders: paths relative to it, sorted.
class ImagesOfFolder {
 public:
  ImagesOfFolder(const fs::path& folder, bool recursive, LeftOut& left_out)
      : folder_(folder), recursive_(recursive), left_out_(left_out) {
    add("", 0);
    std::ranges::sort(names_);
  }
  Names names() && { return std::move(names_); }

 private:
  // below: the subfolder's path relative to the folder, ending with a slash, or "".
  void add(const std::string& below, int depth) {
    constexpr int kMostDepth = 32;  // links may form cycles
    if (depth > kMostDepth)
      throw DataError(fmt::format("{}/{}: more than {} levels of folders, or a cycle of links",
                                  folder_.string(), below, kMostDepth));
    visit_entries(folder_ / below, left_out_, [&](const std::string& name, bool is_folder) {
      if (is_folder) return add(below + name + "/", depth + 1);
      const std::string suffix = suffix_of(name);
      const bool is_image = is_read(suffix) || (suffix.empty() && begins_as_image(folder_ / below / name));
      if (is_image && (recursive_ || below.empty())) {
        names_.push_back(below + name);
      } else if (is_image) {
        left_out_.add_image(kWithinClasses);
      } else {
        left_out_.add_file(suffix);
      }
    });
  }

  const fs::path& folder_;
  bool recursive_;
  LeftOut& left_out_;
  Names names_;
};

Names images_in(const fs::path& folder, const DatasetOptions& options, LeftOut& left_out) {
  return ImagesOfFolder(folder, options.recursive, left_out).names();
}

void require_folder(const fs::path& folder) {
  std::error_code error;
  if (fs::is_directory(folder, error)) return;
  throw IoError(
      fmt::format("{}: {}; {}", folder.string(), error ? error.message() : "not a folder", kExpected));
}

// Throws for an empty class folder, which is probably a mistake in preparing the images.
Names training_images(const fs::path& class_folder, const DatasetOptions& options, LeftOut& left_out) {
  Names names = images_in(class_folder, options, left_out);
  if (names.empty())
    throw DataError(
        fmt::format("{}: the class folder has no JPEG or PNG files; {}", class_folder.string(), kExpected));
  return names;
}

// A candidate for the test split.
struct TestFolder {
  fs::path folder;
  Names unknown;            // class folders that train/ does not have
  bool has_images = false;  // of classes of train/

  TestFolder(const fs::path& path, const Names& classes, const DatasetOptions& options) : folder(path) {
    LeftOut not_told;
    Names known;
    for (const std::string& name : folders_in(folder, not_told))
      (std::ranges::binary_search(classes, name) ? known : unknown).push_back(name);
    has_images = std::ranges::any_of(
        known, [&](const std::string& name) { return !images_in(folder / name, options, not_told).empty(); });
  }
};

constexpr const char* kOtherWays =
    "set data.test_split to use another folder, or data.validation_share to test with a part of the training "
    "images";

fs::path test_folder(const fs::path& folder, const Names& classes, const DatasetOptions& options) {
  std::vector<TestFolder> found;
  Names names;
  for (const Names& group : split_words(Split::test, options.test_split)) {
    for (const std::string& name : group) {
      std::error_code error;
      if (fs::is_directory(folder / name, error) && std::ranges::count(names, name) == 0) {
        names.push_back(name);
        found.emplace_back(folder / name, classes, options);
      }
    }
  }
  if (found.empty() && options.test_split != "auto")
    throw IoError(fmt::format("{}: the folder {}, which data.test_split names, does not exist",
                              folder.string(), options.test_split));
  if (found.empty())
    throw IoError(
        fmt::format("{}: contains neither test/ nor val/; {}; {}", folder.string(), kExpected, kOtherWays));
  const auto usable = std::ranges::find_if(found, [](const TestFolder& each) { return each.has_images; });
  const TestFolder& taken = usable == found.end() ? found.front() : *usable;
  if (!taken.unknown.empty()) {
    throw DataError(
        fmt::format("{}: train/ has no folder for this class, but both must have the same classes; {}",
                    (taken.folder / taken.unknown.front()).string(), kOtherWays));
  }
  if (!taken.has_images) {
    throw DataError(fmt::format("{}: no JPEG or PNG files in folders of the classes of train/; {}; {}",
                                taken.folder.string(), kExpected, kOtherWays));
  }
  const std::string name = taken.folder.filename().string();
  if (usable != found.begin()) {
    log_test_split(folder.string(), name + "/", names.front() + "/", "images of the classes of train/");
  } else if (found.size() > 1) {
    log_test_split(folder.string(), name + "/", names[1] + "/");
  }
  return taken.folder;
}

Names some_of(const Names& all, std::size_t most) {
  Names some;
  for (const std::int64_t index : some_samples(std::ssize(all), static_cast<std::int64_t>(most)))
    some.push_back(all[static_cast<std::size_t>(index)]);
  return some;
}

// Returns the same for both splits.
Names some_training_images(const fs::path& train, const Names& classes, const DatasetOptions& options) {
  constexpr std::size_t kClasses = 32, kImages = 256;
  LeftOut not_told;
  Names paths;
  const Names looked_at = some_of(classes, kClasses);
  for (const std::string& name : looked_at) {
    for (const std::string& file :
         some_of(training_images(train / name, options, not_told), kImages / looked_at.size()))
      paths.push_back((train / name / file).string());
  }
  return paths;
}

}  // namespace

bool is_of_a_system(std::string_view name) {
  constexpr std::string_view kOfSystems[] = {"$RECYCLE.BIN", "@eaDir",    "System Volume Information",
                                             "Thumbs.db",    "__MACOSX",  "__pycache__",
                                             "desktop.ini",  "lost+found"};
  return name.starts_with('.') || std::ranges::count(kOfSystems, name) > 0;
}

std::vector<std::string> images_below(const fs::path& folder) {
  LeftOut left_out;
  Names paths;
  for (const std::string& name : ImagesOfFolder(folder, true, left_out).names())
    paths.push_back((folder / name).string());
  left_out.tell(folder);
  return paths;
}

bool is_image_name(const fs::path& name) {
  return is_read(suffix_of(name)) && !is_of_a_system(name.filename().string());
}

ImageNames::ImageNames(const DatasetOptions& options, Split split) {
  const fs::path folder = options.path, train = folder / "train";
  require_folder(folder);
  require_folder(train);
  LeftOut left_out, not_told;
  classes_ = folders_in(train, split == Split::train ? left_out : not_told);
  if (classes_.empty())
    throw DataError(fmt::format("{}: contains no class folders; {}", train.string(), kExpected));
  if (split == Split::train) {
    folder_ = train;
    for (const std::string& name : classes_) add_class(training_images(train / name, options, left_out));
  } else {
    folder_ = test_folder(folder, classes_, options);
    const Names found = folders_in(folder_, left_out);
    for (const std::string& name : classes_)
      add_class(std::ranges::binary_search(found, name) ? images_in(folder_ / name, options, left_out)
                                                        : Names());
  }
  left_out.tell(folder_);
  some_of_training_ = some_training_images(train, classes_, options);
  names_.shrink_to_fit();
  ends_.shrink_to_fit();
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

std::string ImageNames::path_in_split(std::int64_t index) const {
  const auto at = static_cast<std::size_t>(index);
  const std::size_t begin = at == 0 ? 0 : ends_[at - 1];
  return fmt::format("{}/{}", classes_[static_cast<std::size_t>(label(index))],
                     std::string_view(names_).substr(begin, ends_[at] - begin));
}

std::string ImageNames::path(std::int64_t index) const {
  return fmt::format("{}/{}", folder_.native(), path_in_split(index));
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
