// SPDX-License-Identifier: Apache-2.0
//
// LatestValue: a value in memory that several processes share, which one thread shows anew again and again,
// and anybody reads as a whole. Who shows waits for nobody and pays a few stores; who looks waits for nobody
// either, and what he gets is never part of one value and part of another. A writer that is stopped or killed
// in the middle leaves the value before, as two slots take turns. Memory of zeros is one that shows nothing
// yet.
#pragma once

#include <array>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <type_traits>

namespace lockstep {

template <typename Value>
class LatestValue {
  static constexpr std::size_t kWords = sizeof(Value) / sizeof(std::uint64_t);
  static_assert(std::is_trivially_copyable_v<Value> && sizeof(Value) % sizeof(std::uint64_t) == 0);
  static_assert(std::atomic<std::uint64_t>::is_always_lock_free, "other processes read it");
  using Words = std::array<std::uint64_t, kWords>;

 public:
  // One thread at a time.
  void show(const Value& value) {
    const std::uint64_t number = shown_.load(std::memory_order_relaxed) + 1;
    const auto words = std::bit_cast<Words>(value);
    auto& slot = slots_[number % 2];
    // Each releases the number before: whoever reads one of them sees that his own value is no longer the
    // last.
    for (std::size_t i = 0; i < kWords; ++i) slot[i].store(words[i], std::memory_order_release);
    shown_.store(number, std::memory_order_release);
  }

  // Any thread or process. Nothing where nothing was shown yet, or values come faster than this can read.
  std::optional<Value> look() const {
    constexpr int kAttempts = 1000;
    for (int attempt = 0; attempt < kAttempts; ++attempt) {
      const std::uint64_t number = shown_.load(std::memory_order_acquire);
      if (number == 0) return std::nullopt;
      Words words;
      const auto& slot = slots_[number % 2];
      for (std::size_t i = 0; i < kWords; ++i) words[i] = slot[i].load(std::memory_order_acquire);
      if (shown_.load(std::memory_order_relaxed) == number) return std::bit_cast<Value>(words);
    }
    return std::nullopt;
  }

 private:
  std::atomic<std::uint64_t> shown_;  // how many values were; the last one's slot is that of its number
  std::array<std::array<std::atomic<std::uint64_t>, kWords>, 2> slots_;
};

}  // namespace lockstep
