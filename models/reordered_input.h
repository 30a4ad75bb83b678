// SPDX-License-Identifier: Apache-2.0
//
// ReorderedInput: a layer's input that its kernel reads in another layout. The copies in the kernel's layout,
// of the input and of its gradient, need memory: scratch memory, or an output that the kernel overwrites.
#pragma once

#include <memory>

#include "core/tensor/buffer.h"
#include "kernels/backend.h"
#include "models/pass.h"

namespace lockstep {

class ReorderedInput {
 public:
  // The kernel reads the input itself.
  ReorderedInput() = default;
  ReorderedInput(Backend& backend, const Layout& given, const Layout& wanted) {
    if (given == wanted) return;
    bytes_ = align_up(wanted.bytes());
    to_wanted_ = backend.reorder(given, wanted);
    from_wanted_ = backend.reorder(wanted, given);
  }

  // False if the layouts are equal. Then no memory is needed, and the methods below ignore `scratch`.
  bool reorders() const { return to_wanted_ != nullptr; }
  // Bytes of one copy, a multiple of kAlignment.
  std::size_t scratch_bytes() const { return bytes_; }

  // Returns what the kernel reads: the input, or its copy in `scratch`.
  const void* read(const Pass& pass, const void* input, void* scratch) {
    if (!reorders()) return input;
    to_wanted_->run(pass.stream, input, scratch);
    return scratch;
  }
  // The memory to which the kernel writes the gradient; null if the gradient is not wanted.
  void* gradient(void* input_gradient, void* scratch) const {
    return reorders() && input_gradient != nullptr ? scratch : input_gradient;
  }
  // Copies the gradient that the kernel wrote to `scratch`.
  void written(const Pass& pass, void* input_gradient, const void* scratch) {
    if (reorders() && input_gradient != nullptr) from_wanted_->run(pass.stream, scratch, input_gradient);
  }

 private:
  std::size_t bytes_ = 0;
  std::unique_ptr<ReorderKernel> to_wanted_;  // null: the layouts are equal
  std::unique_ptr<ReorderKernel> from_wanted_;
};

}  // namespace lockstep
