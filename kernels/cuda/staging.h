// SPDX-License-Identifier: Apache-2.0
//
// LayoutStaging: an activation that is kept in one layout and computed with in another. Kernels compute
// channels last; what comes in C, H, W order (behind dropout), or with channels padded where they must not
// be, is brought over in scratch memory, and its gradient back. Where both layouts are the same, nothing
// happens.
#pragma once

#include <cstddef>
#include <optional>

#include "core/layout.h"
#include "core/stream.h"
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
  // Of the scratch memory that the functions below take; 0 where it is not used.
  std::size_t bytes() const { return to_wanted_ ? wanted_.bytes() : 0; }

  // Where to read the tensor.
  const void* bring(Stream& stream, const void* data, void* scratch) const {
    if (!to_wanted_) return data;
    cuda_reorder(stream, *to_wanted_, data, scratch);
    return scratch;
  }
  // Where to write it; then deliver() it.
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
