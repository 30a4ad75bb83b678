// SPDX-License-Identifier: Apache-2.0
//
// Optimizers over flat memory: values, gradients and state share offsets, so a step is one kernel over
// everything, not one for each tensor.
#pragma once

#include <memory>
#include <span>

#include "core/buffer.h"
#include "core/stream.h"
#include "kernels/backend.h"

namespace lockstep {

class Optimizer {
 public:
  virtual ~Optimizer() = default;
  // One step with the (summed, already averaged) gradients. Ordered on the stream.
  virtual void step(Stream& stream, float learning_rate) = 0;
  // What a checkpoint must hold besides the parameters: flat, padding included.
  virtual std::span<float> state() = 0;
};

struct SgdOptions {
  float momentum = 0.9f;
  float weight_decay = 0.0f;
};

// See SgdUpdate.
class Sgd final : public Optimizer {
 public:
  // values and gradients must outlive the optimizer and have the same size.
  Sgd(Device device, std::span<float> values, std::span<const float> gradients, const SgdOptions& options);

  void step(Stream& stream, float learning_rate) override;
  std::span<float> state() override;

 private:
  Backend& backend_;
  std::span<float> values_;
  std::span<const float> gradients_;
  SgdOptions options_;
  Buffer momentum_;
};

}  // namespace lockstep
