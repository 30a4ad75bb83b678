// SPDX-License-Identifier: Apache-2.0
#include "core/error.h"
#include "kernels/cpu/backend.h"
#include "kernels/cpu/engine.h"
#include "kernels/cpu/onednn.h"
#include "kernels/cpu/rearrangement.h"

namespace lockstep {
namespace {

using dnnl::memory;

// A plain side gets the other side's dimensions: with groups or flattened images, plain memory is the same.
memory::desc desc_like(const Layout& layout, const Layout& other) {
  return layout.is_plain() && !other.is_plain() ? plain_desc(onednn::dims_of(to_desc(other)), layout.dtype())
                                                : to_desc(layout);
}

class CpuReorder final : public ReorderKernel {
 public:
  CpuReorder(const memory::desc& from, const memory::desc& to) : rearrangement_(from, to) {}
  void run(Stream&, const void* from, void* to) override { rearrangement_.run(from, to); }

 private:
  Rearrangement rearrangement_;
};

}  // namespace

std::unique_ptr<ReorderKernel> CpuBackend::reorder(const Layout& from, const Layout& to) {
  CHECK(from.shape() == to.shape() && from.dtype() == to.dtype(),
        "a reorder requires equal shapes and types: {}, {}", from.describe(), to.describe());
  return plan_with_onednn(
      "a reorder", [&] { return std::make_unique<CpuReorder>(desc_like(from, to), desc_like(to, from)); });
}

}  // namespace lockstep
