// SPDX-License-Identifier: Apache-2.0
//
// Access to oneDNN for the CPU kernels: the process's engine and stream, conversion of errors, and primitives
// that run on raw pointers without allocating. Primitives run inline on the calling thread's OpenMP team.
#pragma once

#include <initializer_list>
#include <string_view>
#include <vector>

#include <oneapi/dnnl/dnnl.hpp>

#include "core/error.h"
#include "core/system/processors.h"
#include "kernels/cpu/layout.h"

namespace lockstep {

const dnnl::engine& onednn_engine();

// True if oneDNN may use this set: the processor has it, and ONEDNN_MAX_CPU_ISA allows it.
bool onednn_has(dnnl::cpu_isa set);
// The largest set that oneDNN may use, without extensions such as AMX.
InstructionSet onednn_instruction_set();

// Attributes of a primitive whose scratch memory the caller provides. No activation is fused, because
// oneDNN's ReLU and clip turn NaN into 0.
dnnl::primitive_attr scratchpad_attributes();

namespace detail {
[[noreturn]] void onednn_failed(const dnnl::error& error, std::string_view planned);
}

// Runs function and converts dnnl::error into Error. planned describes the operation for the message:
// "pooling of [8, 16, 7, 7]".
template <typename F>
auto plan_with_onednn(std::string_view planned, F&& function) {
  try {
    return function();
  } catch (const dnnl::error& error) {
    detail::onednn_failed(error, planned);
  }
}

// A primitive with its arguments, bound once; run() only sets addresses.
class Primitive {
 public:
  struct Argument {
    int index = 0;  // DNNL_ARG_*
    dnnl::memory::desc desc;
  };

  Primitive() = default;
  Primitive(const dnnl::primitive& primitive, std::initializer_list<Argument> arguments);

  // The arguments' addresses, in the constructor's order; the address of an argument without bytes is
  // ignored.
  void run(std::initializer_list<const void*> addresses);

 private:
  struct Slot {
    dnnl::memory memory;  // empty for an argument without bytes
    const void* address = nullptr;
  };

  dnnl::primitive primitive_;
  std::vector<Slot> slots_;
  std::vector<dnnl_exec_arg_t> arguments_;  // refers to the slots with bytes
};

}  // namespace lockstep
