// SPDX-License-Identifier: Apache-2.0
//
// Tensors of kernels under test, of any type, on any device and in any layout: written from and read as plain
// fp32. What was not written is NaN.
#pragma once

#include <algorithm>
#include <cstring>
#include <functional>
#include <memory>
#include <vector>

#include "core/buffer.h"
#include "core/dtype.h"
#include "core/stream.h"
#include "kernels/backend.h"
#include "tests/kernels/affine_reference.h"

namespace lockstep {

inline float as_type(float value, DType type) {
  if (type == DType::f16) return static_cast<float>(Half(value));
  if (type == DType::bf16) return static_cast<float>(BFloat16(value));
  return value;
}
inline Values as_type(Values values, DType type) {
  for (float& value : values) value = as_type(value, type);
  return values;
}

namespace detail {
template <typename F>
void with_host_element(DType type, F function) {
  if (type == DType::f16) return function(Half());
  if (type == DType::bf16) return function(BFloat16());
  function(float());
}
}  // namespace detail

inline std::vector<std::byte> to_bytes(const Values& values, DType type) {
  std::vector<std::byte> bytes(values.size() * size_of(type));
  detail::with_host_element(type, [&]<typename T>(T) {
    for (std::size_t i = 0; i < values.size(); ++i) {
      const T value(values[i]);
      std::memcpy(bytes.data() + i * sizeof(T), &value, sizeof(T));
    }
  });
  return bytes;
}

inline Values from_bytes(const std::vector<std::byte>& bytes, DType type) {
  Values values(bytes.size() / size_of(type));
  detail::with_host_element(type, [&]<typename T>(T value) {
    for (std::size_t i = 0; i < values.size(); ++i) {
      std::memcpy(&value, bytes.data() + i * sizeof(T), sizeof(T));
      values[i] = static_cast<float>(value);
    }
  });
  return values;
}

// Where tensors live, and who knows their layouts.
struct Lab {
  Stream& stream;
  std::function<std::unique_ptr<ReorderKernel>(const Layout& from, const Layout& to)> reorder;
};

class TypedTensor {
 public:
  TypedTensor(const Lab& lab, const Layout& layout)
      : lab_(lab), layout_(layout), memory_(std::max<std::size_t>(layout.bytes(), 1), lab.stream.device()) {
    poison();
  }
  // Rounded to the layout's type.
  TypedTensor(const Lab& lab, const Layout& layout, const Values& plain) : TypedTensor(lab, layout) {
    write(plain);
  }
  // Plain.
  TypedTensor(const Lab& lab, DType type, const Values& plain)
      : TypedTensor(lab, Layout({static_cast<std::int64_t>(plain.size())}, type), plain) {}

  void* data() const { return memory_.data(); }
  float* floats() const { return reinterpret_cast<float*>(memory_.data()); }

  void poison() { upload(memory_, std::vector<std::byte>(layout_.bytes(), std::byte{0xff})); }
  void write(const Values& plain) {
    CHECK(static_cast<std::int64_t>(plain.size()) == layout_.shape().elements());
    const std::vector<std::byte> bytes = to_bytes(plain, layout_.dtype());
    if (layout_.is_plain()) return upload(memory_, bytes);
    const Buffer staging(bytes.size(), lab_.stream.device());
    upload(staging, bytes);
    lab_.reorder(plain_layout(), layout_)->run(lab_.stream, staging.data(), data());
    lab_.stream.synchronize();
  }
  Values plain() const {
    if (layout_.is_plain()) return physical();
    const Buffer staging(plain_layout().bytes(), lab_.stream.device());
    lab_.reorder(layout_, plain_layout())->run(lab_.stream, data(), staging.data());
    return from_bytes(download(staging, plain_layout().bytes()), layout_.dtype());
  }
  // All elements there are, as they lie.
  Values physical() const { return from_bytes(download(memory_, layout_.bytes()), layout_.dtype()); }
  // Everything that is not zero, NaNs too, belongs to the logical tensor.
  bool padding_is_zero() const {
    const auto nonzero = [](const Values& values) {
      return std::ranges::count_if(values, [](float value) { return !(value == 0); });
    };
    return nonzero(physical()) == nonzero(plain());
  }

 private:
  Layout plain_layout() const { return Layout(layout_.shape(), layout_.dtype()); }
  void upload(const Buffer& to, const std::vector<std::byte>& bytes) const {
    lab_.stream.copy(to.data(), bytes.data(), bytes.size());
    lab_.stream.synchronize();
  }
  std::vector<std::byte> download(const Buffer& from, std::size_t bytes) const {
    std::vector<std::byte> result(bytes);
    lab_.stream.copy(result.data(), from.data(), bytes);
    lab_.stream.synchronize();
    return result;
  }

  const Lab& lab_;
  Layout layout_;
  Buffer memory_;
};

}  // namespace lockstep
