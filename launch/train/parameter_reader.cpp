// SPDX-License-Identifier: Apache-2.0
#include "launch/train/parameter_reader.h"

#include <algorithm>

#include "models/network_state.h"

namespace lockstep {
namespace {

StateTensor tensor_of(const Parameter& parameter, float* values) {
  return {.name = parameter.name,
          .layout = parameter.layout,
          .value = values,
          .elements = parameter.layout.physical_elements()};
}

// Converts on the host, because a GPU may have no memory left for the values in fp32.
template <typename Type>
void read_as_floats(Stream& stream, const void* from, std::vector<float>& to) {
  std::vector<Type> values(to.size());
  stream.copy(values.data(), from, values.size() * sizeof(Type));
  stream.synchronize();
  std::ranges::transform(values, to.begin(), [](Type value) { return static_cast<float>(value); });
}

}  // namespace

std::span<const float> ParameterReader::read(const StateTensor& tensor) {
  plain_.resize(static_cast<std::size_t>(tensor.layout.shape().elements()));
  read_plain(network_.backend(), stream_, tensor, plain_);
  return plain_;
}

std::span<const float> ParameterReader::read(const Parameter& parameter) {
  return read(tensor_of(parameter, parameter.value));
}

std::span<const float> ParameterReader::read_gradient(const Parameter& parameter) {
  if (parameter.gradient_type == DType::f32)
    return read(tensor_of(parameter, static_cast<float*>(parameter.gradient)));
  wide_.resize(static_cast<std::size_t>(parameter.layout.physical_elements()));
  if (parameter.gradient_type == DType::f16)
    read_as_floats<Half>(stream_, parameter.gradient, wide_);
  else
    read_as_floats<BFloat16>(stream_, parameter.gradient, wide_);
  return read(tensor_of(parameter, wide_.data()));
}

}  // namespace lockstep
