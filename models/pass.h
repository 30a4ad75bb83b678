// SPDX-License-Identifier: Apache-2.0
//
// Pass: the parameters of one forward or backward of a Network.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "core/stream.h"
#include "core/tensor/parameter.h"
#include "kernels/rank_gather.h"

namespace lockstep {

enum class Mode { training, evaluation };

enum class Direction { forward, recompute, backward_parameters, backward_inputs };
inline constexpr std::array kDirections = {Direction::forward, Direction::recompute,
                                           Direction::backward_parameters, Direction::backward_inputs};

// Called with the begin and end of each layer, on the host's clock.
class LayerObserver {
 public:
  virtual ~LayerObserver() = default;
  // node: index into Network::nodes().
  virtual void layer_ran(std::size_t node, Direction direction, std::int64_t begin_ns,
                         std::int64_t end_ns) = 0;
};

// Marks the begin and end of each layer in the order of the stream, for example by events. The host does not
// wait, and the calls may be recorded.
class LayerMarker {
 public:
  virtual ~LayerMarker() = default;
  virtual void layer_begins() = 0;
  virtual void layer_ends(std::size_t node, Direction direction) = 0;
};

struct Pass {
  Stream& stream;
  Mode mode = Mode::training;
  // Each sample's loss gradient is multiplied by gradient_scale * *loss_scale: 1 / global batch, and the loss
  // scale of mixed precision, which lies in device memory.
  float gradient_scale = 1.0f;
  const float* loss_scale = nullptr;  // null: 1
  // The first micro-batch of a step overwrites gradients, later ones add.
  Write gradients = Write::overwrite;
  // Called for each gradient when it is final; set on the last micro-batch only.
  GradientListener* listener = nullptr;
  // Called for each parameter before forward reads it.
  ParameterGate* gate = nullptr;
  LayerObserver* observer = nullptr;  // for diagnosis only: the host waits for every layer
  LayerMarker* marker = nullptr;
  // For synchronised batch norm: gathers values of all ranks. Not used in evaluation.
  RankGather* across = nullptr;
  // True for a forward that is repeated for backward: it changes no state.
  bool repeats = false;
};

}  // namespace lockstep
