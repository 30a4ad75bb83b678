// SPDX-License-Identifier: Apache-2.0
#include "data/containers/webdataset.h"

#include <algorithm>
#include <charconv>
#include <cstring>
#include <optional>
#include <string>
#include <utility>

#include "core/error.h"
#include "core/log.h"
#include "core/text/text.h"
#include "data/containers/split_files.h"
#include "data/containers/stored_images.h"
#include "data/formats/image_names.h"
#include "data/formats/readable_file.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kBlock = 512;
constexpr std::uint64_t kMostText = 1 << 20;  // bytes of a long name, an extended header or a label

struct TarHeader {
  char name[100], mode[8], owner[8], group[8], size[12], time[12], checksum[8];
  char type;
  char linked[100], magic[6], version[2], owner_name[32], group_name[32], device[16], prefix[155], rest[12];
};
static_assert(sizeof(TarHeader) == kBlock);

std::string_view text_in(std::span<const char> field) {
  const auto end = std::ranges::find(field, '\0');
  return {field.data(), static_cast<std::size_t>(end - field.begin())};
}

bool all_zero(const TarHeader& header) {
  const auto* bytes = reinterpret_cast<const char*>(&header);
  return std::all_of(bytes, bytes + kBlock, [](char c) { return c == 0; });
}

// Octal with surrounding blanks, or GNU's binary format for larger numbers. Returns none for anything else.
std::optional<std::uint64_t> number_in(std::span<const char> field) {
  if ((static_cast<unsigned char>(field[0]) & 0x80) != 0) {
    if (static_cast<unsigned char>(field[0]) != 0x80) return std::nullopt;  // negative, or beyond 64 bits
    std::uint64_t value = 0;
    for (const char c : field.subspan(1)) {
      if (value >> 55 != 0) return std::nullopt;
      value = value << 8 | static_cast<unsigned char>(c);
    }
    return value;
  }
  return number_from<std::uint64_t>(trimmed(text_in(field)), 8);
}

// The sum of all bytes, with the checksum field counted as blanks.
std::uint64_t checksum_of(const TarHeader& header) {
  TarHeader blank = header;
  std::ranges::fill(blank.checksum, ' ');
  const auto* bytes = reinterpret_cast<const unsigned char*>(&blank);
  std::uint64_t sum = 0;
  for (std::size_t i = 0; i < kBlock; ++i) sum += bytes[i];
  return sum;
}

// A member's path, split at the first dot of the file name.
struct MemberName {
  std::string key;
  std::string ending;  // in lower case, without the dot
};
MemberName parts_of(const std::string& path) {
  const std::size_t slash = path.rfind('/');
  const std::size_t dot = path.find('.', slash == std::string::npos ? 0 : slash + 1);
  if (dot == std::string::npos) return {.key = path, .ending = ""};
  return {.key = path.substr(0, dot), .ending = lower_case(path.substr(dot + 1))};
}

bool ends_as_image(std::string_view ending) { return ending == "jpg" || ending == "jpeg" || ending == "png"; }

// "5.jpg" of "photo 3.5.jpg": no ending of an image or a label, but probably meant as one.
bool is_meant_as_part(std::string_view ending) {
  const std::size_t dot = ending.rfind('.');
  if (dot == std::string_view::npos) return false;
  return ends_as_image(ending.substr(dot + 1)) || ending.substr(dot + 1) == "cls";
}

// The kinds of warnings that were already logged; each is logged once.
struct TarWarnings {
  bool several_images = false;
  bool dots = false;
  bool links = false;
  bool no_end = false;
};

// Reads a tar file member by member.
class TarIndexer {
 public:
  TarIndexer(const fs::path& path, TarWarnings& warned) : path_(path), file_(path), warned_(warned) {}

