// SPDX-License-Identifier: Apache-2.0
#include "core/files/safetensors.h"

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <set>
#include <utility>

#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/files/atomic_file.h"
#include "core/system/printable.h"

namespace lockstep {
namespace {

static_assert(std::endian::native == std::endian::little, "safetensors data is little-endian");

constexpr std::uint64_t kPrefix = 8;  // the header's length
constexpr std::uint64_t kMaxHeader = 100'000'000;
constexpr std::size_t kMaxTensors = 1'000'000;
constexpr std::uint64_t kMaxBytes = std::uint64_t{1} << 62;  // of one tensor; no product overflows below it

struct FileType {
  const char* name;
  std::size_t bytes;
  std::optional<DType> dtype;
};
constexpr FileType kTypes[] = {{"F32", 4, DType::f32}, {"F16", 2, DType::f16}, {"BF16", 2, DType::bf16},
                               {"U8", 1, DType::u8},   {"I32", 4, DType::i32}, {"F64", 8, {}},
                               {"I64", 8, {}},         {"U64", 8, {}},         {"U32", 4, {}},
                               {"I16", 2, {}},         {"U16", 2, {}},         {"I8", 1, {}},
                               {"BOOL", 1, {}}};

const FileType* find_type(std::string_view name) {
  const auto* found = std::ranges::find(kTypes, name, &FileType::name);
  return found == std::end(kTypes) ? nullptr : found;
}

std::string file_name_of(DType dtype) {
  return std::ranges::find(kTypes, std::optional(dtype), &FileType::dtype)->name;
}

// Names are used in messages, in file names and by other programs.
bool sound_name(std::string_view name) {
  return !name.empty() && name != "__metadata__" && !has_control_characters(name);
}

// Collects the header's tensors while parsing and refuses what the format does not allow before memory grows
// with it. Levels: 1 the header, 2 a tensor (or __metadata__), 3 its shape or offsets.
class HeaderReader final : public nlohmann::json_sax<nlohmann::json> {
 public:
  std::vector<SafetensorsEntry> entries;
  std::map<std::string, std::string> metadata;
  std::string problem;

  bool start_object(std::size_t) override {
    if (++depth_ > 2) return refuse("unexpected object in the header");
    if (depth_ != 2) return true;
    if (!in_metadata()) {
      if (entries.size() == kMaxTensors) return refuse(fmt::format("more than {} tensors", kMaxTensors));
      entries.push_back({.name = name_});
      dims_.clear();
      offsets_.clear();
    }
    fields_.clear();
    return true;
  }
  bool end_object() override { return depth_-- != 2 || in_metadata() || finish_entry(); }
  bool key(std::string& key) override {
    if (depth_ == 1) {
      if (!sound_name(key) && key != "__metadata__")
        return refuse("a tensor name is empty or has control characters");
      name_ = key;
      return names_.insert(key).second || refuse("two tensors have the name \"" + key + "\"");
    }
    field_ = key;
    return fields_.insert(key).second || refuse("\"" + name_ + "\" has two fields \"" + key + "\"");
  }
  bool start_array(std::size_t) override {
    if (depth_ != 2 || in_metadata() || (field_ != "shape" && field_ != "data_offsets")) {
      return refuse("unexpected array in the header");
    }
    ++depth_;
    return true;
  }
  bool end_array() override { return --depth_ > 0; }
  bool string(std::string& text) override {
    if (depth_ != 2) return refuse("unexpected string in the header");
    if (in_metadata()) return metadata[field_] = text, true;
    if (field_ != "dtype") return refuse("unexpected string in the header");
    entries.back().dtype_name = text;
    return true;
  }
  bool number_unsigned(std::uint64_t number) override {
    if (depth_ != 3) return refuse("unexpected number in the header");
    std::vector<std::uint64_t>& list = field_ == "shape" ? dims_ : offsets_;
    if (list.size() > Shape::kMaxRank) return refuse("\"" + name_ + "\" has too many dimensions or offsets");
    list.push_back(number);
    return true;
  }
  bool number_integer(std::int64_t) override { return refuse("unexpected negative number in the header"); }
  bool number_float(double, const std::string&) override {
    return refuse("unexpected fraction in the header");
  }
  bool null() override { return refuse("unexpected null in the header"); }
  bool boolean(bool) override { return refuse("unexpected boolean in the header"); }
  bool binary(binary_t&) override { return refuse("unexpected binary data in the header"); }
  bool parse_error(std::size_t at, const std::string&, const nlohmann::json::exception&) override {
    return refuse(fmt::format("not JSON at byte {} of the header", at));
  }

