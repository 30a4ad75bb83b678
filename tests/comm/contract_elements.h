// SPDX-License-Identifier: Apache-2.0
//
// Helpers of the contract's checks: elements in either kind of memory of a communicator's device, their
// values, and the expected sums.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <type_traits>
#include <vector>

#include <gtest/gtest.h>

#include "core/tensor/buffer.h"
#include "tests/comm/contract.h"
#include "tests/comm/naive_tree.h"
#include "tests/thinning.h"

namespace lockstep {

// Divides the largest counts. Sanitizers only run implementations that neither stage elements nor divide them
// into pieces, so more elements only repeat the same accesses.
inline constexpr std::size_t kFewer = std::size_t{kOneOf} * kOneOf;

inline constexpr std::array<std::size_t, 6> kCounts = {0, 1, 7, 1001, 4096, 1'310'723 / kFewer};

// Element counts of one rank's share. The largest is kCounts' largest divided by the number of ranks, but at
// least 300'007 / kFewer (more than a 1 MiB piece of fp32 where kFewer is 1).
inline std::array<std::size_t, 6> share_counts(ContractRank rank) {
  std::array<std::size_t, 6> counts = kCounts;
  counts.back() = std::max(counts.back() / static_cast<std::size_t>(rank.communicator.size()),
                           std::size_t{300'007} / kFewer);
  return counts;
}

enum class Memory { plain, registered };
inline constexpr std::array kMemories = {Memory::plain, Memory::registered};

// Values repeat after this many elements, so that the checks of large counts compute few of them. It is
// prime: pieces, rounds and shares are no multiples of it, so elements in a wrong place have wrong values.
inline constexpr std::size_t kPeriod = 65'521;

// Memory from the communicator's allocate() that no Elements use. Collective.
inline std::shared_ptr<Buffer> unused_memory(const ContractRank& rank, std::size_t bytes) {
  for (const std::shared_ptr<Buffer>& each : *rank.allocated)
    if (each.use_count() == 1 && each->bytes() >= bytes) return each;
  return rank.allocated->emplace_back(std::make_shared<Buffer>(rank.communicator.allocate(bytes)));
}

// Elements in either kind of memory of the communicator's device. The offset is aligned to the element size
// only.
template <typename T>
class Elements {
 public:
  Elements(const ContractRank& rank, Memory memory, std::size_t most)
      : stream_(rank.communicator.stream()), memory_(memory) {
    if (memory == Memory::registered) buffer_ = unused_memory(rank, bytes_of(most));
    resize(most);
  }
  // Changes the number of elements, to at most `most`. Keeps registered memory, which all ranks allocate
  // together.
  void resize(std::size_t count) {
    host_.resize(count);
    if (memory_ == Memory::plain) buffer_ = std::make_shared<Buffer>(bytes_of(count), stream_.device());
  }
  T* data() const { return reinterpret_cast<T*>(buffer_->data()) + kSkip; }

  // at(i) repeats after kPeriod elements.
  template <typename F>
  void set(F at) {
    set_blocks(1, [&](std::size_t, std::size_t i) { return at(i); });
  }
  // Sets element i of block k to at(k, i), which repeats after kPeriod elements. All blocks have one size.
  template <typename F>
  void set_blocks(std::size_t blocks, F at) {
    const std::size_t count = host_.size() / blocks;
    for (std::size_t k = 0; k < blocks; ++k) {
      T* const block = host_.data() + k * count;
      for (std::size_t i = 0; i < count; ++i)
        block[i] = i < kPeriod ? static_cast<T>(at(k, i)) : block[i - kPeriod];
    }
    stream_.copy(data(), host_.data(), host_.size() * sizeof(T));
    stream_.synchronize();
  }
  // Waits for everything enqueued so far.
  const std::vector<T>& get() {
    stream_.copy(host_.data(), data(), host_.size() * sizeof(T));
    stream_.synchronize();
    return host_;
  }

 private:
  static constexpr std::size_t kSkip = 3;
  static std::size_t bytes_of(std::size_t count) { return (count + kSkip) * sizeof(T); }

  Stream& stream_;
  Memory memory_;
  std::vector<T> host_;
  std::shared_ptr<Buffer> buffer_;
};

inline std::uint32_t mix(std::uint32_t word) {  // the finalizer of MurmurHash3
  word = (word ^ (word >> 16)) * 0x85ebca6bu;
  word = (word ^ (word >> 13)) * 0xc2b2ae35u;
  return word ^ (word >> 16);
}

// Values without a pattern within kPeriod elements. Under Sums::in_any_order they are small integers, whose
// sums even bf16 holds exactly; otherwise the sum depends on its order.
template <typename T>
T value(Sums sums, int rank, std::size_t i) {
  constexpr std::array<float, 8> kFloats = {1e4f, -1e4f, 1.1f, 0.1f, 3e-3f, -7.7f, 2047.3f, -0.0f};
  const std::uint32_t word =
      mix(static_cast<std::uint32_t>(i % kPeriod) * 61u + static_cast<std::uint32_t>(rank));
  if constexpr (std::is_same_v<T, std::int32_t>) {
    return static_cast<std::int32_t>(word % 2001) - 1000;
  } else if constexpr (std::is_same_v<T, std::uint8_t>) {
    return static_cast<std::uint8_t>(word);
  } else if (sums == Sums::in_any_order) {
    return static_cast<T>(static_cast<float>(word % 33) - 16);
  } else {
    return static_cast<T>(kFloats[word % kFloats.size()]);
  }
}

template <typename T>
using Wide = std::conditional_t<std::is_same_v<T, std::int32_t>, std::int32_t, float>;

template <typename T>
T expected(const ContractRank& rank, std::size_t i, ReduceOp op) {
  return static_cast<T>(naive_tree(
      rank.communicator.size(), [&](int k) { return static_cast<Wide<T>>(value<T>(rank.sums, k, i)); },
      [op](Wide<T> a, Wide<T> b) {
        if (op == ReduceOp::sum) return a + b;
        return op == ReduceOp::max ? std::max(a, b) : std::min(a, b);
      }));
}

// Sets this rank's values.
template <typename T>
void fill(ContractRank rank, Elements<T>& elements) {
  elements.set([&](std::size_t i) { return value<T>(rank.sums, rank.communicator.rank(), i); });
}

template <typename T>
bool same_bits(const T& a, const T& b) {
  return std::memcmp(&a, &b, sizeof(T)) == 0;
}

// Counts the elements whose bits differ and reports the first one. Element i of block k must be
// expected_at(k, i), which repeats after kPeriod elements. All blocks have one size.
template <typename T, typename F>
void expect_blocks(std::span<const T> actual, std::size_t blocks, F expected_at) {
  const std::size_t count = actual.size() / blocks;
  std::vector<T> expected(std::min(count, kPeriod));
  std::size_t wrong = 0;
  std::size_t first = 0;
  T instead = {};
  for (std::size_t k = 0; k < blocks; ++k) {
    for (std::size_t i = 0; i < expected.size(); ++i) expected[i] = static_cast<T>(expected_at(k, i));
    for (std::size_t i = 0; i < count; ++i) {
      if (same_bits(actual[k * count + i], expected[i % kPeriod]) || wrong++ > 0) continue;
      first = k * count + i;
      instead = expected[i % kPeriod];
    }
  }
  if (wrong == 0) return;
  ADD_FAILURE() << wrong << " of " << actual.size() << " elements of " << name_of(dtype_of<T>)
                << " are wrong; element " << first << " is " << static_cast<float>(actual[first]) << ", not "
                << static_cast<float>(instead);
}

template <typename T, typename F>
void expect_elements(std::span<const T> actual, F expected_at) {
  expect_blocks<T>(actual, 1, [&](std::size_t, std::size_t i) { return expected_at(i); });
}

}  // namespace lockstep