  std::vector<StoredImage> images() {
    std::uint64_t at = 0;
    bool ended = false;  // after the mark of an archive's end, which another archive may follow
    while (at + kBlock <= file_.bytes()) {
      TarHeader header;
      file_.read(at, &header, kBlock);
      if (all_zero(header)) {
        ended = true;
        finish_sample();
        key_.reset();
        at += kBlock;
        continue;
      }
      if (number_in(header.checksum) != checksum_of(header)) {
        if (ended) break;
        fail(at, at == 0 ? "not a tar file, or a compressed one (unpack it)" : "a member is damaged");
      }
      ended = false;
      std::uint64_t size = next_size_.value_or(number_in(header.size).value_or(~std::uint64_t{0}));
      const std::uint64_t data = at + kBlock;
      if (size > file_.bytes() - data) fail(at, "a member is longer than the rest of the file");
      take(header, data, size);
      at = data + (size + kBlock - 1) / kBlock * kBlock;
    }
    if (!ended && (at == 0 || at < file_.bytes())) fail(at, "the file ends within a member");
    if (!ended && !std::exchange(warned_.no_end, true))
      log::shared_warning(
          "{}: the file lacks the mark of an archive's end; if it was cut off, samples are missing",
          path_.string());
    finish_sample();
    return std::move(images_);
  }

 private:
  void take(const TarHeader& header, std::uint64_t data, std::uint64_t size) {
    switch (header.type) {
      case 'L':  // GNU: the name of the next member
        next_name_ = text_at(data, size);
        next_name_->resize(next_name_->find_last_not_of('\0') + 1);
        return;
      case 'K':  // GNU: the target of the next member, which is a link; its name may come before or after it
        return;
      case 'x':  // pax: the name and the size of the next member
        take_extended(text_at(data, size), data);
        return;
      case '0':
      case '\0':
        take_file(next_name_ ? *next_name_ : name_of(header), data, size);
        break;
      case '1':
      case '2':
        warn_of_link(next_name_ ? *next_name_ : name_of(header));
        break;
      default:  // folders, global headers
        break;
    }
    next_name_.reset();
    next_size_.reset();
  }

  static std::string name_of(const TarHeader& header) {
    const std::string name(text_in(header.name));
    const bool has_prefix = std::memcmp(header.magic, "ustar\0", 6) == 0 && header.prefix[0] != '\0';
    return has_prefix ? fmt::format("{}/{}", text_in(header.prefix), name) : name;
  }

  // Lines of "length key=value\n".
  void take_extended(const std::string& text, std::uint64_t at) {
    std::string_view rest = text;
    while (!rest.empty()) {
      std::size_t length = 0;
      const auto [end, error] = std::from_chars(rest.data(), rest.data() + rest.size(), length);
      const auto digits = static_cast<std::size_t>(end - rest.data());
      if (error != std::errc() || length > rest.size() || length < digits + 2 || rest[length - 1] != '\n')
        fail(at, "an extended header is damaged");
      const std::string_view line = rest.substr(digits + 1, length - digits - 2);
      if (line.starts_with("path=")) next_name_ = std::string(line.substr(5));
      if (line.starts_with("size=")) {
        std::uint64_t size = 0;
        std::from_chars(line.data() + 5, line.data() + line.size(), size);
        next_size_ = size;
      }
      rest.remove_prefix(length);
    }
  }

  void take_file(const std::string& path, std::uint64_t data, std::uint64_t size) {
    // macOS puts attributes of a file before it, as "._0001.jpg".
    if (is_of_a_system(path.substr(path.rfind('/') + 1))) return;
    const MemberName name = parts_of(path);
    if (name.key != key_) {
      finish_sample();
      key_ = name.key;
      begin_ = data - kBlock;
    }
    if (ends_as_image(name.ending)) {
      if (size > static_cast<std::uint64_t>(kMostImageBytes))
        fail(data, fmt::format("{} has {} bytes; the limit for an image is {}", path, size, kMostImageBytes));
      if (!image_)
        image_ = StoredImage{.offset = data, .bytes = static_cast<std::uint32_t>(size)};
      else if (!std::exchange(warned_.several_images, true))
        log::shared_warning("{}: sample {} has several images; the first image of each sample is used",
                            path_.string(), name.key);
    } else if (name.ending == "cls") {
      if (label_)
        fail(data, fmt::format("sample {} has several labels; give each sample a different name", name.key));
      label_ = label_in(text_at(data, size), path, data);
    } else if (is_meant_as_part(name.ending)) {
      dotted_ = path;
    }
    has_parts_ = has_parts_ || name.ending != "";
  }

