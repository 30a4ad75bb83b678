// SPDX-License-Identifier: Apache-2.0
#include "models/network_state.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <optional>
#include <utility>

#include "core/error.h"
#include "models/weights_file.h"

namespace lockstep {
namespace {

Layout plain_of(const Layout& layout) { return {layout.shape(), layout.dtype()}; }

// Calls visit(plain, place) with the index of each element in plain memory and in memory of the layout. The
// latter is the sum of its row's offset and its column's; columns of padding come last.
template <typename Visit>
void for_each_element(const Layout& layout, Visit visit) {
  const MatrixView view = layout.matrix_view();
  const std::int64_t in_row = layout.shape().elements() / view.rows();
  std::vector<std::int64_t> columns;
  for (std::int64_t column = 0; column < in_row; ++column) columns.push_back(view.column_offset(column));
  std::size_t plain = 0;
  for (std::int64_t row = 0; row < view.rows(); ++row) {
    const std::int64_t begin = view.row_offset(row);
    for (const std::int64_t column : columns) visit(plain++, static_cast<std::size_t>(begin + column));
  }
}

// The tensors that a file of the network holds.
class SharedTensors final : public StateVisitor {
 public:
  explicit SharedTensors(Network& network) { network.visit_state(*this); }
  const std::vector<StateTensor>& tensors() const { return tensors_; }

  bool writes() const override { return false; }
  void tensor(const StateTensor& tensor, StateScope scope) override {
    if (scope == StateScope::replicated) tensors_.push_back(tensor);
  }
  void value(const std::string&, StateScope, StateValue) override {}

