// SPDX-License-Identifier: Apache-2.0
#include "launch/train/parameter_reader.h"

#include "models/network_state.h"

namespace lockstep {
namespace {

StateTensor tensor_of(const Parameter& parameter, float* values) {
  return {.name = parameter.name,
          .layout = parameter.layout,
          .value = values,
          .elements = parameter.layout.physical_elements()};
}

}  // namespace

std::span<const float> ParameterReader::read(const StateTensor& tensor) {
  grow_staging(staging_, tensor, network_.device());
  plain_.resize(static_cast<std::size_t>(tensor.layout.shape().elements()));
  read_plain(network_.backend(), stream_, tensor, plain_, staging_);
  stream_.synchronize();
  return plain_;
}

std::span<const float> ParameterReader::read(const Parameter& parameter) {
  return read(tensor_of(parameter, parameter.value));
}

std::span<const float> ParameterReader::read_gradient(const Parameter& parameter) {
  if (parameter.gradient_type == DType::f32)
    return read(tensor_of(parameter, static_cast<float*>(parameter.gradient)));
  const std::int64_t count = parameter.layout.physical_elements();
  const auto bytes = static_cast<std::size_t>(count) * sizeof(float);
  if (wide_.bytes() < bytes) wide_ = Buffer(bytes, network_.device());
  network_.backend().cast(stream_, {.count = count,
                                    .from_type = parameter.gradient_type,
                                    .to_type = DType::f32,
                                    .from = parameter.gradient,
                                    .to = wide_.data()});
  return read(tensor_of(parameter, reinterpret_cast<float*>(wide_.data())));
}

}  // namespace lockstep
