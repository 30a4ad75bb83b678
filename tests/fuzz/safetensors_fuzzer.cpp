// SPDX-License-Identifier: Apache-2.0
//
// A safetensors file: its header, its tensors, and the same file as a checkpoint shard with the correct hash.
#include <algorithm>
#include <cstring>
#include <utility>

#include "core/error.h"
#include "core/files/safetensors.h"
#include "launch/train/checkpoint/shard.h"
#include "launch/train/watch/content_hash.h"
#include "tests/fuzz/fuzz.h"

namespace lockstep::fuzz {
namespace {

void read_all(const std::filesystem::path& path, std::uint64_t file_bytes) {
  SafetensorsReader reader(path);
  std::vector<std::pair<std::uint64_t, std::uint64_t>> places;
  for (const SafetensorsEntry& entry : reader.entries()) {
    require(entry.begin <= entry.end && entry.end <= file_bytes, "a tensor must fit into its file");
    require(reader.find(entry.name) != nullptr, "a tensor must be found by its name");
    std::vector<std::byte> bytes(entry.end - entry.begin);
    reader.read(entry, bytes);
    places.emplace_back(entry.begin, entry.end);
  }
  std::ranges::sort(places);
  for (std::size_t i = 1; i < places.size(); ++i)
    require(places[i - 1].second <= places[i].first, "tensors must not overlap");
}

std::string file_of(std::string_view header, std::size_t data) {
  const std::uint64_t bytes = header.size();
  std::string file(sizeof(bytes), '\0');
  std::memcpy(file.data(), &bytes, sizeof(bytes));
  return file + std::string(header) + std::string(data, 'x');
}

}  // namespace

void try_input(std::string_view input) {
  const std::string name = shared_shard();
  const std::filesystem::path path = put(name, input);
  read_all(path, input.size());
  const StateCopy state = read_shard(folder(), {name, input.size(), hash_of(input)});
  std::uint64_t bytes = 0;
  for (const StateCopy::Tensor& tensor : state.tensors) {
    require(static_cast<std::int64_t>(tensor.values.size()) == tensor.shape.elements(),
            "the number of values must match the shape");
    bytes += 4 * tensor.values.size();
  }
  require(bytes < input.size(), "the state must not be larger than the file");
}

std::vector<std::string> seeds() {
  return {
      file_of("{}", 0), file_of(R"({"a":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]}})", 24),
      file_of(R"({"__metadata__":{"train.steps":"i64 -12","sharded:loss":"f64 3ff0000000000000"},)"
              R"("sharded:w":{"dtype":"F32","shape":[],"data_offsets":[0,4]},)"
              R"("b":{"dtype":"BF16","shape":[1,0],"data_offsets":[4,4]}})",
              4),
      file_of(
          R"({"\u001b[2J":{"dtype":"I64","shape":[9223372036854775807,4],"data_offsets":[0,18446744073709551615]}})",
          8),
      file_of(std::string(100, '['), 0)};
}

}  // namespace lockstep::fuzz
