// SPDX-License-Identifier: Apache-2.0
//
// Memory for emulated kernels, of exactly the size that they may use. It starts as NaNs and lies between
// margins that AddressSanitizer protects; without it, margin_intact() returns whether they are unchanged.
// Also helpers for tests of kernels with several element types.
#pragma once

#include <algorithm>
#include <bit>
#include <cstring>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "core/stream.h"
#include "core/tensor/dtype.h"
#include "kernels/cuda/launch.h"
#include "tests/cuda_emulator/emulator.h"
#include "tests/kernels/affine_reference.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#endif

namespace lockstep {

inline constexpr DType kElementTypes[] = {DType::f32, DType::f16, DType::bf16};

// The error of rounding a value near 1 to the type.
inline double precision_of(DType type) {
  return type == DType::f32 ? 0x1p-24 : type == DType::f16 ? 0x1p-11 : 0x1p-8;
}

inline float rounded(float value, DType type) {
  if (type == DType::f16) return static_cast<float>(Half(value));
  if (type == DType::bf16) return static_cast<float>(BFloat16(value));
  return value;
}

class DeviceMemory {
 public:
  // misaligned: the memory starts this many bytes after a multiple of 16.
  explicit DeviceMemory(std::size_t bytes, std::size_t misaligned = 0)
      : bytes_(bytes), offset_(kMargin + misaligned), storage_(offset_ + bytes + kMargin) {
    guard([](const void* begin, std::size_t count) {
      static_cast<void>(begin);
      static_cast<void>(count);
#if defined(__SANITIZE_ADDRESS__)
      __asan_poison_memory_region(begin, count);
#endif
    });
  }
  DeviceMemory(const Values& values, DType type, std::size_t misaligned = 0)
      : DeviceMemory(values.size() * size_of(type), misaligned) {
    write(values, type);
  }
  template <typename T>
  explicit DeviceMemory(const std::vector<T>& items) : DeviceMemory(items.size() * sizeof(T)) {
    if (!items.empty()) std::memcpy(data(), items.data(), bytes_);
  }
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;
  ~DeviceMemory() {
    allow();
    EXPECT_TRUE(margin_intact()) << "a kernel wrote outside its memory";
  }

  void* data() const { return const_cast<std::byte*>(storage_.data()) + offset_; }
  template <typename T>
  T* as() const {
    return static_cast<T*>(data());
  }
  template <typename T>
  std::vector<T> items() const {
    return {as<T>(), as<T>() + bytes_ / sizeof(T)};
  }
  void spoil() { std::memset(data(), 0xff, bytes_); }
  void write(const Values& values, DType type) {
    for (std::size_t i = 0; i < values.size(); ++i) {
      if (type == DType::f32) as<float>()[i] = values[i];
      if (type == DType::f16) as<Half>()[i] = Half(values[i]);
      if (type == DType::bf16) as<BFloat16>()[i] = BFloat16(values[i]);
    }
  }
  Values values(DType type) const {
    Values result(bytes_ / size_of(type));
    for (std::size_t i = 0; i < result.size(); ++i) {
      if (type == DType::f32) result[i] = as<float>()[i];
      if (type == DType::f16) result[i] = static_cast<float>(as<Half>()[i]);
      if (type == DType::bf16) result[i] = static_cast<float>(as<BFloat16>()[i]);
    }
    return result;
  }
  // Always true under AddressSanitizer, which ends the program at a write to a margin.
  bool margin_intact() const {
    bool intact = true;
#if !defined(__SANITIZE_ADDRESS__)
    guard([&](const std::byte* begin, std::size_t count) {
      intact = intact && std::all_of(begin, begin + count, [](std::byte b) { return b == std::byte{0xff}; });
    });
#endif
    return intact;
  }
  // Repairs the margins in tests whose kernels write to them on purpose.
  void allow() {
#if defined(__SANITIZE_ADDRESS__)
    __asan_unpoison_memory_region(storage_.data(), storage_.size());
#endif
  }
  void forgive() { std::fill(storage_.begin(), storage_.end(), std::byte{0xff}); }

 private:
  static constexpr std::size_t kMargin = 256;

  // Calls visit(begin, bytes) for both margins.
  template <typename Visit>
  void guard(Visit visit) const {
    visit(storage_.data(), offset_);
    visit(storage_.data() + offset_ + bytes_, kMargin);
  }

  // Memory of operator new is aligned to 16 bytes.
  struct Filled : std::vector<std::byte> {
    explicit Filled(std::size_t bytes) : std::vector<std::byte>(bytes, std::byte{0xff}) {}
  };
  std::size_t bytes_;
  std::size_t offset_;
  Filled storage_;
};

// Calls run() with threads and blocks in either order, and with another block size if the kernel allows it.
// Expects the same bits, and returns the values.
template <typename Run>
Values in_any_order(Run run) {
  emulator::set_order(emulator::Order::descending);
  set_block_threads(96);
  const Values descending = run();
  emulator::set_order(emulator::Order::ascending);
  set_block_threads(kBlockThreads);
  const Values ascending = run();
  const auto same_bits = [](float a, float b) {
    return std::bit_cast<std::uint32_t>(a) == std::bit_cast<std::uint32_t>(b);
  };
  EXPECT_TRUE(std::ranges::equal(ascending, descending, same_bits))
      << "the result must not depend on the order of threads or the size of blocks";
  return ascending;
}

inline void expect_near(const Values& actual, const Doubles& expected, double relative, double absolute) {
  ASSERT_EQ(actual.size(), expected.size());
  for (std::size_t i = 0; i < actual.size(); ++i) {
    ASSERT_NEAR(actual[i], expected[i], absolute + relative * std::abs(expected[i])) << "at " << i;
  }
}

}  // namespace lockstep
