// SPDX-License-Identifier: Apache-2.0
#include "launch/train/digest.h"

#include <cstdint>
#include <span>
#include <variant>
#include <vector>

#include "launch/train/parameter_reader.h"
#include "launch/train/watch/content_hash.h"

namespace lockstep {
namespace {

// Hashes names, shapes and values in plain layout.
class NetworkHash final : public StateVisitor {
 public:
  NetworkHash(Network& network, ContentHash& hash)
      : stream_(network.device(), StreamUse::compute), reader_(network, stream_), hash_(hash) {}

  bool writes() const override { return false; }
  void tensor(const StateTensor& tensor, StateScope scope) override {
    if (scope != StateScope::replicated) return;
    hash_.add(tensor.name);
    hash_.add(to_string(tensor.layout.shape()));
    const std::span<const float> values = reader_.read(tensor);
    hash_.add(values.data(), values.size_bytes());
  }
  void value(const std::string&, StateScope, StateValue) override {}

 private:
  Stream stream_;
  ParameterReader reader_;
  ContentHash& hash_;
};

// Hashes the flat arenas as they are in memory, which tensors fill without gaps, and the step count. Omits
// the loss scale: a step skipped by it has changed nothing else.
class OptimizerHash final : public StateVisitor {
 public:
  OptimizerHash(Device device, ContentHash& hash) : stream_(device, StreamUse::compute), hash_(hash) {}

  bool writes() const override { return false; }
  void tensor(const StateTensor& tensor, StateScope scope) override {
    if (scope != StateScope::replicated) return;
    values_.resize(static_cast<std::size_t>(tensor.elements));
    stream_.copy(values_.data(), tensor.value, values_.size() * sizeof(float));
    stream_.synchronize();
    hash_.add(values_.data(), values_.size() * sizeof(float));
  }
  void value(const std::string& name, StateScope scope, StateValue value) override {
    if (name == Optimizer::kSteps && scope == StateScope::replicated)
      hash_.add(std::get<std::int64_t*>(value), sizeof(std::int64_t));
  }

 private:
  Stream stream_;
  ContentHash& hash_;
  std::vector<float> values_;
};

}  // namespace

std::string digest(Network& network, Optimizer& optimizer, WeightAverage* average) {
  ContentHash hash;
  NetworkHash network_hash(network, hash);
  network.visit_state(network_hash);
  OptimizerHash optimizer_hash(network.device(), hash);
  optimizer.visit_state(optimizer_hash);
  if (average != nullptr) average->visit_state(optimizer_hash);
  return hash.hex();
}

std::string digest(Network& network) {
  ContentHash hash;
  NetworkHash network_hash(network, hash);
  network.visit_state(network_hash);
  return hash.hex();
}

}  // namespace lockstep
