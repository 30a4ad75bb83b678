// SPDX-License-Identifier: Apache-2.0
//
// Hidden<T>: a value, such as a shared_ptr, whose copies and destruction are hidden from ThreadSanitizer. Its
// reference count would order the owning threads, which the emulated library does not guarantee.
#pragma once

#include <utility>

#include "tests/cuda_emulator/thread_sanitizer.h"

namespace lockstep::emulator {

template <typename T>
class Hidden {
 public:
  Hidden() = default;
  explicit Hidden(T value) : value_(hide([&] { return std::move(value); })) {}
  Hidden(const Hidden& other) : value_(hide([&] { return other.value_; })) {}
  Hidden(Hidden&& other) noexcept : value_(hide([&] { return std::move(other.value_); })) {}
  ~Hidden() {
    const Unseen unseen;
    value_ = T{};
  }
  Hidden& operator=(const Hidden&) = delete;
  Hidden& operator=(Hidden&&) = delete;

  auto* operator->() const { return &*value_; }
  auto& operator*() const { return *value_; }
  const T& get() const { return value_; }
  explicit operator bool() const { return static_cast<bool>(value_); }

 private:
  template <typename F>
  static T hide(F function) {
    const Unseen unseen;
    return function();
  }

  T value_;
};

}  // namespace lockstep::emulator
