// SPDX-License-Identifier: Apache-2.0
#include "launch/train/watch/desync_check.h"

#include <optional>

#include <fmt/format.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

#include "comm/agreement.h"
#include "core/error.h"
#include "core/state.h"
#include "core/stream.h"
#include "core/tensor/buffer.h"
#include "launch/train/watch/replicas.h"

namespace lockstep {
namespace {

// Hashes memory as it is: kernels, and so layouts, are the same on all ranks.
class TensorHashes final : public StateVisitor {
 public:
  TensorHashes(Device device, std::vector<TensorHash>& hashes)
      : stream_(device, StreamUse::compute), hashes_(hashes) {}

  bool writes() const override { return false; }
  void tensor(const StateTensor& tensor, StateScope scope) override {
    if (scope != StateScope::replicated) return;
    const std::size_t bytes = static_cast<std::size_t>(tensor.elements) * sizeof(float);
    const void* data = tensor.value;
    if (!is_host_memory(stream_.device())) {
      copy_.resize(bytes);
      stream_.copy(copy_.data(), tensor.value, bytes);
      stream_.synchronize();
      data = copy_.data();
    }
    hashes_.push_back({tensor.name, XXH3_64bits(data, bytes)});
  }
  void value(const std::string&, StateScope, StateValue) override {}

 private:
  Stream stream_;
  std::vector<TensorHash>& hashes_;
  std::vector<std::byte> copy_;
};

std::vector<std::uint64_t> numbers_of(const std::vector<TensorHash>& hashes) {
  std::vector<std::uint64_t> numbers;
  for (const TensorHash& each : hashes) numbers.push_back(each.hash);
  return numbers;
}

}  // namespace

std::uint64_t hash_of_values(std::span<const float> values) {
  return XXH3_64bits(values.data(), values.size_bytes());
}

std::vector<TensorHash> replicated_hashes(Trainer& trainer) {
  std::vector<TensorHash> hashes;
  TensorHashes visitor(trainer.device(), hashes);
  trainer.visit_state(visitor);
  return hashes;
}

void require_same_tensors(Communicator& host, const std::vector<TensorHash>& mine, const std::string& when) {
  const std::vector<std::uint64_t> numbers = numbers_of(mine);
  const std::size_t bytes = numbers.size() * sizeof(std::uint64_t);
  const std::optional<Disagreement> found =
      find_disagreement(host, fmt::format("{:016x}", XXH3_64bits(numbers.data(), bytes)));
  if (!found) return;
  std::vector<std::uint64_t> all(numbers.size() * static_cast<std::size_t>(host.size()));
  gather_bytes(host, numbers.data(), all.data(), bytes);
  const auto equal_on_all_ranks = [&](std::size_t tensor) {
    for (std::size_t at = tensor; at < all.size(); at += numbers.size())
      if (all[at] != all[tensor]) return false;
    return true;
  };
  std::size_t first = 0;
  while (first + 1 < numbers.size() && equal_on_all_ranks(first)) ++first;
  throw_agreed(Error(exit_code::failed,
                     fmt::format("{}, {}, first in {}: check the memory and the device of {}; --resume auto "
                                 "resumes from the last checkpoint",
                                 when, found->text, mine[first].name, found->suspects)));
}

bool DesyncCheck::goes_on() {
  if (every_ > 0 && host_.size() > 1 && trainer_.steps() % every_ == 0)
    require_same_tensors(host_, replicated_hashes(trainer_), fmt::format("after step {}", trainer_.steps()));
  return true;
}

}  // namespace lockstep
