// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/affine_product.h"

#include <memory>
#include <string_view>
#include <utility>

#include "core/tensor/buffer.h"
#include "kernels/cpu/elementwise.h"
#include "kernels/cpu/layout.h"
#include "kernels/cpu/onednn.h"

namespace lockstep {
namespace {

using dnnl::memory;

std::byte* at(void* scratch, std::size_t offset) { return static_cast<std::byte*>(scratch) + offset; }
const std::byte* at(const void* data, std::size_t offset) {
  return static_cast<const std::byte*>(data) + offset;
}

// The operand (x, w or y) that the direction writes.
template <typename Operands>
auto& result_of(AffineDirection direction, Operands& operands) {
  return direction == AffineDirection::forward         ? operands.y
         : direction == AffineDirection::backward_data ? operands.x
                                                       : operands.w;
}

Primitive primitive_of(const CpuProduct::Problem& problem, const CpuProduct::Kernel& kernel) {
  const memory::desc bias =
      problem.bias_elements == 0
          ? memory::desc()
          : memory::desc({problem.bias_elements}, memory::data_type::f32, memory::format_tag::x);
  const bool forward = problem.direction == AffineDirection::forward;
  const bool data = problem.direction == AffineDirection::backward_data;
  const bool weights = problem.direction == AffineDirection::backward_weights;
  return Primitive(kernel.primitive, {{data ? DNNL_ARG_DIFF_SRC : DNNL_ARG_SRC, kernel.wanted.x},
                                      {weights ? DNNL_ARG_DIFF_WEIGHTS : DNNL_ARG_WEIGHTS, kernel.wanted.w},
                                      {forward ? DNNL_ARG_DST : DNNL_ARG_DIFF_DST, kernel.wanted.y},
                                      {forward ? DNNL_ARG_BIAS : DNNL_ARG_DIFF_BIAS, bias},
                                      {DNNL_ARG_SCRATCHPAD, kernel.scratch}});
}

std::function<void(const AffineOperands&)> function_of(const CpuProduct::Problem& problem,
                                                       const CpuProduct::Kernel& kernel) {
  return [primitive = std::make_shared<Primitive>(primitive_of(problem, kernel))](const AffineOperands& o) {
    primitive->run({o.x, o.w, o.y, o.bias, o.scratch});
  };
}

bool is_reference_primitive(const dnnl::primitive& primitive) {
  const char* name = nullptr;
  const dnnl_status_t status =
      dnnl_primitive_desc_query(primitive.get_primitive_desc(), dnnl_query_impl_info_str, 0, &name);
  return status == dnnl_success && std::string_view(name).starts_with("ref");
}

}  // namespace

memory::desc piece_of(const memory::desc& kept, int pieces) {
  if (pieces == 1) return kept;
  memory::dims dims = onednn::dims_of(kept);
  CHECK(dims[0] % pieces == 0, "{} samples cannot be divided into {} equal pieces", dims[0], pieces);
  dims[0] /= pieces;
  return kept.submemory_desc(dims, memory::dims(dims.size(), 0));
}

CpuProduct::CpuProduct(const Problem& problem, const Kernel& kernel)
    : problem_(problem), name_(kernel.name), type_(to_dtype(onednn::type_of(problem.kept.x))) {
  const bool sums = problem.direction == AffineDirection::backward_weights;
  AffineDescs kept = problem.kept;
  if (sums) kept.w = onednn::with_type(kept.w, memory::data_type::f32);  // the fp32 sum
  result_of(problem.direction, passages_).is_result = true;
  plan(passages_.x, kept.x, kernel.wanted.x, kernel.pieces);
  plan(passages_.w, kept.w, kernel.wanted.w, 1);
  plan(passages_.y, kept.y, kernel.wanted.y, kernel.pieces);
  kernel_scratch_ = take_scratch(kernel.scratch.get_size());
  if (sums) {
    const std::size_t bytes = kept.w.get_size();
    if (type_ != DType::f32) total_ = take_scratch(bytes);
    if (type_ == DType::f32 || kernel.pieces > 1) part_ = take_scratch(bytes);
    part_bias_ = take_scratch(static_cast<std::size_t>(problem.bias_elements) * sizeof(float));
  }
  if (kernel.function) {
    pieces_.push_back(kernel.function);
    return;
  }
  is_reference_ = is_reference_primitive(kernel.primitive);
  for (int piece = 0; piece < kernel.pieces; ++piece) pieces_.push_back(function_of(problem, kernel));
}

AffineProduct CpuProduct::as_product(CpuProduct product) {
  auto shared = std::make_shared<CpuProduct>(std::move(product));
  return {.name = shared->name_,
          .scratch_bytes = shared->scratch_bytes_,
          .adds = shared->problem_.direction == AffineDirection::backward_weights,
          .run = [shared](Stream&, const AffineOperands& operands) { shared->run(operands); }};
}

std::size_t CpuProduct::take_scratch(std::size_t bytes) {
  const std::size_t offset = scratch_bytes_;
  scratch_bytes_ += align_up(bytes);
  return offset;
}

void CpuProduct::plan(Passage& passage, memory::desc kept, const memory::desc& wanted, int pieces) {
  const memory::dims wanted_dims = onednn::dims_of(wanted);
  // Groups: the same plain memory with other dimensions.
  if (onednn::dims_of(kept).size() != wanted_dims.size()) kept = kept.reshape(wanted_dims);
  passage.kept = to_dtype(onednn::type_of(kept));
  passage.wanted = to_dtype(onednn::type_of(wanted));
  passage.batched = pieces > 1;
  passage.elements = static_cast<std::int64_t>(kept.get_size() / size_of(passage.kept));
  const memory::desc cast = onednn::with_type(kept, onednn::type_of(wanted));
  if (passage.batched) {
    passage.elements = wanted_dims[0] * onednn::strides_of(kept)[0];
    passage.piece_bytes = static_cast<std::size_t>(passage.elements) * size_of(passage.kept);
    CHECK(piece_of(cast, pieces) == wanted, "a batch in pieces cannot change its layout");
  } else if (cast != wanted) {
    passage.reordered = true;
    passage.reorder_staging = take_scratch(wanted.get_size());
    passage.reorder = passage.is_result ? Rearrangement(wanted, cast) : Rearrangement(cast, wanted);
  }
  if (passage.is_cast()) {
    passage.cast_staging = take_scratch(static_cast<std::size_t>(passage.elements) * size_of(passage.wanted));
  }
}

const void* CpuProduct::Passage::in(std::size_t piece, const void* data, void* scratch) {
  const bool brought = piece > 0 && !batched;
  const void* place = at(data, begin(piece));
  if (is_cast()) {
    void* staging = at(scratch, cast_staging);
    if (!brought) {
      cpu_cast({.count = elements, .from_type = kept, .to_type = wanted, .from = place, .to = staging});
    }
    place = staging;
  }
  if (!reordered) return place;
  void* staging = at(scratch, reorder_staging);
  if (!brought) reorder.run(place, staging);
  return staging;
}

void* CpuProduct::Passage::target(void* data, void* scratch) const {
  if (reordered) return at(scratch, reorder_staging);
  return is_cast() ? at(scratch, cast_staging) : data;
}

void CpuProduct::Passage::out(void* data, void* scratch) {
  void* staging = at(scratch, cast_staging);
  if (reordered) reorder.run(at(scratch, reorder_staging), is_cast() ? staging : data);
  if (!is_cast()) return;
  cpu_cast({.count = elements, .from_type = wanted, .to_type = kept, .from = staging, .to = data});
}

void CpuProduct::run(const AffineOperands& operands) {
  if (problem_.direction == AffineDirection::backward_weights) return run_sum(operands);
  CHECK(operands.write == Write::overwrite, "{} does not support Write::accumulate", name_);
  run_batched(operands);
}

void CpuProduct::run_batched(const AffineOperands& operands) {
  const Passage& passage = result_of(problem_.direction, passages_);
  void* result = const_cast<void*>(result_of(problem_.direction, operands));
  for (std::size_t piece = 0; piece < pieces_.size(); ++piece) {
    void* part = at(result, passage.begin(piece));
    run_piece(piece, operands, part, operands.bias);
    if (problem_.activation == Activation::none) continue;
    cpu_activate({.activation = problem_.activation,
                  .type = passage.kept,
                  .count = passage.elements,
                  .x = part,
                  .y = part});
  }
}

void CpuProduct::run_sum(const AffineOperands& operands) {
  void* scratch = operands.scratch;
  void* gradient = const_cast<void*>(operands.w);
  const bool accumulates = operands.write == Write::accumulate;
  const bool rounds = type_ != DType::f32;
  void* total = rounds ? at(scratch, total_) : gradient;
  const std::int64_t count = passages_.w.elements;
  for (std::size_t piece = 0; piece < pieces_.size(); ++piece) {
    const bool adds = piece > 0 || (accumulates && !rounds);
    const bool adds_bias = operands.bias != nullptr && (piece > 0 || accumulates);
    void* part = adds ? at(scratch, part_) : total;
    float* bias = adds_bias ? reinterpret_cast<float*>(at(scratch, part_bias_)) : operands.bias;
    run_piece(piece, operands, part, bias);
    if (adds) cpu_add({.count = count, .a = total, .b = part, .sum = total});
    if (adds_bias)
      cpu_add({.count = problem_.bias_elements, .a = operands.bias, .b = bias, .sum = operands.bias});
  }
  if (!rounds) return;
  if (accumulates) {
    cpu_sum_into({.type = type_, .count = count, .from = static_cast<const float*>(total), .to = gradient});
  } else {
    cpu_cast({.count = count, .from_type = DType::f32, .to_type = type_, .from = total, .to = gradient});
  }
}

void CpuProduct::run_piece(std::size_t piece, const AffineOperands& operands, void* result, float* bias) {
  void* scratch = operands.scratch;
  const auto place = [&](Passage& passage, const void* data) -> const void* {
    return passage.is_result ? passage.target(result, scratch) : passage.in(piece, data, scratch);
  };
  pieces_[piece]({.x = place(passages_.x, operands.x),
                  .w = place(passages_.w, operands.w),
                  .y = place(passages_.y, operands.y),
                  .bias = bias,
                  .scratch = at(scratch, kernel_scratch_)});
  result_of(problem_.direction, passages_).out(result, scratch);
}

}  // namespace lockstep
