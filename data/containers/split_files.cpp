// SPDX-License-Identifier: Apache-2.0
#include "data/containers/split_files.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <system_error>
#include <utility>

#include <fmt/format.h>

#include "core/error.h"
#include "core/log.h"
#include "core/text/text.h"
#include "core/text/units.h"
#include "data/formats/split_words.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

// The parts of a name such as "train-00003-of-01024.tfrecord".
struct NumberedName {
  std::string_view front;   // "train"
  std::string_view number;  // "00003"
  std::string_view count;   // "01024"
  std::string_view ending;  // ".tfrecord"
};

// Returns none if the name has no number of this form.
std::optional<NumberedName> numbered_name(std::string_view name) {
  const std::size_t of = name.rfind("-of-");
  if (of == std::string_view::npos) return std::nullopt;
  const std::string_view before = name.substr(0, of), rest = name.substr(of + 4);
  const std::size_t dash = before.rfind('-');
  if (dash == std::string_view::npos) return std::nullopt;
  constexpr std::string_view kDigits = "0123456789";
  const std::string_view number = before.substr(dash + 1);
  const std::string_view count = rest.substr(0, rest.find_first_not_of(kDigits));
  if (number.empty() || number.find_first_not_of(kDigits) != std::string_view::npos || count.empty())
    return std::nullopt;
  return NumberedName{
      .front = before.substr(0, dash), .number = number, .count = count, .ending = rest.substr(count.size())};
}

bool ends_as_shard(std::string_view name) {
  const std::optional<NumberedName> numbered = numbered_name(name);
  return numbered && numbered->ending.empty();
}

// Warns if fewer shards exist than their names count, and if two sets of shards differ only in their number.
void warn_of_shards(const fs::path& folder, const std::vector<fs::path>& files) {
  struct Shards {
    std::string front;
    std::size_t count = 0;
    std::set<std::string> found;  // numbers
  };
  std::map<std::string, Shards> sets;  // by name, with * as the number
  for (const fs::path& path : files) {
    const std::string name = path.filename().string();
    const std::optional<NumberedName> numbered = numbered_name(name);
    if (!numbered) continue;
    Shards& shards = sets[fmt::format("{}-*-of-{}", numbered->front, numbered->count)];
    shards.front = numbered->front;
    shards.count = number_from<std::size_t>(numbered->count).value_or(0);
    shards.found.emplace(numbered->number);
  }
  std::map<std::string, std::string> known;  // the first set of each front
  for (const auto& [name, shards] : sets) {
    const auto [first, is_new] = known.emplace(shards.front, name);
    if (!is_new)
      log::shared_warning("{}: {} and {} are both read; if they hold the same samples, remove one of them",
                          folder.string(), first->second, name);
    if (shards.found.size() >= shards.count) continue;
    log::shared_warning("{}: {} of the {} shards exist; copy the missing files there to use all samples",
                        (folder / name).string(), shards.found.size(), shards.count);
  }
}

// Where the last mark of the names begins ("cells.human_train.h5" has two ".h"); npos: nowhere.
std::size_t place_of_mark(const std::string& name, const SplitNames& names) {
  return lower_case(name).rfind(names.mark);
}

// The name without the endings of copies, unfinished files and files about another file. It lists endings,
// because the name of a shard may have any other text after the mark.
std::string_view without_side_endings(std::string_view name) {
  constexpr std::string_view kEndings[] = {".bak",   ".backup", ".orig", ".old",     ".save",       ".swp",
                                           ".tmp",   ".temp",   ".part", ".partial", ".crdownload", ".idx",
                                           ".index", ".json",   ".md5",  ".sha1",    ".sha256",     ".dvc"};
  for (;;) {
    const std::size_t dot = name.rfind('.');
    if (name.ends_with('~') || name.ends_with('#')) {  // copies of editors
      name.remove_suffix(1);
    } else if (dot != std::string_view::npos &&
               std::ranges::count(kEndings, lower_case(name.substr(dot))) > 0) {
      name = name.substr(0, dot);
    } else {
      return name;
    }
  }
}

// "train.csv" for "train (1).csv" and "train(1).csv", names of a second download; "" for other names.
std::string name_of_first_download(std::string_view name) {
  const std::size_t begin = name.rfind('('), end = name.rfind(')');
  if (begin == std::string_view::npos || end == std::string_view::npos || end < begin) return {};
  if (!number_from<std::size_t>(name.substr(begin + 1, end - begin - 1))) return {};
  return fmt::format("{}{}", trimmed(name.substr(0, begin)), name.substr(end + 1));
}

// Files with the mark in their names, or of shards; and the names of those that are skipped.
struct MarkedFiles {
  std::vector<fs::path> used;
  std::vector<std::string> skipped;

