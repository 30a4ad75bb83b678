// SPDX-License-Identifier: Apache-2.0
#include "launch/train/checkpoint/shard.h"

#include <bit>
#include <span>
#include <string_view>
#include <vector>

#include "core/error.h"
#include "core/files/safetensors.h"
#include "core/text/text.h"
#include "kernels/backend.h"
#include "launch/train/checkpoint/plain_file.h"
#include "launch/train/watch/content_hash.h"
#include "models/network_state.h"

namespace lockstep {
namespace {

// A prefix of the name in a file keeps equal names in two scopes apart.
constexpr std::string_view kShardedPrefix = "sharded:";
constexpr std::string_view kInteger = "i64 ", kDouble = "f64 ";

std::string name_in_file(const std::string& name, StateScope scope) {
  return scope == StateScope::sharded ? std::string(kShardedPrefix) + name : name;
}

// scope: the file's, which a prefix of the name overrides.
std::pair<std::string, StateScope> name_in_state(const std::string& name, StateScope scope) {
  if (!name.starts_with(kShardedPrefix)) return {name, scope};
  return {name.substr(kShardedPrefix.size()), StateScope::sharded};
}

std::string stored_number(const std::variant<std::int64_t, double>& value) {
  if (const auto* whole = std::get_if<std::int64_t>(&value)) return fmt::format("{}{}", kInteger, *whole);
  return fmt::format("{}{:016x}", kDouble, std::bit_cast<std::uint64_t>(std::get<double>(value)));
}

std::variant<std::int64_t, double> number_of(std::string_view text, const std::filesystem::path& path) {
  if (text.starts_with(kInteger))
    if (const auto whole = number_from<std::int64_t>(text.substr(kInteger.size()))) return *whole;
  if (text.starts_with(kDouble))
    if (const auto bits = number_from<std::uint64_t>(text.substr(kDouble.size()), 16))
      return std::bit_cast<double>(*bits);
  throw DataError(fmt::format("{}: a value in the metadata is not a number", path.string()));
}

bool has_padding(const Layout& layout) { return layout.physical_elements() != layout.shape().elements(); }

}  // namespace

void StateSnapshotTaker::take(const std::function<void(StateVisitor&)>& show) {
  for (Part* part : {&shared_, &own_}) {
    part->visited = 0;
    part->copy.values.clear();
  }
  hashes_.clear();
  show(*this);
  for (Part* part : {&shared_, &own_}) part->copy.tensors.resize(part->visited);
}

void StateSnapshotTaker::arrange() {
  std::vector<float> scratch;
  for (Part* part : {&shared_, &own_}) {
    for (std::size_t i = 0; i < part->visited; ++i) {
      if (!part->layouts[i]) continue;
      std::vector<float>& values = part->copy.tensors[i].values;
      scratch.assign(values.begin(), values.end());
      make_plain(*part->layouts[i], scratch, values);
      part->layouts[i].reset();
    }
  }
}

std::uint64_t StateSnapshotTaker::bytes() const {
  std::uint64_t bytes = 0;
  for (const Part* part : {&shared_, &own_})
    for (const StateCopy::Tensor& tensor : part->copy.tensors) bytes += tensor.values.size() * sizeof(float);
  return bytes;
}

std::vector<TensorHash> StateSnapshotTaker::shared_hashes() const {
  if (shared_mode_ != Shared::takes) return hashes_;
  std::vector<TensorHash> hashes;
  for (const StateCopy::Tensor& tensor : shared_.copy.tensors)
    hashes.push_back({tensor.name, hash_of_values(tensor.values)});
  return hashes;
}

void StateSnapshotTaker::read(const StateTensor& tensor, std::vector<float>& values) {
  values.resize(static_cast<std::size_t>(tensor.layout.shape().elements()));
  if (has_padding(tensor.layout)) {
    read_plain(backend_for(stream_.device()), stream_, tensor, values);
  } else {
    stream_.copy(values.data(), tensor.value, values.size() * sizeof(float));
    stream_.synchronize();
  }
}

void StateSnapshotTaker::tensor(const StateTensor& tensor, StateScope scope) {
  if (scope == StateScope::replicated && shared_mode_ != Shared::takes) {
    if (shared_mode_ == Shared::ignores) return;
    std::span<const float> values(tensor.value, static_cast<std::size_t>(tensor.layout.shape().elements()));
    if (!is_host_memory(stream_.device()) || has_padding(tensor.layout)) {
      read(tensor, hashed_);
      values = hashed_;
    }
    hashes_.push_back({tensor.name, hash_of_values(values)});
    return;
  }
  Part& part = scope == StateScope::replicated ? shared_ : own_;
  std::vector<StateCopy::Tensor>& tensors = part.copy.tensors;
  if (part.visited == tensors.size()) tensors.emplace_back();
  StateCopy::Tensor& piece = tensors[part.visited++];
  piece.name = tensor.name;
  piece.scope = scope;
  piece.shape = tensor.layout.shape();
  read(tensor, piece.values);
  part.layouts.resize(tensors.size());
  if (!tensor.layout.is_plain() && !has_padding(tensor.layout))
    part.layouts[part.visited - 1] = tensor.layout;
}

void StateSnapshotTaker::value(const std::string& name, StateScope scope, StateValue value) {
  if (scope == StateScope::replicated && shared_mode_ != Shared::takes) return;
  Part& part = scope == StateScope::replicated ? shared_ : own_;
  std::visit([&](const auto* number) { part.copy.values.push_back({name, scope, *number}); }, value);
}

ShardFile write_shard(const std::filesystem::path& folder, const std::string& name, const StateCopy& state) {
  std::vector<NamedTensor> tensors;
  SafetensorsOptions options{.links = Links::replace};
  for (const StateCopy::Tensor& piece : state.tensors) {
    // write_safetensors() only reads the data.
    tensors.push_back({name_in_file(piece.name, piece.scope),
                       {.data = const_cast<float*>(piece.values.data()), .shape = piece.shape}});
  }
  for (const StateCopy::Value& piece : state.values)
    options.metadata[name_in_file(piece.name, piece.scope)] = stored_number(piece.value);
  ShardFile file{.name = name};
  ContentHash hash;
  options.tap = [&](const void* data, std::size_t bytes) {
    hash.add(data, bytes);
    file.bytes += bytes;
  };
  write_safetensors(folder / name, tensors, options);
  file.xxh3 = hash.hex();
  if (hash_of_file(folder / name) != file.xxh3)
    throw IoError(fmt::format("{}: reading the file back gives another hash than was written; check the disk",
                              (folder / name).string()));
  return file;
}

StateCopy read_shard(const std::filesystem::path& folder, const ShardFile& expected) {
  const std::filesystem::path path = folder / expected.name;
  if (const std::uint64_t bytes = plain_file_bytes(path); bytes != expected.bytes) {
    throw DataError(
        fmt::format("{}: has {} bytes, the manifest says {}", path.string(), bytes, expected.bytes));
  }
  if (hash_of_file(path) != expected.xxh3)
    throw DataError(fmt::format("{}: is damaged: its hash differs from the manifest's", path.string()));
  SafetensorsReader reader(path);
  const StateScope scope = expected.name == shared_shard() ? StateScope::replicated : StateScope::per_rank;
  StateCopy state;
  for (const SafetensorsEntry& entry : reader.entries()) {
    if (entry.dtype != DType::f32)
      throw DataError(fmt::format("{}: \"{}\" must be F32", path.string(), entry.name));
    auto [name, of] = name_in_state(entry.name, scope);
    StateCopy::Tensor& piece = state.tensors.emplace_back();
    piece.name = std::move(name);
    piece.scope = of;
    piece.shape = entry.shape;
    piece.values.resize(static_cast<std::size_t>(entry.shape.elements()));
    reader.read(entry, std::as_writable_bytes(std::span(piece.values)));
  }
  for (const auto& [key, text] : reader.metadata()) {
    auto [name, of] = name_in_state(key, scope);
    state.values.push_back({std::move(name), of, number_of(text, path)});
  }
  return state;
}

}  // namespace lockstep
