// SPDX-License-Identifier: Apache-2.0
#include "data/containers/split_files.h"

#include <algorithm>
#include <string>
#include <system_error>
#include <utility>

#include "core/error.h"
#include "core/log.h"
#include "data/formats/split_words.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

bool all_digits(std::string_view text) {
  return !text.empty() && std::ranges::all_of(text, [](char c) { return c >= '0' && c <= '9'; });
}

// "-00003-of-01024"
bool ends_as_shard(std::string_view name) {
  const std::size_t of = name.rfind("-of-");
  if (of == std::string_view::npos || !all_digits(name.substr(of + 4))) return false;
  const std::string_view front = name.substr(0, of);
  const std::size_t dash = front.rfind('-');
  return dash != std::string_view::npos && all_digits(front.substr(dash + 1));
}

}  // namespace

std::vector<fs::path> split_files(const DatasetOptions& options, Split split, const SplitNames& names) {
  const fs::path folder = options.path;
  const auto front_of = [&](const fs::path& path) {
    const std::string name = path.filename().string();
    return name.substr(0, name.find(names.mark));
  };
  std::vector<fs::path> all;
  std::error_code error;
  fs::directory_iterator entry(folder, error);
  for (; !error && entry != fs::directory_iterator(); entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    if (name.starts_with('.') || name.find(kIndexSuffix) != std::string::npos ||
        name.find(kUnpackedSuffix) != std::string::npos)
      continue;
    if (name.find(names.mark) == std::string::npos && !(names.shard_suffices && ends_as_shard(name)))
      continue;
    if (names_both_splits(front_of(entry->path()))) {
      throw DataError(fmt::format(
          "{}: the name contains words of the training split and of another split, so its samples "
          "would be in both; rename the file, or move it out of the folder",
          entry->path().string()));
    }
    all.push_back(entry->path());
  }
  if (error) throw IoError(fmt::format("{}: cannot be read: {}", folder.string(), error.message()));
  std::ranges::sort(all);
  std::vector<std::vector<fs::path>> found;
  for (const std::vector<std::string>& words : split_words(split, options.test_split)) {
    std::vector<fs::path> files;
    for (const fs::path& path : all)
      if (has_word(front_of(path), words)) files.push_back(path);
    if (!files.empty()) found.push_back(std::move(files));
  }
  if (found.empty()) {
    throw IoError(fmt::format("{}: no files with {} samples; expected {}{}", folder.string(),
                              split == Split::train ? "training" : "test", names.expected,
                              split == Split::train
                                  ? ""
                                  : "; set data.test_split to another word, or data.validation_share to test "
                                    "with a part of the training samples"));
  }
  if (found.size() > 1 && options.test_split == "auto") {
    log::info("{}: {} is used for testing, not {} (data.test_split sets this)", folder.string(),
              found[0].front().filename().string(), found[1].front().filename().string());
  }
  return found.front();
}

}  // namespace lockstep
