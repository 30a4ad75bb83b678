// SPDX-License-Identifier: Apache-2.0
//
// Handle: owns an object of a CUDA library and destroys it with the library's function. Move-only; one line
// defines each kind: `using CudnnHandle = Handle<cudnnHandle_t, cudnnDestroy>`. The status of the destroying
// function is ignored: it fails only while the driver shuts down, when nothing is left to free.
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
