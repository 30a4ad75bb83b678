// SPDX-License-Identifier: Apache-2.0
//
// AffineStep: one direction of a convolution or linear layer, ready to run: result = first (*) second, by a
// oneDNN primitive or a kernel of ours, over the whole batch or piece by piece. The tensors are kept in the
// layouts their neighbours use; what the kernel wants in another one is brought over in scratch memory.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "kernels/affine.h"
#include "kernels/cpu/engine.h"

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
  // as they are kept.
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
  std::size_t scratch_bytes() const { return scratch_bytes_; }
  // Bytes of what run() takes.
  struct Sizes {
    std::size_t first = 0;
    std::size_t second = 0;
    std::size_t result = 0;
    std::size_t bias = 0;
  };
  const Sizes& sizes() const { return sizes_; }

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
  // A tensor on its way to or from the kernel.
  struct Operand {
    std::size_t piece_bytes = 0;  // from one piece to the next; 0: not batched
    std::size_t staging = 0;      // offset in scratch, if brought over
    Primitive bridge;             // empty: wanted as it is kept
    bool bridged = false;

    const void* in(const void* data, void* scratch);
  };

  Operand operand(const AffineRoles::Tensor& tensor, const dnnl::memory::desc& wanted, bool is_result);
  std::size_t take_scratch(std::size_t bytes);
  void run_piece(std::size_t piece, const void* first, const void* second, const Arguments& target);

  std::string name_;
  std::vector<AffineFunction> pieces_;  // one for each piece: a primitive keeps its addresses
  Operand first_;
  Operand second_;
  Operand result_;
  bool result_is_batched_ = true;
  Sizes sizes_;
  std::size_t scratchpad_ = 0;  // offsets in scratch
  std::size_t sum_result_ = 0;
  std::size_t sum_bias_ = 0;
  std::size_t scratch_bytes_ = 0;
};

}  // namespace lockstep
