// SPDX-License-Identifier: Apache-2.0
//
// Handle: owns what a CUDA library created and destroys it with the library's own function. Move-only, and a
// wrapper of one line for each kind: `using CudnnHandle = Handle<cudnnHandle_t, cudnnDestroy>`. What the
// function answers is not looked at: it fails only while the driver shuts down, when nothing is left to free.
#pragma once

#include <memory>
#include <type_traits>

namespace lockstep {

namespace detail {
template <auto destroy>
struct Destroy {
  template <typename T>
  void operator()(T* pointer) const {
    destroy(pointer);
  }
};
}  // namespace detail

template <typename T, auto destroy>
using Handle = std::unique_ptr<std::remove_pointer_t<T>, detail::Destroy<destroy>>;

}  // namespace lockstep
