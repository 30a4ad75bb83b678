// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/affine_step.h"

#include <memory>

#include "core/buffer.h"
#include "kernels/cpu/kernels.h"
#include "kernels/cpu/onednn.h"

namespace lockstep {
namespace {

using dnnl::memory;

std::byte* at(void* scratch, std::size_t offset) { return static_cast<std::byte*>(scratch) + offset; }
const std::byte* at(const void* data, std::size_t offset) {
  return static_cast<const std::byte*>(data) + offset;
}

Primitive bridge_between(const memory::desc& from, const memory::desc& to) {
  return Primitive(dnnl::reorder(dnnl::reorder::primitive_desc(onednn_engine(), from, onednn_engine(), to)),
                   {{DNNL_ARG_FROM, from}, {DNNL_ARG_TO, to}});
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
      result_is_batched_(roles.result.batched),
      sizes_{.first = roles.first.kept.get_size(),
             .second = roles.second.kept.get_size(),
             .result = roles.result.kept.get_size(),
             .bias = static_cast<std::size_t>(roles.bias_elements) * sizeof(float)} {
  const int pieces = candidate.pieces;
  const auto tensor = [&](const AffineRoles::Tensor& role, const memory::desc& wanted, bool is_result) {
    Operand made = operand(role, wanted, is_result);
    if (pieces > 1 && role.batched) {
      CHECK(!made.bridged, "a batch in pieces cannot change its layout");
      const auto samples = static_cast<std::size_t>(onednn::dims_of(wanted)[0]);
      made.piece_bytes = samples * static_cast<std::size_t>(onednn::strides_of(role.kept)[0]) * sizeof(float);
    }
    return made;
  };
  first_ = tensor(roles.first, candidate.first, false);
  second_ = tensor(roles.second, candidate.second, false);
  result_ = tensor(roles.result, candidate.result, true);
  scratchpad_ = take_scratch(candidate.scratchpad.get_size());
  if (!result_is_batched_) {
    sum_result_ = take_scratch(sizes_.result);
    sum_bias_ = take_scratch(sizes_.bias);
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
                                        bool is_result) {
  const memory::dims wanted_dims = onednn::dims_of(wanted);
  memory::desc kept = tensor.kept;
  // Groups: the same plain memory under other dimensions.
  if (onednn::dims_of(kept).size() != wanted_dims.size()) kept = kept.reshape(wanted_dims);
  Operand made;
  made.bridged = onednn::dims_of(kept) == wanted_dims && kept != wanted;  // a piece is wanted as it is kept
  if (!made.bridged) return made;
  made.staging = take_scratch(wanted.get_size());
  made.bridge = is_result ? bridge_between(wanted, kept) : bridge_between(kept, wanted);
  return made;
}

const void* AffineStep::Operand::in(const void* data, void* scratch) {
  if (!bridged) return data;
  bridge.run({data, at(scratch, staging)});
  return at(scratch, staging);
}

void AffineStep::run(const Arguments& arguments) {
  const void* first = first_.in(arguments.first, arguments.scratch);
  const void* second = second_.in(arguments.second, arguments.scratch);
  CHECK(arguments.write == Write::overwrite || !result_is_batched_, "{} cannot accumulate", name_);
  for (std::size_t piece = 0; piece < pieces_.size(); ++piece) {
    Arguments target = arguments;
    if (result_is_batched_) {
      target.result = at(arguments.result, piece * result_.piece_bytes);
    } else if (piece > 0) {
      target.write = Write::accumulate;
    }
    run_piece(piece, at(first, piece * first_.piece_bytes), at(second, piece * second_.piece_bytes), target);
  }
}

void AffineStep::run_piece(std::size_t piece, const void* first, const void* second,
                           const Arguments& arguments) {
  void* scratch = arguments.scratch;
  const bool adds = arguments.write == Write::accumulate;
  void* result = adds ? at(scratch, sum_result_) : arguments.result;
  float* bias =
      adds && arguments.bias != nullptr ? reinterpret_cast<float*>(at(scratch, sum_bias_)) : arguments.bias;
  void* wanted = result_.bridged ? at(scratch, result_.staging) : result;
  pieces_[piece]({first, second, wanted, at(scratch, scratchpad_), bias});
  if (result_.bridged) result_.bridge.run({wanted, result});
  if (!adds) return;
  cpu_add({.count = static_cast<std::int64_t>(sizes_.result / sizeof(float)),
           .a = arguments.result,
           .b = result,
           .sum = arguments.result});
  if (bias == nullptr) return;
  cpu_add({.count = static_cast<std::int64_t>(sizes_.bias / sizeof(float)),
           .a = arguments.bias,
           .b = bias,
           .sum = arguments.bias});
}

}  // namespace lockstep
