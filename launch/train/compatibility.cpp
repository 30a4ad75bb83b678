// SPDX-License-Identifier: Apache-2.0
#include "launch/train/compatibility.h"

#include <algorithm>

namespace lockstep {
// Errors of a configuration have the order of the rows.
std::span<const Exclusion> exclusions() {
  using enum Feature;
  static constexpr Exclusion kExclusions[] = {
      {random_crop, unresized, "random parts of images differ in size"},
      {preload, random_crop, "random parts of images differ from epoch to epoch"},
      {device_loader, random_crop, "random parts of images differ from epoch to epoch"},
      {preload_before, stream_loader, "images that are decoded in every epoch are not kept"},
      {device_loader, host_augmentation, "the loader's threads cannot change images in device memory"},
      {reproducible, sync_batch_norm, "moments over ranks depend on how many micro-batches each rank has"},
      {reproducible, mpi_sums, "MPI adds the sums of nodes in its own order"},
      {mixup, odd_batch, "images are mixed in pairs"},
      {mixup, exact_tail, "the pairs in a short batch depend on the number of ranks"},
      {cutmix, odd_batch, "images are mixed in pairs"},
      {cutmix, exact_tail, "the pairs in a short batch depend on the number of ranks"},
      {exact_tail, apart, "the mean over a short batch needs the gradients of all ranks"},
      {clip_norm, cross_barrier,
       "otherwise parameters are updated before all gradients have arrived, whose norm clipping needs"},
      {clip_norm, staleness,
       "each rank predicts parameters from its own gradients, whose norm is not that of their mean"},
      {clip_norm, average_every, "otherwise ranks use local gradients, whose mean is not computed"},
      {clip_norm, ring, "ranks on a ring use local gradients, whose mean is not computed"},
      {ema_decay, cross_barrier,
       "otherwise the parameters of a step are updated bucket by bucket during the next step"},
      {ema_decay, average_every, "otherwise ranks have different parameters, and evaluations use their mean"},
      {ema_decay, ring, "ranks on a ring have different parameters, and evaluations use their mean"},
      {early_stopping, last_evaluation, "early stopping compares evaluations before the last epoch"},
      {average_every, reproducible, "the results of local steps depend on the number of ranks"},
      {average_every, staleness, "local SGD exchanges no gradients that could be late"},
      {average_every, sync_batch_norm,
       "otherwise ranks wait for each other in every batch norm layer of every step"},
      {ring, average_every,
       "ranks on a ring average with their neighbours after every step, never with all ranks"},
      {ring, staleness, "no gradients are exchanged"},
      {ring, codec, "neighbours exchange uncompressed parameters"},
      {ring, reproducible, "the parameters that a rank averages with depend on its neighbours' speed"},
      {ring, sync_batch_norm, "otherwise ranks wait for each other in every batch norm layer"},
      {ring, checkpoint_every, "ranks synchronise only after an epoch, where run.checkpoint_minutes saves"},
      {ring, evaluations_within, "ranks synchronise only after an epoch, and are evaluated there"},
      {ring, profile, "the steps of different ranks do not correspond to each other"},
      {ring, step_check, "ranks on a ring call no collectives in a step"},
      {ring, gpu, "neighbours read each other's parameters in host memory"},
      {staleness, reproducible, "it adds micro-batches in the memory in which late gradients are exchanged"},
      {cross_barrier, no_overlap, "otherwise gradients wait for the end of the backward pass"},
      {cross_barrier, max_skipped_steps, "a partially applied step can be rolled back only once"},
      {cross_barrier, staleness, "late gradients already have the whole next step to arrive"},
      {cross_barrier, average_every, "local SGD exchanges no gradients"},
      {cross_barrier, reproducible, "it updates running statistics from all ranks after each step"},
      {cross_barrier, ring, "ranks on a ring exchange no gradients"},
      {cross_barrier, step_check, "comparing the calls of every step waits for all ranks"},
      {cross_barrier, dynamic_loss_scale,
       "a step that fp16's loss scale skips must not be partially applied"},
      {sharded, codec, "a codec exchanges gradients in its own way"},
      {sharded, ring, "ranks on a ring exchange no gradients"},
      {sharded, average_every, "local steps need the optimizer's state of all parameters on every rank"},
      {sharded, staleness, "each rank predicts parameters with the optimizer's state of all of them"},
      {sharded, cross_barrier, "the next step starts with the updated parameters of all ranks"},
      {sharded, reproducible, "its sums over micro-batches need the gradients of all ranks"},
      {sharded, clip_norm, "no rank has all gradients, whose norm clipping needs"},
      {sharded, whole_layers, "a rank updates parts of layers, without the norm of the whole layer"},
      {auto_codec, not_waiting,
       "codecs are compared by the time of steps that wait for their gradients; otherwise name a codec"},
      {momentum_codec, other_optimizer, "adds SGD's momentum to gradients before it compresses them"},
      {momentum_codec, clip_norm, "adds momentum to gradients before their mean is computed"},
      {momentum_codec, staleness, "keeps the momentum that the prediction of parameters needs"},
      {momentum_codec, average_every,
       "adds momentum to gradients, but ranks exchange differences of parameters"}};
  return kExclusions;
}

const Exclusion* find_exclusion(Feature feature, Feature other) {
  const auto row = std::ranges::find_if(
      exclusions(), [&](const Exclusion& each) { return each.feature == feature && each.other == other; });
  return row == exclusions().end() ? nullptr : &*row;
}

}  // namespace lockstep
