// SPDX-License-Identifier: Apache-2.0
//
// CpuProduct: one direction of a convolution or linear layer by a oneDNN primitive or a kernel of ours, over
// the whole batch or piece by piece. The tensors are kept in the layouts and the type their neighbours use;
// what the kernel wants in another one is brought over in scratch memory. So fp32 kernels serve tensors of
// halves, too: operands come in exactly, a result is rounded once.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "kernels/affine.h"
#include "kernels/cpu/engine.h"
#include "kernels/cpu/rearrangement.h"

namespace lockstep {

// How the tensors of AffineOperands lie. The first dimension of x and y is the batch.
struct AffineDescs {
  dnnl::memory::desc x;
  dnnl::memory::desc w;
  dnnl::memory::desc y;
};

// The part of x or y that one of `pieces` equal pieces of the batch is.
dnnl::memory::desc piece_of(const dnnl::memory::desc& kept, int pieces);

class CpuProduct {
 public:
  struct Problem {
    AffineDirection direction = AffineDirection::forward;
    AffineDescs kept;
    std::int64_t bias_elements = 0;  // 0: none
    // Applied to each piece of the result, which is then in the cache; the kernel itself applies none.
    Activation activation = Activation::none;
  };
  // What computes it.
  struct Kernel {
    std::string name;
    dnnl::primitive primitive;  // or, where that is empty, function
    // What the kernel wants, for one piece of the batch. With several pieces x and y must be wanted as they
    // are kept, but for their type. A gradient of weights is wanted in fp32: it is a sum over the batch.
    AffineDescs wanted;
    dnnl::memory::desc scratch;
    int pieces = 1;
    std::function<void(const AffineOperands&)> function = {};  // overwrites
  };

  CpuProduct() = default;
  CpuProduct(const Problem& problem, const Kernel& kernel);

  const Problem& problem() const { return problem_; }
  // Of all tensors but the bias.
  DType type() const { return type_; }
  std::size_t scratch_bytes() const { return scratch_bytes_; }
  // The operands' bias is null exactly where the problem has none.
  void run(const AffineOperands& operands);

  // The same for those who need not know how it is done.
  static AffineProduct as_product(CpuProduct product);

 private:
  // A tensor on its way to or from the kernel: cast where it is kept in another type, then reordered where it
  // is kept in another layout; a result the other way round.
  struct Passage {
    bool is_result = false;
    bool batched = false;         // several pieces, each with its part of the tensor
    std::size_t piece_bytes = 0;  // of a part, as it is kept
    std::int64_t elements = 0;    // of a part, with padding
    DType kept = DType::f32;
    DType wanted = DType::f32;
    bool reordered = false;
    Rearrangement reorder;
    std::size_t cast_staging = 0;  // offsets in scratch
    std::size_t reorder_staging = 0;

    bool is_cast() const { return kept != wanted; }
    std::size_t begin(std::size_t piece) const { return batched ? piece * piece_bytes : 0; }
    // Where the kernel reads the piece of data.
    const void* in(std::size_t piece, const void* data, void* scratch);
    // Where it writes a result that is to come to data, and how that comes there.
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
  // Of each piece, since a primitive keeps its addresses.
  std::vector<std::function<void(const AffineOperands&)>> pieces_;
  Passages passages_;
  std::size_t kernel_scratch_ = 0;  // offsets in scratch
  std::size_t total_ = 0;           // of the pieces, where the result itself is not fp32
  std::size_t part_ = 0;            // what is added: a piece, or everything
  std::size_t part_bias_ = 0;
  std::size_t scratch_bytes_ = 0;
};

}  // namespace lockstep