 private:
  bool refuse(const std::string& what) {
    if (problem.empty()) problem = what;
    return false;
  }
  bool in_metadata() const { return name_ == "__metadata__"; }

  bool finish_entry() {
    SafetensorsEntry& entry = entries.back();
    const FileType* type = find_type(entry.dtype_name);
    if (type == nullptr)
      return refuse(fmt::format("\"{}\" has the unknown type \"{}\"", name_, entry.dtype_name));
    if (!fields_.contains("shape") || offsets_.size() != 2 || fields_.size() != 3) {
      return refuse(fmt::format("\"{}\" must have exactly dtype, shape and two data_offsets", name_));
    }
    std::uint64_t bytes = type->bytes;
    for (const std::uint64_t dim : dims_) {
      if (dim > kMaxBytes || (dim > 0 && bytes > kMaxBytes / dim))
        return refuse("\"" + name_ + "\" is too large");
      bytes *= dim;
    }
    if (dims_.size() > Shape::kMaxRank) {
      return refuse(fmt::format("\"{}\" has more than {} dimensions", name_, Shape::kMaxRank));
    }
    if (offsets_[1] < offsets_[0] || offsets_[1] - offsets_[0] != bytes) {
      return refuse(fmt::format("\"{}\" has {} bytes of data, its shape and type require {}", name_,
                                offsets_[1] - offsets_[0], bytes));
    }
    const std::vector<std::int64_t> dims(dims_.begin(), dims_.end());
    entry.shape = Shape(dims);
    entry.dtype = type->dtype;
    entry.begin = offsets_[0];
    entry.end = offsets_[1];
    return true;
  }

