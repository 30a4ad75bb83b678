// SPDX-License-Identifier: Apache-2.0
#include "data/containers/tfrecord.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <fmt/ranges.h>

#include "core/error.h"
#include "core/files/crc32c.h"
#include "core/log.h"
#include "core/system/printable.h"
#include "data/containers/image_index.h"
#include "data/containers/split_files.h"
#include "data/containers/stored_images.h"
#include "data/formats/readable_file.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

// Iterates over the fields of a protocol buffers message; supports what tf.Example uses. Views refer to the
// constructor's text.
class ProtoFields {
 public:
  explicit ProtoFields(std::string_view text) : rest_(text) {}

  // Returns false at the end or at a malformed field; sound() distinguishes them.
  bool next() {
    std::uint64_t tag = 0;
    if (rest_.empty() || !read_varint(tag)) return false;
    number_ = tag >> 3;
    switch (tag & 7) {
      case 0:
        text_ = {};
        return read_varint(value_);
      case 1:
        return take(8);
      case 2: {
        std::uint64_t length = 0;
        return read_varint(length) && take(length);
      }
      case 5:
        return take(4);
      default:
        return sound_ = false;
    }
  }
  bool sound() const { return sound_; }
  std::uint64_t number() const { return number_; }
  std::string_view text() const { return text_; }  // of a length-delimited or fixed-size field
  std::uint64_t value() const { return value_; }   // of a varint field

  // Also reads the next packed number.
  bool read_varint(std::uint64_t& value) {
    value = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      if (rest_.empty()) return sound_ = false;
      const auto byte = static_cast<unsigned char>(rest_.front());
      rest_.remove_prefix(1);
      value |= std::uint64_t{byte & 0x7fu} << shift;
      if (byte < 0x80) return true;
    }
    return sound_ = false;
  }

 private:
  bool take(std::uint64_t length) {
    if (length > rest_.size()) return sound_ = false;
    text_ = rest_.substr(0, length);
    rest_.remove_prefix(length);
    return true;
  }

  std::string_view rest_;
  bool sound_ = true;
  std::uint64_t number_ = 0;
  std::string_view text_;
  std::uint64_t value_ = 0;
};

// The first length-delimited field with that number.
std::optional<std::string_view> field_of(std::string_view message, std::uint64_t number) {
  ProtoFields fields(message);
  while (fields.next())
    if (fields.number() == number && fields.text().data() != nullptr) return fields.text();
  return std::nullopt;
}

constexpr std::uint64_t kBytesList = 1, kInt64List = 3;  // field numbers of Feature

// A list of byte strings.
struct BytesList {
  std::string_view first;
  std::int64_t count = 0;
};

BytesList strings_in(std::string_view bytes_list) {
  BytesList strings;
  ProtoFields fields(bytes_list);
  while (fields.next())
    if (fields.number() == 1 && fields.text().data() != nullptr && strings.count++ == 0)
      strings.first = fields.text();
  return strings;
}

// A list of whole numbers.
struct Int64List {
  std::int64_t first = 0, count = 0;

  void add(std::uint64_t value) {
    if (count++ == 0) first = static_cast<std::int64_t>(value);
  }
};

// The numbers may be packed or not.
Int64List numbers_in(std::string_view int64_list) {
  Int64List numbers;
  ProtoFields fields(int64_list);
  while (fields.next()) {
    if (fields.number() != 1) continue;
    if (fields.text().data() == nullptr) {
      numbers.add(fields.value());
      continue;
    }
    ProtoFields packed(fields.text());
    for (std::uint64_t value = 0; packed.read_varint(value);) numbers.add(value);
  }
  return numbers;
}

struct Example {
  BytesList images;
  Int64List labels;
  std::string_view image_key, label_key;  // their features
  std::vector<std::string_view> keys;     // of all features
};

// The feature names: those of the options, or, in this order, those of ImageNet's scripts, of
// tensorflow_datasets, and of Kaggle.
struct FeatureNames {
  std::vector<std::string_view> image, label;

  explicit FeatureNames(const TfRecordOptions& options)
      : image{"image/encoded", "image"}, label{"image/class/label", "label", "class"} {
    if (options.image != "auto") image = {options.image};
    if (options.label != "auto") label = {options.label};
  }
  std::string text(const std::vector<std::string_view>& names) const {
    return fmt::format("\"{}\"", fmt::join(names, "\" or \""));
  }
};

// Returns none if the text is not a tf.Example.
std::optional<Example> parse_example(std::string_view text, const FeatureNames& names) {
  Example example;
  std::size_t image_rank = names.image.size(), label_rank = names.label.size();  // of the found names
  const auto rank_in = [](const std::vector<std::string_view>& wanted, std::string_view key) {
    return static_cast<std::size_t>(std::ranges::find(wanted, key) - wanted.begin());
  };
  ProtoFields messages(text);
  while (messages.next()) {
    if (messages.number() != 1) continue;
    ProtoFields features(messages.text());
    while (features.next()) {
      if (features.number() != 1) continue;
      const auto key = field_of(features.text(), 1), value = field_of(features.text(), 2);
      if (!key || !value) continue;
      example.keys.push_back(*key);
      if (const std::size_t rank = rank_in(names.image, *key); rank < image_rank) {
        const auto list = field_of(*value, kBytesList);
        const BytesList images = list ? strings_in(*list) : BytesList();
        if (images.count > 0) example.images = images, example.image_key = *key, image_rank = rank;
      }
      if (const std::size_t rank = rank_in(names.label, *key); rank < label_rank) {
        const auto list = field_of(*value, kInt64List);
        const Int64List labels = list ? numbers_in(*list) : Int64List();
        if (labels.count > 0) example.labels = labels, example.label_key = *key, label_rank = rank;
      }
    }
    if (!features.sound()) return std::nullopt;
  }
  if (!messages.sound()) return std::nullopt;
  return example;
}

