// SPDX-License-Identifier: Apache-2.0
#include "launch/train/checkpoint/other_ranks.h"

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <optional>
#include <sstream>
#include <string_view>
#include <utility>

#include "comm/agreement.h"
#include "core/error.h"
#include "core/log.h"
#include "core/text/text.h"
#include "launch/train/checkpoint/shard.h"

namespace lockstep {
namespace {

constexpr std::string_view kEpochPrefix = "epoch.";
constexpr std::int64_t kMostElements = std::int64_t{1} << 40;

// "conv1.weight.residual[256:512]"
struct PieceName {
  std::string base;
  std::optional<ElementRange> range;  // none: all elements
};

PieceName piece_name(const std::string& name) {
  const std::size_t open = name.rfind('['), colon = name.rfind(':');
  if (open == std::string::npos || !name.ends_with(']') || colon == std::string::npos || colon < open)
    return {name, std::nullopt};
  const auto begin = number_from<std::int64_t>(name.substr(open + 1, colon - open - 1));
  const auto end = number_from<std::int64_t>(name.substr(colon + 1, name.size() - colon - 2));
  if (!begin || !end || *begin < 0 || *begin > *end || *end > kMostElements) return {name, std::nullopt};
  return {name.substr(0, open), ElementRange{*begin, *end}};
}

// A count of steps (two numbers) is saved under the name of an element range, but is not a part of it.
bool is_count(const PieceName& name, std::int64_t elements) {
  return elements <= 2 && name.range && name.range->count() != elements;
}

bool has_shared_tensor(const StateCopy& shared, const StateCopy::Tensor& tensor) {
  return std::ranges::any_of(shared.tensors, [&](const StateCopy::Tensor& other) {
    return other.name == tensor.name && other.shape == tensor.shape;
  });
}

// Means of running statistics and similar tensors: sums over the saved ranks, divided at the end.
class Means {
 public:
  void add(const StateCopy::Tensor& tensor) {
    const StateCopy::Tensor& first = sums_.try_emplace(tensor.name, tensor).first->second;
    CHECK(first.shape == tensor.shape, "{} has different shapes on the saved ranks", tensor.name);
    std::vector<double>& sum = doubles_[tensor.name];
    sum.resize(tensor.values.size());
    for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += static_cast<double>(tensor.values[i]);
  }
  void append_to(std::int64_t ranks, std::vector<StateCopy::Tensor>& tensors) {
    for (auto& [name, tensor] : sums_) {
      const std::vector<double>& sum = doubles_[name];
      for (std::size_t i = 0; i < sum.size(); ++i)
        tensor.values[i] = static_cast<float>(sum[i] / static_cast<double>(ranks));
      tensors.push_back(std::move(tensor));
    }
  }

