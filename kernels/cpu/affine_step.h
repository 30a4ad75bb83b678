// SPDX-License-Identifier: Apache-2.0
//
// AffineStep: one direction of a convolution or linear layer, ready to run: result = first (*) second, by a
// oneDNN primitive or a kernel of ours, over the whole batch or piece by piece. The tensors are kept in the
// layouts and the type their neighbours use; what the kernel wants in another one is brought over in scratch
// memory. So fp32 kernels serve tensors of halves, too: operands come in exactly, a result is rounded once.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "kernels/affine.h"
#include "kernels/cpu/engine.h"
#include "kernels/cpu/rearrangement.h"

namespace lockstep {

// What a direction computes on: the same for every candidate.
struct AffineRoles {
  struct Tensor {
    int argument = 0;  // DNNL_ARG_*
    dnnl::memory::desc kept;
    bool batched = true;  // its first dimension is the batch
  };
  Tensor first;
  Tensor second;
  Tensor result;
  int bias_argument = 0;  // read by forward, written by the weights' gradient; 0: none
  std::int64_t bias_elements = 0;
};

// What a kernel computes on, where and as it wants it.
struct AffineCall {
  const void* first = nullptr;
  const void* second = nullptr;
  void* result = nullptr;
  void* scratchpad = nullptr;
  float* bias = nullptr;
};
using AffineFunction = std::function<void(const AffineCall&)>;

// One way to compute it.
struct AffineCandidate {
  std::string name;
  dnnl::primitive primitive;  // or, where that is empty, function
  // What the kernel wants, for one piece of the batch. With several pieces batched tensors must be wanted
  // as they are kept, but for their type. A result that is not batched is a sum over the batch: fp32.
  dnnl::memory::desc first;
  dnnl::memory::desc second;
  dnnl::memory::desc result;
  dnnl::memory::desc scratchpad;
  int pieces = 1;
  AffineFunction function = {};
};

// The part of a batched tensor that one of `pieces` equal pieces of the batch is.
dnnl::memory::desc piece_of(const dnnl::memory::desc& kept, int pieces);

class AffineStep {
 public:
  AffineStep() = default;
  AffineStep(const AffineRoles& roles, const AffineCandidate& candidate);

  const std::string& name() const { return name_; }
  const AffineRoles& roles() const { return roles_; }
  std::size_t scratch_bytes() const { return scratch_bytes_; }
  // Bytes of what run() takes.
  struct Sizes {
    std::size_t first = 0;
    std::size_t second = 0;
    std::size_t result = 0;
    std::size_t bias = 0;
  };
  const Sizes& sizes() const { return sizes_; }
  // Of all tensors but the bias.
  DType type() const { return type_; }

  // bias is null exactly where the roles have none. Write::accumulate only where result is not batched.
  struct Arguments {
    const void* first = nullptr;
    const void* second = nullptr;
    void* result = nullptr;
    float* bias = nullptr;
    Write write = Write::overwrite;
    void* scratch = nullptr;
  };
  void run(const Arguments& arguments);

 private:
  // A tensor on its way to or from the kernel: cast where it is kept in another type, then reordered where it
  // is kept in another layout; a result the other way round.
  struct Operand {
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

  Operand operand(const AffineRoles::Tensor& tensor, const dnnl::memory::desc& wanted, int pieces,
                  bool is_result);
  std::size_t take_scratch(std::size_t bytes);
  void run_batched(const Arguments& arguments);
  void run_sum(const Arguments& arguments);
  void run_piece(std::size_t piece, const Arguments& arguments, void* result, float* bias);

  std::string name_;
  AffineRoles roles_;
  DType type_ = DType::f32;
  std::vector<AffineFunction> pieces_;  // one for each piece: a primitive keeps its addresses
  Operand first_;
  Operand second_;
  Operand result_;
  bool result_is_batched_ = true;
  Sizes sizes_;
  std::size_t scratchpad_ = 0;  // offsets in scratch
  std::size_t total_ = 0;       // of the pieces, where the result itself is not fp32
  std::size_t part_ = 0;        // what is added: a piece, or everything
  std::size_t part_bias_ = 0;
  std::size_t scratch_bytes_ = 0;
};

}  // namespace lockstep
