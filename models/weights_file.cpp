// SPDX-License-Identifier: Apache-2.0
#include "models/weights_file.h"

#include <algorithm>

#include "core/error.h"

namespace lockstep {
namespace {

// Attributes in which modules that wrap a network keep it: DistributedDataParallel, torch.compile, and
// classes of people's own.
constexpr std::string_view kWrappers[] = {"module.", "_orig_mod.", "model.", "backbone."};

std::string wrapping(std::span<const SafetensorsEntry> entries, std::span<const StateTensor> wanted) {
  std::string prefix;
  const auto wraps = [&](std::string_view wrapper) {
    const std::string longer = prefix + std::string(wrapper);
    const auto has_it = [&](const SafetensorsEntry& entry) { return entry.name.starts_with(longer); };
    const auto is_its_own = [&](const StateTensor& tensor) { return tensor.name.starts_with(wrapper); };
    return std::ranges::all_of(entries, has_it) && std::ranges::none_of(wanted, is_its_own);
  };
  while (!entries.empty()) {
    const auto* const wrapper = std::ranges::find_if(kWrappers, wraps);
    if (wrapper == std::end(kWrappers)) break;
    prefix += *wrapper;
  }
  return prefix;
}

bool is_read(const SafetensorsEntry& entry) {
  return entry.dtype == DType::f32 || entry.dtype == DType::f16 || entry.dtype == DType::bf16;
}

// Windows of other sizes are another stem.
std::string hint_of_stem(const Shape& theirs, const Shape& ours) {
  if (theirs.rank() != 4 || ours.rank() != 4 || theirs[2] == ours[2]) return "";
  return "; what the first layers of resnets look like depends on the images, torchvision's are those of "
         "model.stem = \"imagenet\"";
}

template <typename T>
std::vector<float> widened(std::span<const T> values) {
  std::vector<float> wide(values.size());
  std::ranges::transform(values, wide.begin(), [](T value) { return static_cast<float>(value); });
  return wide;
}

template <typename T>
std::vector<T> read_as(SafetensorsReader& reader, const SafetensorsEntry& entry) {
  std::vector<T> values(static_cast<std::size_t>(entry.shape.elements()));
  reader.read(entry, std::as_writable_bytes(std::span(values)));
  return values;
}

}  // namespace

WeightsFile::WeightsFile(const std::filesystem::path& path, std::span<const StateTensor> wanted)
    : path_(path), reader_(path), prefix_(wrapping(reader_.entries(), wanted)) {}

const SafetensorsEntry& WeightsFile::matching(const StateTensor& tensor) const {
  const SafetensorsEntry* entry = reader_.find(prefix_ + tensor.name);
  if (entry == nullptr)
    throw DataError(fmt::format("{}: lacks \"{}\", which this network needs", path(), tensor.name));
  const Shape& ours = tensor.layout.shape();
  if (entry->shape != ours)
    throw DataError(fmt::format("{}: \"{}\" is {} {}, the network has F32 {}{}", path(), entry->name,
                                entry->dtype_name, to_string(entry->shape), to_string(ours),
                                hint_of_stem(entry->shape, ours)));
  if (!is_read(*entry))
    throw DataError(
        fmt::format("{}: \"{}\" is {}: F32, F16 and BF16 are read; in PyTorch, tensor.float() makes it F32",
                    path(), entry->name, entry->dtype_name));
  return *entry;
}

std::vector<float> WeightsFile::read(const SafetensorsEntry& entry) {
  switch (*entry.dtype) {
    case DType::f16:
      return widened<Half>(read_as<Half>(reader_, entry));
    case DType::bf16:
      return widened<BFloat16>(read_as<BFloat16>(reader_, entry));
    default:
      CHECK(entry.dtype == DType::f32, "{} is {}", entry.name, entry.dtype_name);
      return read_as<float>(reader_, entry);
  }
}

}  // namespace lockstep
