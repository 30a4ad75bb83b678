// SPDX-License-Identifier: Apache-2.0
//
// LatestValue: a value in memory shared by processes. One thread writes it repeatedly; any thread or process
// reads it. Neither side blocks; a write costs a few stores, and a read never mixes two values. Two slots
// alternate, so a writer that is stopped or killed during a write leaves the previous value readable. Zeroed
// memory is a LatestValue without a value.
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
  // Writes a value. One thread at a time.
  void show(const Value& value) {
    const std::uint64_t number = shown_.load(std::memory_order_relaxed) + 1;
    const auto words = std::bit_cast<Words>(value);
    auto& slot = slots_[number % 2];
    // The release order makes a reader that loads one of these words also see the previous number, so it
    // detects that its value is no longer the last.
    for (std::size_t i = 0; i < kWords; ++i) slot[i].store(words[i], std::memory_order_release);
    shown_.store(number, std::memory_order_release);
  }

  // Reads the value. Any thread or process. Empty if none was written yet, or if writes come faster than
  // reads.
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
  std::atomic<std::uint64_t> shown_;  // number of values written; the last is in slot number % 2
  std::array<std::array<std::atomic<std::uint64_t>, kWords>, 2> slots_;
};

}  // namespace lockstep
