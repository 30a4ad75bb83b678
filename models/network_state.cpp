// SPDX-License-Identifier: Apache-2.0
#include "models/network_state.h"

#include <algorithm>

#include "core/error.h"
#include "core/safetensors.h"

namespace lockstep {
namespace {

constexpr std::string_view kIgnoredSuffix = ".num_batches_tracked";  // a counter of PyTorch's batch norm

Layout plain_of(const Layout& layout) { return {layout.shape(), layout.dtype()}; }

// What a file of the network holds.
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

void check_names(const std::vector<StateTensor>& tensors, const SafetensorsReader& reader,
                 const std::filesystem::path& path) {
  for (const SafetensorsEntry& entry : reader.entries()) {
    const bool known = std::ranges::find(tensors, entry.name, &StateTensor::name) != tensors.end();
    if (!known && !entry.name.ends_with(kIgnoredSuffix)) {
      throw DataError(
          fmt::format("{}: holds \"{}\", which this network does not have", path.string(), entry.name));
    }
  }
}

const SafetensorsEntry& matching_entry(const StateTensor& tensor, const SafetensorsReader& reader,
                                       const std::filesystem::path& path) {
  const SafetensorsEntry* entry = reader.find(tensor.name);
  if (entry == nullptr) {
    throw DataError(fmt::format("{}: lacks \"{}\", which this network needs", path.string(), tensor.name));
  }
  if (entry->dtype != DType::f32 || entry->shape != tensor.layout.shape()) {
    throw DataError(fmt::format("{}: \"{}\" is {} {}, the network has F32 {}", path.string(), tensor.name,
                                entry->dtype_name, to_string(entry->shape),
                                to_string(tensor.layout.shape())));
  }
  return *entry;
}

}  // namespace

Buffer staging_for(std::span<const StateTensor> state, Device device) {
  std::int64_t elements = 0;
  for (const StateTensor& tensor : state) {
    if (!tensor.layout.is_plain()) elements = std::max(elements, tensor.layout.shape().elements());
  }
  return Buffer(static_cast<std::size_t>(elements) * sizeof(float), device);
}

void grow_staging(Buffer& staging, const StateTensor& tensor, Device device) {
  const auto bytes = static_cast<std::size_t>(tensor.layout.shape().elements()) * sizeof(float);
  if (!tensor.layout.is_plain() && staging.bytes() < bytes) staging = Buffer(bytes, device);
}

void write_plain(Backend& backend, Stream& stream, const StateTensor& tensor, std::span<const float> plain,
                 const Buffer& staging) {
  CHECK(static_cast<std::int64_t>(plain.size()) == tensor.layout.shape().elements());
  if (tensor.layout.is_plain()) return stream.copy(tensor.value, plain.data(), plain.size_bytes());
  CHECK(plain.size_bytes() <= staging.bytes());
  stream.copy(staging.data(), plain.data(), plain.size_bytes());
  backend.reorder(plain_of(tensor.layout), tensor.layout)->run(stream, staging.data(), tensor.value);
}

void read_plain(Backend& backend, Stream& stream, const StateTensor& tensor, std::span<float> plain,
                const Buffer& staging) {
  CHECK(static_cast<std::int64_t>(plain.size()) == tensor.layout.shape().elements());
  if (tensor.layout.is_plain()) return stream.copy(plain.data(), tensor.value, plain.size_bytes());
  CHECK(plain.size_bytes() <= staging.bytes());
  backend.reorder(tensor.layout, plain_of(tensor.layout))->run(stream, tensor.value, staging.data());
  stream.copy(plain.data(), staging.data(), plain.size_bytes());
}

StateSnapshot::StateSnapshot(Network& network) {
  StateReader reader(network.device());
  network.visit_state(reader);
  entries_ = std::move(reader.copy().tensors);
  std::erase_if(entries_, [](const Entry& entry) { return entry.scope != StateScope::replicated; });
}

void StateSnapshot::save(const std::filesystem::path& path,
                         const std::map<std::string, std::string>& metadata) const {
  std::vector<NamedTensor> tensors;
  for (const Entry& entry : entries_) {
    // The writer only reads.
    tensors.push_back({entry.name, {.data = const_cast<float*>(entry.values.data()), .shape = entry.shape}});
  }
  write_safetensors(path, tensors, metadata);
}

void load_state(Network& network, const std::filesystem::path& path) {
  SafetensorsReader reader(path);
  const SharedTensors shared(network);
  check_names(shared.tensors(), reader, path);
  StateCopy state;
  for (const StateTensor& tensor : shared.tensors()) {
    const SafetensorsEntry& entry = matching_entry(tensor, reader, path);
    StateCopy::Tensor& read = state.tensors.emplace_back();
    read.name = tensor.name;
    read.shape = entry.shape;
    read.values.resize(static_cast<std::size_t>(entry.shape.elements()));
    reader.read(entry, std::as_writable_bytes(std::span(read.values)));
  }
  StateWriter writer(network.device(), state);
  network.visit_state(writer);
}

}  // namespace lockstep
