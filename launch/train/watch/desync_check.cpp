// SPDX-License-Identifier: Apache-2.0
#include "launch/train/watch/desync_check.h"

#include <algorithm>
#include <map>

#include <fmt/format.h>

#include "core/text/text.h"
#define XXH_INLINE_ALL
#include <xxhash.h>

#include "comm/agreement.h"
#include "core/error.h"
#include "core/state.h"
#include "core/stream.h"
#include "core/tensor/buffer.h"

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

// The value of most ranks; of equally frequent ones, the lowest rank's.
std::uint64_t most_frequent(const std::vector<std::uint64_t>& values) {
  std::uint64_t best = values.front();
  for (const std::uint64_t value : values)
    if (std::ranges::count(values, value) > std::ranges::count(values, best)) best = value;
  return best;
}

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
  const std::vector<std::uint64_t> wholes =
      gather_values(host, std::uint64_t{XXH3_64bits(numbers.data(), bytes)});
  const std::uint64_t most = most_frequent(wholes);
  const std::vector<int> differ = ranks_without(most, wholes);
  if (differ.empty()) return;
  std::vector<std::uint64_t> all(numbers.size() * wholes.size());
  gather_bytes(host, numbers.data(), all.data(), bytes);
  const auto like_most = static_cast<std::size_t>(std::ranges::find(wholes, most) - wholes.begin());
  std::size_t first = 0;
  const auto rank_hash = [&](std::size_t rank) { return all[rank * numbers.size() + first]; };
  while (first + 1 < numbers.size() &&
         rank_hash(static_cast<std::size_t>(differ.front())) == rank_hash(like_most))
    ++first;
  throw_agreed(
      Error(exit_code::failed,
            fmt::format(
                "{}, {} {} other parameters than the other {}, first in {}: check the memory and the device "
                "of {}; --resume auto resumes from the last checkpoint",
                when, named_ranks(differ), differ.size() == 1 ? "has" : "have",
                counted(wholes.size() - differ.size(), "rank"), mine[first].name, named_ranks(differ))));
}

bool DesyncCheck::goes_on() {
  if (every_ > 0 && host_.size() > 1 && trainer_.steps() % every_ == 0)
    require_same_tensors(host_, replicated_hashes(trainer_), fmt::format("after step {}", trainer_.steps()));
  return true;
}

}  // namespace lockstep
