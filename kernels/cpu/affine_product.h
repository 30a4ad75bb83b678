// SPDX-License-Identifier: Apache-2.0
//
// CpuProduct: one direction of a convolution or linear layer, computed by a oneDNN primitive or one of our
// kernels, over the whole batch or in pieces. Tensors stay in the layout and type that neighbouring layers
// use; tensors that the kernel needs in another layout or type are converted in scratch memory. So fp32
// kernels also work on half tensors: operands convert exactly, a result is rounded once.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "kernels/affine.h"
#include "kernels/cpu/engine.h"
#include "kernels/cpu/rearrangement.h"

namespace lockstep {

// Memory descriptions of the tensors of AffineOperands. The first dimension of x and y is the batch.
struct AffineDescs {
  dnnl::memory::desc x;
  dnnl::memory::desc w;
  dnnl::memory::desc y;
};

// The description of one of `pieces` equal pieces of the batch of x or y.
dnnl::memory::desc piece_of(const dnnl::memory::desc& kept, int pieces);

class CpuProduct {
 public:
  struct Problem {
    AffineDirection direction = AffineDirection::forward;
    AffineDescs kept;
    std::int64_t bias_elements = 0;  // 0: none
    // Applied to each piece of the result while it is in the cache; none if the kernel itself applies one.
    Activation activation = Activation::none;
  };
  // The implementation.
  struct Kernel {
    std::string name;
    dnnl::primitive primitive;  // if empty, function is used
    // The kernel's own layouts and types, for one piece of the batch. With several pieces, x and y may differ
    // from the kept tensors only in type. A weight gradient is always fp32, because it is a sum over the
    // batch.
    AffineDescs wanted;
    dnnl::memory::desc scratch;
    int pieces = 1;
    std::function<void(const AffineOperands&)> function = {};  // overwrites
  };

  CpuProduct() = default;
  CpuProduct(const Problem& problem, const Kernel& kernel);

  const Problem& problem() const { return problem_; }
  // The type of all tensors except the bias.
  DType type() const { return type_; }
  std::size_t scratch_bytes() const { return scratch_bytes_; }
  // True if oneDNN computes it with a reference implementation: it has no other one for these layouts. It is
  // many times slower.
  bool is_reference() const { return is_reference_; }
  // The operands' bias is null if and only if the problem has none.
  void run(const AffineOperands& operands);

  // Wraps a CpuProduct as an AffineProduct.
  static AffineProduct as_product(CpuProduct product);

 private:
  // The conversion of one tensor for the kernel: cast if its type differs, then reordered if its layout
  // differs; for a result in reverse order.
  struct Passage {
    bool is_result = false;
    bool batched = false;         // several pieces, each of which uses its part of the tensor
    std::size_t piece_bytes = 0;  // of a part, in the kept type
    std::int64_t elements = 0;    // of a part, including padding
    DType kept = DType::f32;
    DType wanted = DType::f32;
    bool reordered = false;
    Rearrangement reorder;
    std::size_t cast_staging = 0;  // offsets in scratch
    std::size_t reorder_staging = 0;

    bool is_cast() const { return kept != wanted; }
    std::size_t begin(std::size_t piece) const { return batched ? piece * piece_bytes : 0; }
    // Converts the piece if necessary and returns the kernel's operand.
    const void* in(std::size_t piece, const void* data, void* scratch);
    // target() is the memory that the kernel writes a result to; out() converts it into data.
    void* target(void* data, void* scratch) const;
    void out(void* data, void* scratch);
  };
  struct Passages {
    Passage x, w, y;
  };

  void plan(Passage& passage, dnnl::memory::desc kept, const dnnl::memory::desc& wanted, int pieces);
  std::size_t take_scratch(std::size_t bytes);
  void run_batched(const AffineOperands& operands);
  void run_sum(const AffineOperands& operands);
  void run_piece(std::size_t piece, const AffineOperands& operands, void* result, float* bias);

  Problem problem_;
  std::string name_;
  DType type_ = DType::f32;
  bool is_reference_ = false;
  // One function per piece, because a primitive stores its addresses.
  std::vector<std::function<void(const AffineOperands&)>> pieces_;
  Passages passages_;
  std::size_t kernel_scratch_ = 0;  // offsets in scratch
  std::size_t total_ = 0;           // the fp32 sum over pieces, if the result is not fp32
  std::size_t part_ = 0;            // the summand: one piece, or the whole gradient
  std::size_t part_bias_ = 0;
  std::size_t scratch_bytes_ = 0;
};

}  // namespace lockstep
