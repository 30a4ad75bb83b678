// SPDX-License-Identifier: Apache-2.0
#include "launch/digest.h"

#include <cstdint>
#include <memory>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "core/error.h"
#include "models/network_state.h"

namespace lockstep {
namespace {

class Hash {
 public:
  Hash() : state_(XXH3_createState(), &XXH3_freeState) { XXH3_128bits_reset(state_.get()); }
  void add(const void* data, std::size_t bytes) { XXH3_128bits_update(state_.get(), data, bytes); }
  std::string hex() const {
    const XXH128_hash_t hash = XXH3_128bits_digest(state_.get());
    return fmt::format("{:016x}{:016x}", hash.high64, hash.low64);
  }

 private:
  std::unique_ptr<XXH3_state_t, XXH_errorcode (*)(XXH3_state_t*)> state_;
};

}  // namespace

std::string digest(Network& network, Optimizer& optimizer) {
  Hash hash;
  const StateSnapshot snapshot(network);
  for (const StateSnapshot::Entry& entry : snapshot.entries()) {
    hash.add(entry.name.data(), entry.name.size());
    const std::string shape = to_string(entry.shape);
    hash.add(shape.data(), shape.size());
    hash.add(entry.values.data(), entry.values.size() * sizeof(float));
  }
  Stream stream(network.device(), StreamUse::compute);
  std::vector<float> state(optimizer.state().size());
  stream.copy(state.data(), optimizer.state().data(), state.size() * sizeof(float));
  stream.synchronize();
  hash.add(state.data(), state.size() * sizeof(float));
  const std::int64_t steps = optimizer.read_control(stream).step - 1;
  hash.add(&steps, sizeof(steps));
  return hash.hex();
}

}  // namespace lockstep
