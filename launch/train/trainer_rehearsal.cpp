// SPDX-License-Identifier: Apache-2.0
//
// Passes of a Trainer outside of steps.
#include "launch/train/trainer.h"

namespace lockstep {

void Trainer::rehearse(const std::function<void()>& after_micro_batch) {
  settle_all_but(0);
  clock_.restart();
  train_.begin(stream_, StepSlot::of(position_.enqueued));
  for (std::int64_t micro = 0; micro < options_.accumulation; ++micro) {
    const Pass pass{.stream = stream_,
                    .mode = Mode::training,
                    .gradient_scale = 1.0f / static_cast<float>(parts_.train.options().batch),
                    .loss_scale = parts_.optimizer.loss_scale(),
                    .gradients = Write::overwrite,
                    .across = parts_.across};
    parts_.network.forward(train_.next(), pass);
    parts_.network.backward(pass);
    stream_.synchronize();
    if (after_micro_batch) after_micro_batch();
  }
}

}  // namespace lockstep