  MarkedFiles(const fs::path& folder, const SplitNames& names) {
    std::vector<fs::path> found;
    std::error_code error;
    fs::directory_iterator entry(folder, error);
    for (; !error && entry != fs::directory_iterator(); entry.increment(error)) {
      const std::string name = entry->path().filename().string();
      if (name.starts_with('.') || name.find(kIndexSuffix) != std::string::npos ||
          name.find(kUnpackedSuffix) != std::string::npos)
        continue;
      if (place_of_mark(name, names) == std::string::npos && !(names.shard_suffices && ends_as_shard(name)))
        continue;
      const std::string_view of_samples = without_side_endings(name);
      if (!names.endings.empty() &&
          std::ranges::count(names.endings, lower_case(fs::path(of_samples).extension().string())) == 0)
        continue;
      if (of_samples.size() < name.size()) {
        skipped.push_back(name);
      } else {
        found.push_back(entry->path());
      }
    }
    if (error) throw IoError(fmt::format("{}: cannot be read: {}", folder.string(), error.message()));
    std::ranges::sort(found);
    const auto exists = [&](const fs::path& path) {
      return std::binary_search(found.begin(), found.end(), path);
    };
    for (const fs::path& path : found) {
      const std::string name = path.filename().string(), first = name_of_first_download(name);
      // "train.tar.gz" beside "train.tar" holds the same samples.
      const bool is_packed_copy =
          lower_case(path.extension().string()) == ".gz" && exists(fs::path(path).replace_extension());
      if (is_packed_copy || (!first.empty() && exists(path.parent_path() / first))) {
        skipped.push_back(name);
      } else {
        used.push_back(path);
      }
    }
    std::ranges::sort(skipped);
  }
};

}  // namespace

std::vector<fs::path> split_files(const DatasetOptions& options, Split split, const SplitNames& names,
                                  const LacksLabels& lacks_labels) {
  const fs::path folder = options.path;
  const auto front_of = [&](const fs::path& path) {
    const std::string name = path.filename().string();
    return name.substr(0, place_of_mark(name, names));
  };
  const MarkedFiles all(folder, names);
  for (const fs::path& path : all.used) {
    if (names_both_splits(front_of(path), options.test_split)) {
      throw DataError(fmt::format(
          "{}: the name contains words of the training split and of another split, so its samples "
          "would be in both; rename the file, or move it out of the folder",
          path.string()));
    }
  }
  if (split == Split::train && !all.skipped.empty()) {
    log::info("{}: skipped copies and other files that are not samples: {} (rename a file to use it)",
              folder.string(), few_of(all.skipped));
  }
  std::vector<std::vector<fs::path>> found;
  for (const std::vector<std::string>& words : split_words(split, options.test_split)) {
    std::vector<fs::path> files;
    for (const fs::path& path : all.used)
      if (has_word(front_of(path), words)) files.push_back(path);
    if (!files.empty()) found.push_back(std::move(files));
  }
  if (found.empty()) {
    throw IoError(fmt::format(
        "{}: no files with {} samples{}; expected {}{}", folder.string(),
        split == Split::train ? "training" : "test",
        all.skipped.empty() ? "" : fmt::format(" (skipped: {})", few_of(all.skipped)), names.expected,
        split == Split::train ? ""
                              : "; set data.test_split to another word, or data.validation_share to test "
                                "with a part of the training samples"));
  }
  if (found.size() > 1 && options.test_split == "auto") {
    const std::string first = found[0].front().filename().string();
    const std::string second = found[1].front().filename().string();
    if (lacks_labels && lacks_labels(found[0]) && !lacks_labels(found[1])) {
      log_test_split(folder.string(), second, first, "labels");
      found.erase(found.begin());
    } else {
      log_test_split(folder.string(), first, second);
    }
  }
  warn_of_shards(folder, found.front());
  return found.front();
}

std::string earlier_copies(const fs::path& packed, const fs::path& current) {
  const std::string begin = packed.filename().string() + '.';
  const auto is_hexadecimal = [](std::string_view text) {
    return number_from<std::uint64_t>(text, 16).has_value();
  };
  std::vector<std::string> names;
  std::size_t bytes = 0;
  std::error_code error, unknown;
  fs::directory_iterator entry(packed.parent_path() / ".", error);
  for (; !error && entry != fs::directory_iterator(); entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    if (!name.starts_with(begin) || !name.ends_with(kUnpackedSuffix) || name == current.filename().string())
      continue;
    // unpacked_file() puts the packed file's size and modification time between them.
    std::string_view state = std::string_view(name).substr(begin.size());
    state.remove_suffix(std::min(state.size(), kUnpackedSuffix.size()));
    const std::vector<std::string_view> parts = split_text(state, '-');
    if (parts.size() != 2 || !std::ranges::all_of(parts, is_hexadecimal)) continue;
    if (!entry->is_regular_file(unknown)) continue;
    const std::uintmax_t size = entry->file_size(unknown);
    if (!unknown) bytes += static_cast<std::size_t>(size);
    names.push_back(name);
  }
  if (names.empty()) return {};
  std::ranges::sort(names);
  return fmt::format("; earlier copies remain ({}, {}): {}; delete them once no training reads them",
                     counted(names.size(), "file"), in_units(bytes), few_of(names));
}

void log_test_split(const std::string& path, const std::string& used, const std::string& other,
                    std::string_view lacking) {
  if (lacking.empty()) {
    log::info("{}: {} is used for testing, not {} (data.test_split sets this)", path, used, other);
  } else {
    log::shared_warning("{}: {} has no {}; {} is used for testing instead (data.test_split sets this)", path,
                        other, lacking, used);
  }
}

}  // namespace lockstep
