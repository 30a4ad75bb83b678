// SPDX-License-Identifier: Apache-2.0
#include "data/containers/split_files.h"

#include <algorithm>
#include <string>
#include <system_error>

#include "core/error.h"

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

std::vector<fs::path> split_files(const fs::path& folder, Split split, const SplitNames& names) {
  std::vector<fs::path> all;
  std::error_code error;
  fs::directory_iterator entry(folder, error);
  for (; !error && entry != fs::directory_iterator(); entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    if (name.starts_with('.') || name.find(kIndexSuffix) != std::string::npos) continue;
    if (name.find(names.mark) != std::string::npos || (names.shard_suffices && ends_as_shard(name)))
      all.push_back(entry->path());
  }
  if (error) throw IoError(fmt::format("{}: cannot be read: {}", folder.string(), error.message()));
  std::ranges::sort(all);
  const auto with = [&](std::string_view word) {
    std::vector<fs::path> found;
    for (const fs::path& path : all) {
      const std::string name = path.filename().string();
      if (name.substr(0, name.find(names.mark)).find(word) != std::string::npos) found.push_back(path);
    }
    return found;
  };
  std::vector<fs::path> found = with(split == Split::train ? "train" : "test");
  if (found.empty() && split == Split::test) found = with("val");
  if (found.empty()) {
    throw IoError(fmt::format("{}: no files with {} images; expected are {}", folder.string(),
                              split == Split::train ? "training" : "test", names.expected));
  }
  return found;
}

}  // namespace lockstep
