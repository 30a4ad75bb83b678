// SPDX-License-Identifier: Apache-2.0
#include "models/optimizer.h"

#include "core/error.h"

namespace lockstep {

Sgd::Sgd(Device device, std::span<float> values, std::span<const float> gradients, const SgdOptions& options)
    : backend_(backend_for(device)),
      values_(values),
      gradients_(gradients),
      options_(options),
      momentum_(values.size_bytes(), device) {
  CHECK(values.size() == gradients.size(), "{} values, {} gradients", values.size(), gradients.size());
}

void Sgd::step(Stream& stream, float learning_rate) {
  backend_.sgd_update(stream, {.count = static_cast<std::int64_t>(values_.size()),
                               .value = values_.data(),
                               .gradient = gradients_.data(),
                               .momentum_buffer = reinterpret_cast<float*>(momentum_.data()),
                               .learning_rate = learning_rate,
                               .momentum = options_.momentum,
                               .weight_decay = options_.weight_decay});
}

std::span<float> Sgd::state() { return {reinterpret_cast<float*>(momentum_.data()), values_.size()}; }

}  // namespace lockstep