 private:
  std::map<std::string, StateCopy::Tensor> sums_;
  std::map<std::string, std::vector<double>> doubles_;
};

// Totals of the epoch so far: rank 0 adds them up (counts), the other ranks start from 0.
void merge_values(std::vector<StateCopy::Value>& merged, std::span<const StateCopy::Value> values,
                  bool counts) {
  for (const StateCopy::Value& value : values) {
    if (!value.name.starts_with(kEpochPrefix)) continue;
    auto found = std::ranges::find(merged, value.name, &StateCopy::Value::name);
    if (found == merged.end()) {
      merged.push_back({value.name, value.scope, value.value});
      found = merged.end() - 1;
      std::visit([](auto& number) { number = 0; }, found->value);
    }
    if (!counts) continue;
    if (found->value.index() != value.value.index())
      throw DataError(fmt::format("the saved ranks have numbers of different types for \"{}\"", value.name));
    std::visit([&]<typename T>(T& number) { number += std::get<T>(value.value); }, found->value);
  }
}

// How many ranks hold each element now, for pieces that are added up.
std::map<std::string, std::vector<std::int32_t>> holders_of(const MergedExchange& merged, Communicator& host,
                                                            std::span<const ExchangeState> mine) {
  std::string names;
  for (const ExchangeState& piece : mine)
    if (piece.on_other_ranks == OnOtherRanks::sum) names += piece.name + '\n';
  std::map<std::string, std::vector<std::int32_t>> holders;
  for (const std::string& text : gather_texts(host, names)) {
    std::istringstream lines(text);
    for (std::string line; std::getline(lines, line);) {
      const PieceName name = piece_name(line);
      const auto found = merged.find(name.base);
      if (found == merged.end()) continue;
      std::vector<std::int32_t>& count = holders[name.base];
      count.resize(found->second.sum.size());
      const auto size = static_cast<std::int64_t>(count.size());
      const ElementRange range = name.range.value_or(ElementRange{0, size});
      for (std::int64_t i = range.begin; i < std::min(range.end, size); ++i)
        ++count[static_cast<std::size_t>(i)];
    }
  }
  return holders;
}

// ".residual" of "conv1.weight.residual"
std::string kind_of(const std::string& base) {
  const std::size_t dot = base.rfind('.');
  return dot == std::string::npos ? base : base.substr(dot);
}

// A piece of the same kind of another parameter: counts are saved under the name of a rank's first one.
const MergedPiece* of_same_kind(const MergedExchange& merged, const std::string& base) {
  for (const auto& [name, piece] : merged)
    if (kind_of(name) == kind_of(base) && !piece.first.empty()) return &piece;
  return nullptr;
}

// Sum of the saved elements of these pieces.
double saved_total(const MergedExchange& merged,
                   const std::map<std::string, std::vector<std::int32_t>>& holders) {
  double total = 0;
  for (const auto& [name, count] : holders) {
    const std::vector<double>& sum = merged.at(name).sum;
    total = std::accumulate(sum.begin(), sum.end(), total);
  }
  return total;
}

// The sum of the files' sizes. It also limits the elements of a MergedExchange: an element of a parameter
// takes four bytes in a file, and an exchange has at most four tensors of a parameter's size.
std::uint64_t bytes_of_files(const Manifest& manifest) {
  std::uint64_t bytes = 0;
  for (const ShardFile& file : manifest.files) bytes += file.bytes;
  return bytes;
}

// The state in the file of a saved rank, without the tensors that have no shared one of their name and shape:
// these are merged.
StateCopy merge_rank(MergedExchange& merged, const StateCopy& shared, const std::filesystem::path& folder,
                     const Manifest& manifest, std::size_t file) {
  StateCopy own = read_shard(folder, manifest.files[file]);
  const auto others = std::stable_partition(own.tensors.begin(), own.tensors.end(), [&](const auto& tensor) {
    return has_shared_tensor(shared, tensor);
  });
  try {
    merge(merged, std::span(others, own.tensors.end()), bytes_of_files(manifest));
  } catch (const DataError& error) {
    throw DataError(fmt::format("{}: {}", (folder / manifest.files[file].name).string(), error.what()));
  }
  own.tensors.erase(others, own.tensors.end());
  return own;
}

}  // namespace

std::string base_of(const std::string& name) { return piece_name(name).base; }

ExchangeNames::ExchangeNames(std::span<const ExchangeState> mine, Communicator& host) {
  std::string names;
  for (const ExchangeState& piece : mine) {
    const std::string base = base_of(piece.name);
    names += (piece.on_other_ranks == OnOtherRanks::same ? kind_of(base) : base) + '\n';
  }
  for (const std::string& text : gather_texts(host, names)) {
    std::istringstream lines(text);
    for (std::string line; std::getline(lines, line);) names_.insert(line);
  }
}

bool ExchangeNames::contains(const std::string& base) const {
  return names_.contains(base) || names_.contains(kind_of(base));
}

void merge(MergedExchange& merged, std::span<const StateCopy::Tensor> pieces, std::uint64_t most_elements) {
  std::uint64_t all = 0;
  for (const auto& each : merged) all += each.second.sum.size();
  for (const StateCopy::Tensor& tensor : pieces) {
    const PieceName name = piece_name(tensor.name);
    MergedPiece& piece = merged[name.base];
    const auto elements = static_cast<std::int64_t>(tensor.values.size());
    const bool count = is_count(name, elements);
    if ((count || !name.range) && piece.first.empty()) piece.first = tensor.values;
    if (count) continue;
    const std::int64_t begin = name.range ? name.range->begin : 0;
    if (name.range && name.range->count() != elements)
      throw DataError(
          fmt::format("\"{}\" has {} elements, expected {}", tensor.name, elements, name.range->count()));
    if (const auto end = static_cast<std::size_t>(begin + elements); end > piece.sum.size()) {
      all += end - piece.sum.size();
      if (all > most_elements)
        throw DataError(
            fmt::format("\"{}\" is beyond the {} elements that a checkpoint of this size can have",
                        tensor.name, most_elements));
      piece.sum.resize(end);
    }
    for (std::int64_t i = 0; i < elements; ++i)
      piece.sum[static_cast<std::size_t>(begin + i)] +=
          static_cast<double>(tensor.values[static_cast<std::size_t>(i)]);
  }
}

MergedExchange merged_exchange(const std::filesystem::path& folder, const Manifest& manifest) {
  MergedExchange merged;
  const StateCopy shared = read_shard(folder, manifest.files.front());
  for (std::size_t file = 1; file < manifest.files.size(); ++file)
    merge_rank(merged, shared, folder, manifest, file);
  return merged;
}

RankState state_for(const std::filesystem::path& folder, const Manifest& manifest, int rank, int ranks) {
  RankState result{.state = read_shard(folder, manifest.files.front()), .exchange = {}};
  StateCopy& state = result.state;
  if (ranks == manifest.ranks) {
    StateCopy own = read_shard(folder, manifest.files[static_cast<std::size_t>(rank) + 1]);
    std::ranges::move(own.tensors, std::back_inserter(state.tensors));
    std::ranges::move(own.values, std::back_inserter(state.values));
    return result;
  }
  Means means;
  std::vector<StateCopy::Value> epoch;
  for (std::size_t file = 1; file < manifest.files.size(); ++file) {
    const StateCopy own = merge_rank(result.exchange, state, folder, manifest, file);
    for (const StateCopy::Tensor& tensor : own.tensors) means.add(tensor);
    merge_values(epoch, own.values, rank == 0);
  }
  means.append_to(manifest.ranks, state.tensors);
  std::ranges::move(epoch, std::back_inserter(state.values));
  return result;
}

std::vector<StateCopy::Tensor> deal(const MergedExchange& merged, std::span<const ExchangeState> mine,
                                    Communicator& host) {
  const auto holders = holders_of(merged, host, mine);
  std::vector<StateCopy::Tensor> dealt;
  double total = 0;
  run_agreed(host, [&] {
    for (const ExchangeState& piece : mine) {
      const PieceName name = piece_name(piece.name);
      const auto elements = static_cast<std::size_t>(piece.memory.shape.elements());
      const auto found = merged.find(name.base);
      StateCopy::Tensor tensor{
          .name = piece.name, .scope = piece.scope, .shape = piece.memory.shape, .values = {}};
      if (piece.on_other_ranks == OnOtherRanks::same) {
        const MergedPiece* of = found != merged.end() && !found->second.first.empty()
                                    ? &found->second
                                    : of_same_kind(merged, name.base);
        if (of == nullptr || of->first.size() != elements) continue;
        tensor.values = of->first;
        dealt.push_back(std::move(tensor));
        continue;
      }
      const auto begin = static_cast<std::size_t>(name.range ? name.range->begin : 0);
      if (found == merged.end() || begin + elements > found->second.sum.size()) continue;
      for (std::size_t i = begin; i < begin + elements; ++i) {
        const double part = found->second.sum[i] / holders.at(name.base)[i];
        tensor.values.push_back(static_cast<float>(part));
        total += static_cast<double>(tensor.values.back());
      }
      dealt.push_back(std::move(tensor));
    }
  });
  const std::vector<double> totals = gather_values(host, total);
  log::info("unsent gradients add up to {:.6g} in the checkpoint and to {:.6g} on {}",
            saved_total(merged, holders), std::accumulate(totals.begin(), totals.end(), 0.0),
            counted(host.size(), "rank"));
  return dealt;
}

}  // namespace lockstep
