// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/engine.h"

#include "kernels/cpu/onednn.h"

#define DNNL_CHECK(call)                                                          \
  do {                                                                            \
    const dnnl_status_t status_of_call = (call);                                  \
    CHECK(status_of_call == dnnl_success, "oneDNN: {}", name_of(status_of_call)); \
  } while (false)

namespace lockstep {
namespace {

std::string_view name_of(dnnl_status_t status) {
  switch (status) {
    case dnnl_success:
      return "success";
    case dnnl_out_of_memory:
      return "out of memory";
    case dnnl_invalid_arguments:
      return "invalid arguments";
    case dnnl_unimplemented:
      return "not implemented";
    case dnnl_runtime_error:
      return "runtime error";
    case dnnl_not_required:
      return "not required";
    default:
      return "unknown status";
  }
}

const dnnl::stream& onednn_stream() {
  static const dnnl::stream stream(onednn_engine());
  return stream;
}

}  // namespace

const dnnl::engine& onednn_engine() {
  static const dnnl::engine engine(dnnl::engine::kind::cpu, 0);
  return engine;
}

// oneDNN's sets are sets of bits.
bool onednn_has(dnnl::cpu_isa set) {
  const auto wanted = static_cast<unsigned>(set);
  return (static_cast<unsigned>(dnnl::get_effective_cpu_isa()) & wanted) == wanted;
}

InstructionSet onednn_instruction_set() {
  if (onednn_has(dnnl::cpu_isa::avx512_core)) return InstructionSet::avx512;
  return onednn_has(dnnl::cpu_isa::avx2) ? InstructionSet::avx2 : InstructionSet::baseline;
}

dnnl::primitive_attr scratchpad_attributes() {
  dnnl::primitive_attr attributes;
  attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  return attributes;
}

void detail::onednn_failed(const dnnl::error& error, std::string_view planned) {
  throw Error(exit_code::failed,
              fmt::format("oneDNN cannot plan {}: {} ({})", planned, error.what(), name_of(error.status)));
}

Primitive::Primitive(const dnnl::primitive& primitive, std::initializer_list<Argument> arguments)
    : primitive_(primitive) {
  for (const Argument& argument : arguments) {
    Slot& slot = slots_.emplace_back();
    if (argument.desc.get_size() == 0) continue;
    slot.memory = dnnl::memory(argument.desc, onednn_engine(), nullptr);
    arguments_.push_back({.arg = argument.index, .memory = slot.memory.get()});
  }
}

void Primitive::run(std::initializer_list<const void*> addresses) {
  CHECK(addresses.size() == slots_.size(), "the primitive takes {} addresses, not {}", slots_.size(),
        addresses.size());
  Slot* slot = slots_.data();
  for (const void* address : addresses) {
    // Setting an address does not write the tensor's padding; the primitive writes that of its result.
    if (slot->memory && slot->address != address) {
      DNNL_CHECK(onednn::set_address(slot->memory.get(), const_cast<void*>(address), onednn_stream().get()));
      slot->address = address;
    }
    ++slot;
  }
  DNNL_CHECK(dnnl_primitive_execute(primitive_.get(), onednn_stream().get(),
                                    static_cast<int>(arguments_.size()), arguments_.data()));
}

}  // namespace lockstep
