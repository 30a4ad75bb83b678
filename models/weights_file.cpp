// SPDX-License-Identifier: Apache-2.0
#include "models/weights_file.h"

#include <algorithm>
#include <map>

#include <fmt/format.h>

#include "core/error.h"
#include "core/log.h"
#include "core/system/printable.h"
#include "core/text/text.h"

namespace lockstep {
namespace {

// Returns the common prefix of the network's tensors in the file: empty, or the attributes under which
// wrapping modules store the network ("module.", "_orig_mod.", "model.", a user's own). Of prefixes with the
// same count, the shortest wins, then the alphabetically first.
std::string wrapping(std::span<const SafetensorsEntry> entries, std::span<const StateTensor> wanted,
                     const std::filesystem::path& path) {
  std::map<std::string, std::size_t> counts;
  for (const SafetensorsEntry& entry : entries) {
    for (const StateTensor& tensor : wanted) {
      if (!entry.name.ends_with(tensor.name)) continue;
      const std::string prefix = entry.name.substr(0, entry.name.size() - tensor.name.size());
      if (prefix.empty() || prefix.ends_with('.')) ++counts[prefix];
    }
  }
  std::string best, second;
  std::size_t most = 0;
  for (const auto& [prefix, count] : counts) {
    if (count > most || (count == most && prefix.size() < best.size())) {
      second = count == most ? best : "";
      best = prefix;
      most = count;
    } else if (count == most) {
      second = prefix;
    }
  }
  if (most == wanted.size() && most > 0 && counts.contains(second) && second != best &&
      counts[second] == most) {
    log::shared_warning(
        "{}: contains the network more than once, as \"{}...\" and as \"{}...\"; the first is loaded",
        path.string(), best, second);
  }
  return best;
}

constexpr std::string_view kCounter = ".num_batches_tracked";  // of PyTorch's batch norm

bool is_read(const SafetensorsEntry& entry) {
  return entry.dtype == DType::f32 || entry.dtype == DType::f16 || entry.dtype == DType::bf16;
}

// In a resnet, a different kernel size means a different stem: 7 for "imagenet", 3 for "cifar".
std::string hint_of_stem(const Shape& theirs, const Shape& ours) {
  if (theirs.rank() != 4 || ours.rank() != 4 || theirs[2] == ours[2]) return "";
  return fmt::format("; the kernel sizes differ: if the file is of a resnet, set model.stem = \"{}\"",
                     theirs[2] > ours[2] ? "imagenet" : "cifar");
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

WeightsFile::WeightsFile(const std::filesystem::path& path, std::span<const StateTensor> wanted,
                         std::string_view unread)
    : path_(path), reader_(path), prefix_(wrapping(reader_.entries(), wanted, path)) {
  std::vector<std::string> ignored;
  for (const SafetensorsEntry& entry : reader_.entries()) {
    if (entry.name.starts_with(prefix_) &&
        std::ranges::find(wanted, name_of(entry), &StateTensor::name) != wanted.end())
      continue;
    if (is_of_network(entry) && (unread.empty() || !belongs_to(unread, name_of(entry))))
      throw DataError(
          fmt::format("{}: contains \"{}\", which this network does not have; set the keys in model as for "
                      "the file's network",
                      path.string(), entry.name));
    if (!entry.name.ends_with(kCounter)) ignored.push_back(entry.name);
  }
  if (ignored.empty()) return;
  log::info("{}: tensors that do not belong to the network are ignored: {}", path.string(),
            printable(few_of(ignored)));
}

// False for tensors outside the wrapped network, for scalars of other types ("n_averaged"), and for the names
// that training scripts use for optimizers and losses.
bool WeightsFile::is_of_network(const SafetensorsEntry& entry) const {
  constexpr std::string_view kOfTraining[] = {"criterion.", "ema.",       "loss.",     "loss_fn.",
                                              "optim.",     "optimizer.", "scheduler."};
  if (!entry.name.starts_with(prefix_) || entry.name.ends_with(kCounter)) return false;
  if (entry.shape.rank() == 0 && !is_read(entry)) return false;
  return std::ranges::none_of(kOfTraining,
                              [&](std::string_view word) { return name_of(entry).starts_with(word); });
}

const SafetensorsEntry& WeightsFile::matching(const StateTensor& tensor) const {
  const SafetensorsEntry* entry = reader_.find(prefix_ + tensor.name);
  if (entry == nullptr)
    throw DataError(fmt::format(
        "{}: the tensor \"{}\", which this network needs, is missing{}", path(), prefix_ + tensor.name,
        reader_.find(tensor.name) == nullptr || prefix_.empty()
            ? ""
            : fmt::format("; the file contains \"{}\", but most of its names begin with \"{}\"", tensor.name,
                          prefix_)));
  const Shape& ours = tensor.layout.shape();
  if (entry->shape != ours)
    throw DataError(fmt::format("{}: \"{}\" is {} {}, the network has F32 {}{}", path(), entry->name,
                                entry->dtype_name, to_string(entry->shape), to_string(ours),
                                hint_of_stem(entry->shape, ours)));
  if (!is_read(*entry))
    throw DataError(fmt::format(
        "{}: \"{}\" is {}, supported are F32, F16 and BF16; in PyTorch, tensor.float() converts it to F32",
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
      CHECK(entry.dtype == DType::f32, "{} has the type {}", entry.name, entry.dtype_name);
      return read_as<float>(reader_, entry);
  }
}

}  // namespace lockstep