  int depth_ = 0;
  std::string name_;
  std::string field_;
  std::set<std::string> names_;
  std::set<std::string> fields_;
  std::vector<std::uint64_t> dims_;
  std::vector<std::uint64_t> offsets_;
};

[[noreturn]] void corrupt(const std::filesystem::path& path, std::uint64_t offset, const std::string& what) {
  throw DataError(fmt::format("{}: at byte {}: {}", path.string(), offset, what));
}

// Users often pass a file of torch.save (a zip archive, or a bare pickle): the message says how to convert
// it.
[[noreturn]] void refuse_other_format(const std::filesystem::path& path, std::uint64_t first_bytes) {
  constexpr std::uint64_t kZip = 0x04034b50;  // "PK\3\4"
  const bool pickle = (first_bytes & 0xff) == 0x80 && (first_bytes >> 8 & 0xff) <= 5;
  if ((first_bytes & 0xffffffff) != kZip && !pickle)
    corrupt(path, kPrefix, "not a safetensors file: expected a JSON object");
  const std::string target = std::filesystem::path(path).replace_extension("safetensors").string();
  throw DataError(fmt::format(
      "{0}: files of torch.save are not read, because opening one can run any program. Convert it with "
      "Python:\n"
      "  import torch; from safetensors.torch import save_file\n"
      "  save_file({{name: value.contiguous().clone() for name, value in torch.load(\"{0}\", "
      "map_location=\"cpu\").items()}}, "
      "\"{1}\")",
      path.string(), target));
}

// Tensors must tile the data section: no gap, no overlap, no bytes after the last tensor.
void check_tiling(const std::filesystem::path& path, std::vector<SafetensorsEntry> entries,
                  std::uint64_t data_offset, std::uint64_t data_bytes) {
  std::ranges::sort(entries, {}, [](const auto& entry) { return std::pair(entry.begin, entry.end); });
  std::uint64_t end = 0;
  for (const SafetensorsEntry& entry : entries) {
    if (entry.begin != end) {
      corrupt(
          path, data_offset + std::min(end, entry.begin),
          fmt::format("the data of \"{}\" begin at offset {}, expected {}", entry.name, entry.begin, end));
    }
    end = entry.end;
  }
  if (end != data_bytes) {
    corrupt(path, data_offset + std::min(end, data_bytes),
            fmt::format("the header describes {} bytes of data, but the file contains {}", end, data_bytes));
  }
}

std::string header_of(std::span<const NamedTensor> tensors,
                      const std::map<std::string, std::string>& metadata) {
  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  if (!metadata.empty()) header["__metadata__"] = metadata;
  std::uint64_t offset = 0;
  for (const NamedTensor& named : tensors) {
    CHECK(sound_name(named.name), "invalid tensor name \"{}\"", named.name);
    CHECK(!header.contains(named.name), "two tensors have the name {}", named.name);
    const auto dims = named.tensor.shape.dims();
    const std::uint64_t end = offset + named.tensor.bytes();
    header[named.name] = {{"dtype", file_name_of(named.tensor.dtype)},
                          {"shape", std::vector<std::int64_t>(dims.begin(), dims.end())},
                          {"data_offsets", {offset, end}}};
    offset = end;
  }
  std::string text;
  try {
    text = header.dump();
  } catch (const nlohmann::json::exception& error) {
    CHECK(false, "names and metadata must be UTF-8: {}", error.what());
  }
  text.resize((text.size() + 7) / 8 * 8, ' ');  // aligns the data section
  return text;
}

}  // namespace

SafetensorsReader::SafetensorsReader(const std::filesystem::path& path) : path_(path) {
  std::error_code error;
  const std::uint64_t file_bytes = std::filesystem::file_size(path, error);
  if (error) throw IoError(fmt::format("{}: cannot be read: {}", path.string(), error.message()));
  errno = 0;
  file_.open(path, std::ios::binary);
  if (!file_) throw IoError(fmt::format("{}: cannot be read: {}", path.string(), std::strerror(errno)));
  if (file_bytes < kPrefix)
    corrupt(path, 0, fmt::format("{} bytes are too few for a safetensors file", file_bytes));

  std::uint64_t header_bytes = 0;
  file_.read(reinterpret_cast<char*>(&header_bytes), kPrefix);
  if (file_bytes > kPrefix && file_.peek() != '{') refuse_other_format(path, header_bytes);
  if (header_bytes > kMaxHeader || header_bytes > file_bytes - kPrefix) {
    corrupt(
        path, 0,
        fmt::format("a header of {} bytes does not fit into a file of {} bytes", header_bytes, file_bytes));
  }
  std::string text(header_bytes, '\0');
  file_.read(text.data(), static_cast<std::streamsize>(header_bytes));
  if (!file_) throw IoError(fmt::format("{}: the header cannot be read", path.string()));
  // The parser treats a NUL as the end of its input and would ignore the rest.
  if (const std::size_t nul = text.find('\0'); nul != std::string::npos) {
    corrupt(path, kPrefix + nul, "the header contains a NUL byte");
  }

  HeaderReader reader;
  if (!nlohmann::json::sax_parse(text, &reader)) corrupt(path, kPrefix, reader.problem);
  data_offset_ = kPrefix + header_bytes;
  check_tiling(path, reader.entries, data_offset_, file_bytes - data_offset_);
  entries_ = std::move(reader.entries);
  metadata_ = std::move(reader.metadata);
}

const SafetensorsEntry* SafetensorsReader::find(std::string_view name) const {
  const auto found = std::ranges::find(entries_, name, &SafetensorsEntry::name);
  return found == entries_.end() ? nullptr : &*found;
}

void SafetensorsReader::read(const SafetensorsEntry& entry, std::span<std::byte> destination) {
  CHECK(destination.size() == entry.end - entry.begin, "the destination has {} bytes, but {} has {}",
        destination.size(), entry.name, entry.end - entry.begin);
  file_.clear();  // an earlier read may have failed
  file_.seekg(static_cast<std::streamoff>(data_offset_ + entry.begin));
  file_.read(reinterpret_cast<char*>(destination.data()), static_cast<std::streamsize>(destination.size()));
  if (!file_) throw IoError(fmt::format("{}: \"{}\" cannot be read", path_.string(), entry.name));
}

void write_safetensors(const std::filesystem::path& path, std::span<const NamedTensor> tensors,
                       const SafetensorsOptions& options) {
  const std::string header = header_of(tensors, options.metadata);
  AtomicFile file(path, options.links);
  const auto write = [&](const void* data, std::size_t bytes) {
    if (options.tap) options.tap(data, bytes);
    file.write(data, bytes);
  };
  const std::uint64_t header_bytes = header.size();
  write(&header_bytes, sizeof(header_bytes));
  write(header.data(), header.size());
  for (const NamedTensor& named : tensors) write(named.tensor.data, named.tensor.bytes());
  file.commit();
}

}  // namespace lockstep