  // A tar file holds no bytes for a link.
  void warn_of_link(const std::string& path) {
    const std::string ending = parts_of(path).ending;
    if ((!ends_as_image(ending) && ending != "cls") || std::exchange(warned_.links, true)) return;
    log::shared_warning(
        "{}: {} is a link, and links are not read; write the tar file with --dereference --hard-dereference",
        path_.string(), path);
  }

  std::int32_t label_in(const std::string& text, const std::string& path, std::uint64_t at) const {
    const std::string_view digits = trimmed(text, " \r\n\t");
    const auto label = number_from<std::int32_t>(digits);
    if (!label)
      fail(at, fmt::format("{}: \"{}\" is not a label; expected a whole number", path, digits.substr(0, 40)));
    return *label;
  }

  void finish_sample() {
    if (key_ && has_parts_ && (image_ || label_)) {
      if (!image_) {
        fail(begin_,
             fmt::format("sample {} has no image (.jpg, .png){}", *key_,
                         dotted_.empty()
                             ? ""
                             : "; " + dotted_ + " has several dots in its name and is not used: rename it"));
      }
      if (!label_) fail<UnlabelledError>(begin_, fmt::format("sample {} has no label (.cls)", *key_));
      image_->label = *label_;
      images_.push_back(*image_);
    } else if (!dotted_.empty() && !std::exchange(warned_.dots, true)) {
      log::shared_warning(
          "{}: {} is not used, because WebDataset takes all after the first dot of a name as its ending; "
          "rename the members of such samples to use them",
          path_.string(), dotted_);
    }
    image_.reset();
    label_.reset();
    dotted_.clear();
    has_parts_ = false;
  }

  std::string text_at(std::uint64_t at, std::uint64_t size) const {
    if (size > kMostText)
      fail(at, fmt::format("a name, header or label has {} bytes; the limit is {}", size, kMostText));
    std::string text(size, '\0');
    file_.read(at, text.data(), text.size());
    return text;
  }

  template <typename E = DataError>
  [[noreturn]] void fail(std::uint64_t at, const std::string& what) const {
    throw E(fmt::format("{}: at byte {}: {}", path_.string(), at, what));
  }

  fs::path path_;
  ReadableFile file_;
  TarWarnings& warned_;
  std::optional<std::string> next_name_;
  std::optional<std::uint64_t> next_size_;
  std::optional<std::string> key_;  // of the current sample
  std::uint64_t begin_ = 0;
  bool has_parts_ = false;
  std::string dotted_;  // a part whose name has too many dots for an image or a label
  std::optional<StoredImage> image_;
  std::optional<std::int32_t> label_;
  std::vector<StoredImage> images_;
};

}  // namespace

std::unique_ptr<Dataset> open_webdataset(const DatasetOptions& options, Split split) {
  const SplitNames names{.mark = ".tar", .expected = "train*.tar and test*.tar (or val*.tar)"};
  // Warnings about the other split's files are logged when that split is opened.
  TarWarnings warned, of_other{.several_images = true, .dots = true, .links = true, .no_end = true};
  const auto index = [&](const fs::path& path, Split of) {
    return TarIndexer(path, of == split ? warned : of_other).images();
  };
  return open_container(options, split, {.names = names, .index = index});
}

}  // namespace lockstep