 private:
  std::vector<StateTensor> tensors_;
};

// A mismatch in the head's parameters may only mean that the file is for other classes: the message says how
// to load the rest.
const SafetensorsEntry& matching_entry(const WeightsFile& file, const StateTensor& tensor,
                                       const Network& network) {
  try {
    return file.matching(tensor);
  } catch (const DataError& error) {
    if (!belongs_to(network.head(), tensor.name)) throw;
    throw DataError(fmt::format(
        "{}; to load the file into a network for other classes, set model.reset_head = true, which "
        "initialises \"{}\" randomly",
        error.what(), network.head()));
  }
}

// The head's weight with its classes in the file, if the file differs from the network only in their number.
struct OtherClasses {
  std::string weight;
  std::int64_t in_file = 0;
  std::int64_t in_network = 0;
};
std::optional<OtherClasses> other_classes(const WeightsFile& file, std::span<const StateTensor> tensors,
                                          const std::string& head) {
  std::optional<OtherClasses> found;
  for (const StateTensor& tensor : tensors) {
    const SafetensorsEntry* entry = belongs_to(head, tensor.name) ? file.find(tensor.name) : nullptr;
    if (entry == nullptr) continue;
    const auto ours = tensor.layout.shape().dims(), theirs = entry->shape.dims();
    if (ours.empty() || theirs.size() != ours.size() ||
        !std::ranges::equal(ours.subspan(1), theirs.subspan(1)))
      return std::nullopt;
    if (ours.front() != theirs.front() && (!found || ours.size() > 1))
      found = {.weight = tensor.name, .in_file = theirs.front(), .in_network = ours.front()};
  }
  return found;
}

// The bits of the values rounded to Type. Empty if a finite value would overflow it.
template <typename Type>
std::optional<std::vector<std::uint16_t>> rounded(std::span<const float> values) {
  std::vector<std::uint16_t> bits;
  bits.reserve(values.size());
  for (const float value : values) {
    const Type narrow(value);
    if (std::isfinite(value) && !std::isfinite(static_cast<float>(narrow))) return std::nullopt;
    bits.push_back(narrow.bits);
  }
  return bits;
}

}  // namespace

void make_plain(const Layout& layout, std::span<const float> from, std::span<float> to) {
  CHECK(static_cast<std::int64_t>(from.size()) == layout.physical_elements() &&
        static_cast<std::int64_t>(to.size()) == layout.shape().elements());
  for_each_element(layout, [&](std::size_t plain, std::size_t place) { to[plain] = from[place]; });
}

void write_plain(Backend& backend, Stream& stream, const StateTensor& tensor, std::span<const float> plain) {
  CHECK(static_cast<std::int64_t>(plain.size()) == tensor.layout.shape().elements());
  const Layout& layout = tensor.layout;
  std::vector<float> converted;  // zeros between rows and columns
  if (layout.is_plain()) {
    stream.copy(tensor.value, plain.data(), plain.size_bytes());
  } else if (is_host_memory(stream.device())) {
    backend.reorder(plain_of(layout), layout)->run(stream, plain.data(), tensor.value);
  } else {
    converted.resize(static_cast<std::size_t>(layout.physical_elements()));
    for_each_element(layout, [&](std::size_t index, std::size_t place) { converted[place] = plain[index]; });
    stream.copy(tensor.value, converted.data(), layout.bytes());
  }
  stream.synchronize();
}

void read_plain(Backend& backend, Stream& stream, const StateTensor& tensor, std::span<float> plain) {
  CHECK(static_cast<std::int64_t>(plain.size()) == tensor.layout.shape().elements());
  const Layout& layout = tensor.layout;
  std::vector<float> converted;
  if (layout.is_plain()) {
    stream.copy(plain.data(), tensor.value, plain.size_bytes());
  } else if (is_host_memory(stream.device())) {
    backend.reorder(layout, plain_of(layout))->run(stream, tensor.value, plain.data());
  } else {
    converted.resize(static_cast<std::size_t>(layout.physical_elements()));
    stream.copy(converted.data(), tensor.value, layout.bytes());
  }
  stream.synchronize();
  if (!converted.empty()) make_plain(layout, converted, plain);
}

void restore_network(Network& network, const StateCopy& saved) {
  StateWriter writer(network.device(), saved);
  network.visit_state(writer);
  for (const std::string& name : writer.unused(StateScope::replicated))
    if (name.ends_with(".weight") || name.ends_with(".bias"))
      throw DataError(fmt::format("the saved state has \"{}\", which this network does not have", name));
}

StateSnapshot::StateSnapshot(Network& network) {
  StateReader reader(network.device());
  const SharedTensors shared(network);
  for (const StateTensor& tensor : shared.tensors()) {
    reader.tensor(tensor, StateScope::replicated);
    is_statistic_.push_back(tensor.is_statistic);
  }
  entries_ = std::move(reader.copy().tensors);
}

std::vector<std::string> StateSnapshot::save(const std::filesystem::path& path,
                                             const SafetensorsOptions& options, DType parameters) const {
  std::vector<NamedTensor> tensors;
  std::vector<std::string> kept;
  std::vector<std::vector<std::uint16_t>> stored;  // tensors points into its elements
  for (std::size_t i = 0; i < entries_.size(); ++i) {
    const Entry& entry = entries_[i];
    // write_safetensors only reads.
    Tensor tensor{.data = const_cast<float*>(entry.values.data()), .shape = entry.shape};
    if (parameters != DType::f32 && !is_statistic_[i]) {
      auto narrow = parameters == DType::f16 ? rounded<Half>(entry.values) : rounded<BFloat16>(entry.values);
      if (narrow) {
        tensor.data = stored.emplace_back(std::move(*narrow)).data();
        tensor.dtype = parameters;
      } else {
        kept.push_back(entry.name);
      }
    }
    tensors.push_back({entry.name, tensor});
  }
  write_safetensors(path, tensors, options);
  return kept;
}

std::string load_state(Network& network, const std::filesystem::path& path, ResetHead reset_head) {
  const SharedTensors shared(network);
  bool keeps_head = reset_head == ResetHead::always;
  WeightsFile file(path, shared.tensors(), keeps_head ? network.head() : "");
  std::string note = keeps_head ? fmt::format("\"{}\" initialised randomly", network.head()) : "";
  if (reset_head == ResetHead::automatic) {
    if (const auto other = other_classes(file, shared.tensors(), network.head())) {
      keeps_head = true;
      note = fmt::format(
          "\"{}\" initialised randomly, because \"{}\" has {} classes in the file and {} in the network",
          network.head(), other->weight, other->in_file, other->in_network);
    }
  }
  StateReader present(network.device());
  StateCopy state;
  for (const StateTensor& tensor : shared.tensors()) {
    if (keeps_head && belongs_to(network.head(), tensor.name)) {
      present.tensor(tensor, StateScope::replicated);
      state.tensors.push_back(std::move(present.copy().tensors.back()));
      continue;
    }
    const SafetensorsEntry& entry = matching_entry(file, tensor, network);
    StateCopy::Tensor& read = state.tensors.emplace_back();
    read.name = tensor.name;
    read.shape = entry.shape;
    read.values = file.read(entry);
  }
  StateWriter writer(network.device(), state);
  network.visit_state(writer);
  return note;
}

}  // namespace lockstep
