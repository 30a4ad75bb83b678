// SPDX-License-Identifier: Apache-2.0
//
// LayerMarks: when a GPU begins and ends each layer of a step, by events on the device. Works for enqueued
// and for replayed steps: the events are part of the recorded work.
#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <vector>

#include "core/stream.h"
#include "models/pass.h"

namespace lockstep {

class LayerMarks final : public LayerMarker {
 public:
  // For steps on the stream, which outlives this. events: as many as a step needs, so that none are created
  // while it is recorded; more are created when they are needed.
  LayerMarks(Stream& stream, std::size_t events);

  // Call before the work of a step is enqueued or recorded, but not before it is replayed.
  void restart();
  // Call where other work than layers begins: a layer begins where the one before it ended, except after this
  // call.
  void interrupt() { ended_.reset(); }
  void layer_begins() override;
  void layer_ends(std::size_t node, Direction direction) override;

  // Calls `run` for each layer of the last step, in order, after the device has ended the step.
  using Run = std::function<void(std::size_t node, Direction direction, TimedEvent& begin, TimedEvent& end)>;
  void read(const Run& run);

 private:
  struct Layer {
    std::size_t node;
    Direction direction;
    std::size_t begin, end;  // index into events_
  };
  std::size_t record();

  Stream& stream_;
  std::vector<TimedEvent> events_;  // recorded work refers to them, so they are kept
  std::size_t used_ = 0;
  std::vector<Layer> layers_;
  std::optional<std::size_t> ended_;  // end of the layer before
  std::size_t begun_ = 0;             // begin of the layer that is being enqueued
};

}  // namespace lockstep
