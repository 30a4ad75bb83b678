// SPDX-License-Identifier: Apache-2.0
//
// LayoutStaging: for an activation that is kept in one layout and computed in another. Kernels compute
// channels last; a tensor in C, H, W order (after dropout), or with padded channels where padding is not
// allowed, is copied to scratch memory in the wanted layout, and its gradient is copied back. If both layouts
// are equal, nothing is copied.
#pragma once

#include <cstddef>
#include <optional>

#include "core/stream.h"
#include "core/tensor/layout.h"
#include "kernels/cuda/reorder.h"

namespace lockstep {

class LayoutStaging {
 public:
  LayoutStaging() = default;
  LayoutStaging(const Layout& kept, const Layout& wanted) : kept_(kept), wanted_(wanted) {
    if (kept == wanted) return;
    to_wanted_ = CudaReorder::between(kept, wanted);
    to_kept_ = CudaReorder::between(wanted, kept);
  }

  const Layout& kept() const { return kept_; }
  const Layout& wanted() const { return wanted_; }
  // Bytes of the scratch memory that the functions below need; 0 if both layouts are equal.
  std::size_t bytes() const { return to_wanted_ ? wanted_.bytes() : 0; }

  // Returns the tensor in the wanted layout: data itself, or its copy in scratch.
  const void* bring(Stream& stream, const void* data, void* scratch) const {
    if (!to_wanted_) return data;
    cuda_reorder(stream, *to_wanted_, data, scratch);
    return scratch;
  }
  // Returns the memory to write the tensor to in the wanted layout; deliver() then copies it to data.
  void* target(void* data, void* scratch) const { return to_wanted_ ? scratch : data; }
  void deliver(Stream& stream, const void* scratch, void* data) const {
    if (to_kept_) cuda_reorder(stream, *to_kept_, scratch, data);
  }

 private:
  Layout kept_;
  Layout wanted_;
  std::optional<CudaReorder> to_wanted_;
  std::optional<CudaReorder> to_kept_;
};

}  // namespace lockstep
