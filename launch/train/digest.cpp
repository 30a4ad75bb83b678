// SPDX-License-Identifier: Apache-2.0
#include "launch/train/digest.h"

#include <cstdint>
#include <variant>
#include <vector>

#include "launch/train/watch/content_hash.h"
#include "models/network_state.h"

namespace lockstep {
namespace {

// Hashes names, shapes and values in plain layout.
class NetworkHash final : public StateVisitor {
 public:
  NetworkHash(Network& network, ContentHash& hash)
      : backend_(network.backend()), stream_(network.device(), StreamUse::compute), hash_(hash) {}

  bool writes() const override { return false; }
  void tensor(const StateTensor& tensor, StateScope scope) override {
    if (scope != StateScope::replicated) return;
    hash_.add(tensor.name);
    const std::string shape = to_string(tensor.layout.shape());
    hash_.add(shape);
    values_.resize(static_cast<std::size_t>(tensor.layout.shape().elements()));
    grow_staging(staging_, tensor, stream_.device());
    read_plain(backend_, stream_, tensor, values_, staging_);
    stream_.synchronize();
    hash_.add(values_.data(), values_.size() * sizeof(float));
  }
  void value(const std::string&, StateScope, StateValue) override {}

 private:
  Backend& backend_;
  Stream stream_;
  Buffer staging_;
  ContentHash& hash_;
  std::vector<float> values_;
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
