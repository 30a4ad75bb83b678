// SPDX-License-Identifier: Apache-2.0
#include "data/hdf5/hdf5_arrays.h"

#include <algorithm>
#include <cstddef>
#include <optional>
#include <string_view>
#include <utility>

#include "data/formats/split_words.h"

namespace lockstep {
namespace {

bool has(const std::vector<std::string>& words, const std::string& word) {
  return std::find(words.begin(), words.end(), word) != words.end();
}

// A word of the split. needed: an array of unknown name must contain it; otherwise it may also have no word.
struct SplitWord {
  std::string text;
  bool needed = true;
};

// Rank of a name, 0 is best; none if it does not match. usual: names in order of preference.
std::optional<std::size_t> rank_of(const std::string& name, const std::vector<std::string>& usual,
                                   const ArrayRequest& request, const SplitWord& word) {
  std::vector<std::string> known = request.words, rest;
  known.insert(known.end(), request.others.begin(), request.others.end());
  bool is_wanted = false, is_of_split = false;
  for (const std::string& each : words_in(name, known)) {
    if (has(request.words, each)) {
      is_of_split = true;
      is_wanted = is_wanted || each == word.text;
    } else if (has(request.others, each)) {
      return std::nullopt;
    } else {
      rest.push_back(each);
    }
  }
  if (!is_wanted && (word.needed || is_of_split)) return std::nullopt;
  // "train_set_x", "data/train/x"
  while (rest.size() > 1 && (rest.front() == "set" || rest.front() == "data")) rest.erase(rest.begin());
  if (rest.size() > 1 && rest.back() == "set") rest.pop_back();
  const auto found = rest.size() == 1 ? std::find(usual.begin(), usual.end(), rest[0]) : usual.end();
  if (found == usual.end()) return std::nullopt;
  return (is_wanted ? 0 : usual.size()) + static_cast<std::size_t>(found - usual.begin());
}

// An array to find: by its name, or, if that is "auto", by its usual names in order of preference.
struct Wanted {
  std::string name;
  std::vector<std::string> usual;
  const char* key;  // that sets the name
};

// Finds the array that is named for the word of the split, or, for "auto", the one with the best rank. Throws
// Hdf5Error if two arrays fit equally well ("images_1", "images_2").
std::optional<ArrayPlace> place_of(const std::vector<Hdf5File>& files, const Wanted& wanted,
                                   const ArrayRequest& request, const SplitWord& word) {
  std::optional<std::size_t> best;
  ArrayPlace found{}, before{};
  bool twice = false;  // found and before have the same rank
  const auto offer = [&](hid_t file, const std::string& name, std::size_t rank) {
    if (best && rank > *best) return;
    twice = best == rank;
    before = std::exchange(found, {file, name});
    best = rank;
  };
  constexpr std::string_view kSplit = "{split}";
  std::string named = wanted.name;
  if (const std::size_t at = named.find(kSplit); at != std::string::npos)
    named.replace(at, kSplit.size(), word.text);
  for (const Hdf5File& file : files) {
    if (wanted.name != "auto") {
      if (H5Lexists(file.handle.id(), named.c_str(), H5P_DEFAULT) > 0) offer(file.handle.id(), named, 0);
      continue;
    }
    for (const std::string& name : file.arrays)
      if (const auto rank = rank_of(name, wanted.usual, request, word)) offer(file.handle.id(), name, *rank);
  }
  if (twice && before.file != found.file)
    throw Hdf5Error("two files have " + wanted.usual[0] + " (\"" + before.array + "\" and \"" + found.array +
                    "\"); only one file of images per split is allowed");
  if (twice)
    throw Hdf5Error("\"" + before.array + "\" and \"" + found.array + "\" may both be the " +
                    wanted.usual[0] + "; name one of them with " + wanted.key);
  if (!best) return std::nullopt;
  return found;
}

std::string describe_missing(const std::vector<Hdf5File>& files, const Wanted& wanted,
                             const ArrayRequest& request) {
  constexpr std::size_t kNamed = 20;
  std::string there;
  std::size_t count = 0;
  for (const Hdf5File& file : files)
    for (const std::string& name : file.arrays)
      if (count++ < kNamed) there += (there.empty() ? "" : ", ") + name;
  if (count > kNamed) there += " and " + std::to_string(count - kNamed) + " more";
  return "it has " + (there.empty() ? "no arrays" : "the arrays " + there) + "; " +
         (wanted.name == "auto"
              ? "none has a usual name (" + wanted.usual[0] + ", " + wanted.usual[1] + ", ...)" +
                    (request.shared ? ", combined with a word of the split" : "") + "; name the array with " +
                    wanted.key
              : std::string(wanted.key) + " = \"" + wanted.name +
                    "\" is not among them; {split} is replaced by a word of the split");
}

// The first word of the split with other images; -1: none.
std::int64_t word_of_others(const std::vector<Hdf5File>& files, const Wanted& images,
                            const ArrayRequest& request, const ArrayPlace& used) {
  for (std::size_t i = 0; i < request.words.size(); ++i) {
    try {
      const auto place = place_of(files, images, request, {.text = request.words[i]});
      if (!place || *place == used) continue;
    } catch (const Hdf5Error&) {  // several arrays
    }
    return static_cast<std::int64_t>(i);
  }
  return -1;
}

}  // namespace

SplitArrays arrays_of(const std::vector<Hdf5File>& files, const ArrayRequest& request) {
  const Wanted images{
      .name = request.images, .usual = {"images", "image", "x", "img", "data"}, .key = "data.hdf5.images"};
  const Wanted labels{.name = request.labels,
                      .usual = {"labels", "label", "y", "targets", "target"},
                      .key = "data.hdf5.labels"};
  std::optional<ArrayPlace> some_images, some_labels;
  for (const bool needed : {true, false}) {
    if (!needed && request.shared) break;
    for (std::size_t i = 0; i < request.words.size(); ++i) {
      const SplitWord word{.text = request.words[i], .needed = needed};
      const std::optional<ArrayPlace> found_images = place_of(files, images, request, word);
      const std::optional<ArrayPlace> found_labels = place_of(files, labels, request, word);
      if (found_images && found_labels)
        return {.images = *found_images,
                .labels = *found_labels,
                .word = static_cast<std::int64_t>(i),
                .other_word = request.shared ? word_of_others(files, images, request, *found_images) : -1};
      if (!some_images) some_images = found_images;
      if (!some_labels) some_labels = found_labels;
    }
  }
  if (!some_images)
    throw Hdf5Error(describe_missing(files, images, request) +
                    (request.shared ? "; if the file has no test samples, set data.validation_share" : ""));
  if (!some_labels) throw Hdf5NoLabels(describe_missing(files, labels, request));
  if (!request.shared) return {.images = *some_images, .labels = *some_labels};
  throw Hdf5Error(
      "\"" + some_images->array + "\" and \"" + some_labels->array +
      "\" have different words of the split; rename them so that the images and the labels of a split have "
      "the same word");
}

}  // namespace lockstep