constexpr std::uint64_t kFrame = sizeof(std::uint64_t) + sizeof(std::uint32_t);

class TfRecordIndexer {
 public:
  TfRecordIndexer(const ReadableFile& file, const FeatureNames& names) : file_(file), names_(names) {}

  std::vector<StoredImage> images() {
    std::vector<StoredImage> images;
    std::uint64_t at = 0;
    while (at < file_.bytes()) {
      images.push_back(read_record(at));
      at += kFrame + record_.size() + sizeof(std::uint32_t);
    }
    return images;
  }

 private:
  StoredImage read_record(std::uint64_t at) {
    char frame[kFrame];
    std::uint64_t length = 0;
    std::uint32_t crc = 0;
    if (file_.bytes() - at < kFrame) fail(at, "the file ends within a record");
    file_.read(at, frame, kFrame);
    std::memcpy(&length, frame, sizeof(length));
    std::memcpy(&crc, frame + sizeof(length), sizeof(crc));
    if (masked_crc32c({frame, sizeof(length)}) != crc)
      fail(at, at == 0 ? "not a TFRecord file, or compressed by a program other than gzip (unpack it)"
                       : "the length of a record is damaged");
    if (length > file_.bytes() - at - kFrame || file_.bytes() - at - kFrame - length < sizeof(crc))
      fail(at, "the file ends within a record");
    if (length > static_cast<std::uint64_t>(kMostImageBytes))
      fail(at, fmt::format("a record has {} bytes; the limit is {}", length, kMostImageBytes));
    record_.resize(static_cast<std::size_t>(length));
    file_.read(at + kFrame, record_.data(), record_.size());
    file_.read(at + kFrame + length, &crc, sizeof(crc));
    if (masked_crc32c(record_) != crc) fail(at, "a record is damaged: its checksum is wrong");
    return image_in(at);
  }

  StoredImage image_in(std::uint64_t at) const {
    const std::optional<Example> example = parse_example(record_, names_);
    if (!example) fail(at, "a record is not a tf.Example");
    if (example->images.count == 0)
      fail(at, fmt::format("a tf.Example has no feature {} with bytes; {}", names_.text(names_.image),
                           features_of(*example, "data.tfrecord.image")));
    if (example->images.count > 1)
      fail(at,
           fmt::format("the feature \"{}\" has {} byte strings, expected one image; {}", example->image_key,
                       example->images.count, features_of(*example, "data.tfrecord.image")));
    if (example->labels.count == 0)
      fail<UnlabelledError>(
          at, fmt::format("a tf.Example has no feature {} with a whole number; {}", names_.text(names_.label),
                          features_of(*example, "data.tfrecord.label")));
    if (example->labels.count > 1)
      fail(at, fmt::format("the feature \"{}\" has {} numbers, expected the number of one class; {}",
                           example->label_key, example->labels.count,
                           features_of(*example, "data.tfrecord.label")));
    const std::int64_t label = example->labels.first;
    if (label < 0 || label >= kMostLabels) {
      const std::string wrong = fmt::format("label {}: allowed are 0 to {}", label, kMostLabels - 1);
      if (label < 0) fail<UnlabelledError>(at, wrong);  // test files without labels often have -1
      fail(at, wrong);
    }
    const std::string_view image = example->images.first;
    return {.offset = at + kFrame + static_cast<std::uint64_t>(image.data() - record_.data()),
            .bytes = static_cast<std::uint32_t>(image.size()),
            .crc = crc32c(image),
            .label = static_cast<std::int32_t>(label),
            .has_crc = 1};
  }

  static std::string features_of(const Example& example, std::string_view key) {
    if (example.keys.empty()) return "it has no features";
    return fmt::format("its features are {}; set {} to the right one",
                       printable(fmt::format("{}", fmt::join(example.keys, ", "))), key);
  }

  template <typename E = DataError>
  [[noreturn]] void fail(std::uint64_t at, const std::string& what) const {
    throw E(fmt::format("{}: at byte {}: {}", file_.name(), at, what));
  }

  const ReadableFile& file_;
  const FeatureNames& names_;
  std::string record_;
};

std::vector<StoredImage> index_of_records(const fs::path& path, const TfRecordOptions& options) {
  const ReadableFile file(path);
  // An index is valid only for the same feature names.
  const std::uint32_t asked = crc32c(fmt::format("{}\n{}", options.image, options.label));
  if (std::optional<std::vector<StoredImage>> known = read_index(file, asked)) return std::move(*known);
  log::info("{}: reading the whole file to index its images", path.string());
  const FeatureNames names(options);
  std::vector<StoredImage> images = TfRecordIndexer(file, names).images();
  write_index(file, asked, images);
  return images;
}

}  // namespace

std::unique_ptr<Dataset> open_tfrecord(const DatasetOptions& options, Split split) {
  const SplitNames names{.mark = ".tfrec",
                         .shard_suffices = true,
                         .expected =
                             "train*.tfrecord* (or .tfrec) and test*.tfrecord* (or validation*), or "
                             "train-00000-of-00010 and so on"};
  const auto index = [&](const fs::path& path, Split) { return index_of_records(path, options.tfrecord); };
  return open_container(options, split, {.names = names, .index = index});
}

}  // namespace lockstep
