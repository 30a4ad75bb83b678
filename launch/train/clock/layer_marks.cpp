// SPDX-License-Identifier: Apache-2.0
#include "launch/train/clock/layer_marks.h"

namespace lockstep {

LayerMarks::LayerMarks(Stream& stream, std::size_t events) : stream_(stream) {
  while (events_.size() < events) events_.emplace_back(stream.device());
}

void LayerMarks::restart() {
  used_ = 0;
  layers_.clear();
  interrupt();
}

std::size_t LayerMarks::record() {
  if (used_ == events_.size()) events_.emplace_back(stream_.device());
  stream_.record(events_[used_]);
  return used_++;
}

void LayerMarks::layer_begins() { begun_ = ended_ ? *ended_ : record(); }

void LayerMarks::layer_ends(std::size_t node, Direction direction) {
  ended_ = record();
  layers_.push_back({node, direction, begun_, *ended_});
}

void LayerMarks::read(const Run& run) {
  for (const Layer& layer : layers_)
    run(layer.node, layer.direction, events_[layer.begin], events_[layer.end]);
}

}  // namespace lockstep
