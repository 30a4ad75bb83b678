// SPDX-License-Identifier: Apache-2.0
//
// Tensors for tests of kernels, of any type, on any device and in any layout. Tests write and read them as
// plain fp32. Memory that was never written is NaN.
#pragma once

#include <algorithm>
#include <functional>
#include <memory>
#include <vector>

#include "core/stream.h"
#include "core/tensor/buffer.h"
#include "core/tensor/dtype.h"
#include "kernels/backend.h"
#include "tests/kernels/affine_reference.h"

namespace lockstep {

// The stream (hence the device) of the tensors, and the factory of reorder kernels between layouts.
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
  // Rounds the values to the layout's type.
  TypedTensor(const Lab& lab, const Layout& layout, const Values& plain) : TypedTensor(lab, layout) {
    write(plain);
  }
  // A one-dimensional plain tensor.
  TypedTensor(const Lab& lab, DType type, const Values& plain)
      : TypedTensor(lab, Layout({static_cast<std::int64_t>(plain.size())}, type), plain) {}

  void* data() const { return memory_.data(); }
  float* floats() const { return reinterpret_cast<float*>(memory_.data()); }

  void poison() { upload(memory_, std::vector<std::byte>(layout_.bytes(), std::byte{0xff})); }
  void write(const Values& plain) {
    CHECK(static_cast<std::int64_t>(plain.size()) == layout_.shape().elements());
    const std::vector<std::byte> bytes = to_elements(plain, layout_.dtype());
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
    return download(staging, plain_layout().bytes());
  }
  // All physical elements, padding included, in memory order.
  Values physical() const { return download(memory_, layout_.bytes()); }
  // True if every physical element that is not zero (NaN included) belongs to the logical tensor.
  bool padding_is_zero() const { return equally_many_nonzero(physical(), plain()); }

 private:
  Layout plain_layout() const { return Layout(layout_.shape(), layout_.dtype()); }
  void upload(const Buffer& to, const std::vector<std::byte>& bytes) const {
    lab_.stream.copy(to.data(), bytes.data(), bytes.size());
    lab_.stream.synchronize();
  }
  Values download(const Buffer& from, std::size_t bytes) const {
    std::vector<std::byte> result(bytes);
    lab_.stream.copy(result.data(), from.data(), bytes);
    lab_.stream.synchronize();
    return from_elements(result.data(), bytes, layout_.dtype());
  }

  const Lab& lab_;
  Layout layout_;
  Buffer memory_;
};

}  // namespace lockstep
