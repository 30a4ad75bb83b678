// SPDX-License-Identifier: Apache-2.0
//
// Pass: how one forward or backward over a Network is to run.
#pragma once

#include <cstdint>

#include "core/parameter.h"
#include "core/stream.h"
#include "kernels/rank_gather.h"

namespace lockstep {

enum class Mode { training, evaluation };

enum class Direction { forward, recompute, backward_parameters, backward_inputs };

// Told when each layer began and ended. Only for looking: it makes the host wait for every layer.
class LayerObserver {
 public:
  virtual ~LayerObserver() = default;
  // node counts in forward order: Network::nodes().
  virtual void layer_ran(std::size_t node, Direction direction, std::int64_t begin_ns,
                         std::int64_t end_ns) = 0;
};

struct Pass {
  Stream& stream;
  Mode mode = Mode::training;
  // Each sample's loss gradient is seeded with gradient_scale * *loss_scale: 1 / global batch, and the loss
  // scale of mixed precision, which lies in device memory.
  float gradient_scale = 1.0f;
  const float* loss_scale = nullptr;  // null: 1
  // The first micro-batch of a step overwrites gradients, later ones add.
  Write gradients = Write::overwrite;
  // Told of each gradient when it is final; set on the last micro-batch only.
  GradientListener* listener = nullptr;
  // Asked for each parameter before forward reads it.
  ParameterGate* gate = nullptr;
  LayerObserver* observer = nullptr;
  // Where batch norm is synchronised over ranks: gathers what they tell. Not used in evaluation.
  RankGather* across = nullptr;
  // A forward that was run before, for backward's sake: it changes no state.
  bool repeats = false;
};

}  // namespace lockstep
