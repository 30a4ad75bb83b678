// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/affine_step.h"

#include <memory>

#include "core/buffer.h"
#include "kernels/cpu/kernels.h"
#include "kernels/cpu/layout.h"
#include "kernels/cpu/onednn.h"

namespace lockstep {
namespace {

using dnnl::memory;

std::byte* at(void* scratch, std::size_t offset) { return static_cast<std::byte*>(scratch) + offset; }
const std::byte* at(const void* data, std::size_t offset) {
  return static_cast<const std::byte*>(data) + offset;
}

AffineFunction function_of(const AffineRoles& roles, const AffineCandidate& candidate) {
  const memory::desc bias =
      roles.bias_elements == 0
          ? memory::desc()
          : memory::desc({roles.bias_elements}, memory::data_type::f32, memory::format_tag::x);
  const std::initializer_list<Primitive::Argument> arguments = {{roles.first.argument, candidate.first},
                                                                {roles.second.argument, candidate.second},
                                                                {roles.result.argument, candidate.result},
                                                                {DNNL_ARG_SCRATCHPAD, candidate.scratchpad},
                                                                {roles.bias_argument, bias}};
  return [primitive = std::make_shared<Primitive>(candidate.primitive, arguments)](const AffineCall& call) {
    primitive->run({call.first, call.second, call.result, call.scratchpad, call.bias});
  };
}

}  // namespace

memory::desc piece_of(const memory::desc& kept, int pieces) {
  if (pieces == 1) return kept;
  memory::dims dims = onednn::dims_of(kept);
  CHECK(dims[0] % pieces == 0, "{} samples in {} pieces", dims[0], pieces);
  dims[0] /= pieces;
  return kept.submemory_desc(dims, memory::dims(dims.size(), 0));
}

AffineStep::AffineStep(const AffineRoles& roles, const AffineCandidate& candidate)
    : name_(candidate.name),
      roles_(roles),
      type_(to_dtype(onednn::type_of(roles.first.kept))),
      result_is_batched_(roles.result.batched),
      sizes_{.first = roles.first.kept.get_size(),
             .second = roles.second.kept.get_size(),
             .result = roles.result.kept.get_size(),
             .bias = static_cast<std::size_t>(roles.bias_elements) * sizeof(float)} {
  const int pieces = candidate.pieces;
  first_ = operand(roles.first, candidate.first, pieces, false);
  second_ = operand(roles.second, candidate.second, pieces, false);
  AffineRoles::Tensor result = roles.result;
  if (!result_is_batched_) result.kept = onednn::with_type(result.kept, memory::data_type::f32);  // the total
  result_ = operand(result, candidate.result, pieces, true);
  scratchpad_ = take_scratch(candidate.scratchpad.get_size());
  if (!result_is_batched_) {
    const std::size_t bytes = result.kept.get_size();
    if (type_ != DType::f32) total_ = take_scratch(bytes);
    if (type_ == DType::f32 || pieces > 1) part_ = take_scratch(bytes);
    part_bias_ = take_scratch(sizes_.bias);
  }
  if (candidate.function) {
    pieces_.push_back(candidate.function);
    return;
  }
  for (int piece = 0; piece < pieces; ++piece) pieces_.push_back(function_of(roles, candidate));
}

std::size_t AffineStep::take_scratch(std::size_t bytes) {
  const std::size_t offset = scratch_bytes_;
  scratch_bytes_ += align_up(bytes);
  return offset;
}

AffineStep::Operand AffineStep::operand(const AffineRoles::Tensor& tensor, const memory::desc& wanted,
                                        int pieces, bool is_result) {
  const memory::dims wanted_dims = onednn::dims_of(wanted);
  memory::desc kept = tensor.kept;
  // Groups: the same plain memory under other dimensions.
  if (onednn::dims_of(kept).size() != wanted_dims.size()) kept = kept.reshape(wanted_dims);
  Operand made;
  made.kept = to_dtype(onednn::type_of(kept));
  made.wanted = to_dtype(onednn::type_of(wanted));
  made.batched = pieces > 1 && tensor.batched;
  made.elements = static_cast<std::int64_t>(kept.get_size() / size_of(made.kept));
  const memory::desc cast = onednn::with_type(kept, onednn::type_of(wanted));
  if (made.batched) {
    made.elements = wanted_dims[0] * onednn::strides_of(kept)[0];
    made.piece_bytes = static_cast<std::size_t>(made.elements) * size_of(made.kept);
    CHECK(piece_of(cast, pieces) == wanted, "a batch in pieces cannot change its layout");
  } else if (cast != wanted) {
    made.reordered = true;
    made.reorder_staging = take_scratch(wanted.get_size());
    made.reorder = is_result ? Rearrangement(wanted, cast) : Rearrangement(cast, wanted);
  }
  if (made.is_cast()) {
    made.cast_staging = take_scratch(static_cast<std::size_t>(made.elements) * size_of(made.wanted));
  }
  return made;
}

const void* AffineStep::Operand::in(std::size_t piece, const void* data, void* scratch) {
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

void* AffineStep::Operand::target(void* data, void* scratch) const {
  if (reordered) return at(scratch, reorder_staging);
  return is_cast() ? at(scratch, cast_staging) : data;
}

void AffineStep::Operand::out(void* data, void* scratch) {
  void* staging = at(scratch, cast_staging);
  if (reordered) reorder.run(at(scratch, reorder_staging), is_cast() ? staging : data);
  if (!is_cast()) return;
  cpu_cast({.count = elements, .from_type = wanted, .to_type = kept, .from = staging, .to = data});
}

void AffineStep::run(const Arguments& arguments) {
  CHECK(arguments.write == Write::overwrite || !result_is_batched_, "{} cannot accumulate", name_);
  result_is_batched_ ? run_batched(arguments) : run_sum(arguments);
}

void AffineStep::run_batched(const Arguments& arguments) {
  for (std::size_t piece = 0; piece < pieces_.size(); ++piece) {
    auto* result = static_cast<std::byte*>(arguments.result) + result_.begin(piece);
    run_piece(piece, arguments, result, arguments.bias);
  }
}

void AffineStep::run_sum(const Arguments& arguments) {
  void* scratch = arguments.scratch;
  const bool accumulates = arguments.write == Write::accumulate;
  const bool rounds = type_ != DType::f32;
  void* total = rounds ? at(scratch, total_) : arguments.result;
  const std::int64_t count = result_.elements;
  const auto bias_count = static_cast<std::int64_t>(sizes_.bias / sizeof(float));
  for (std::size_t piece = 0; piece < pieces_.size(); ++piece) {
    const bool adds = piece > 0 || (accumulates && !rounds);
    const bool adds_bias = arguments.bias != nullptr && (piece > 0 || accumulates);
    void* part = adds ? at(scratch, part_) : total;
    float* bias = adds_bias ? reinterpret_cast<float*>(at(scratch, part_bias_)) : arguments.bias;
    run_piece(piece, arguments, part, bias);
    if (adds) cpu_add({.count = count, .a = total, .b = part, .sum = total});
    if (adds_bias) cpu_add({.count = bias_count, .a = arguments.bias, .b = bias, .sum = arguments.bias});
  }
  if (!rounds) return;
  if (accumulates) {
    cpu_sum_into(
        {.type = type_, .count = count, .from = static_cast<const float*>(total), .to = arguments.result});
  } else {
    cpu_cast(
        {.count = count, .from_type = DType::f32, .to_type = type_, .from = total, .to = arguments.result});
  }
}

void AffineStep::run_piece(std::size_t piece, const Arguments& arguments, void* result, float* bias) {
  void* scratch = arguments.scratch;
  const void* first = first_.in(piece, arguments.first, scratch);
  const void* second = second_.in(piece, arguments.second, scratch);
  pieces_[piece]({first, second, result_.target(result, scratch), at(scratch, scratchpad_), bias});
  result_.out(result, scratch);
}

}  // namespace lockstep
