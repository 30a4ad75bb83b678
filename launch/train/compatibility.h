// SPDX-License-Identifier: Apache-2.0
//
// The table of features of a training that exclude each other, with the reasons. The Trainer checks the
// features that it can see in its parts and options; the program checks and prints it in the words of the
// keys (launch/program/config/config_conflicts.h).
#pragma once

#include <span>
#include <string_view>

namespace lockstep {

enum class Feature {
  random_crop,
  unresized,       // images keep the size of the dataset
  preload,         // images are decoded into host memory once
  device_loader,   // images are in device memory
  stream_loader,   // images are decoded each time
  preload_before,  // kept images are decoded before the first step
  host_augmentation,
  mixup,
  cutmix,
  odd_batch,
  exact_tail,
  reproducible,
  sync_batch_norm,
  clip_norm,
  ema_decay,
  early_stopping,
  last_evaluation,  // only the last epoch is evaluated
  staleness,        // see DelayedGradients
  average_every,    // see LocalSgd
  ring,             // see Gossip
  apart,            // average_every or ring
  not_waiting,      // staleness or average_every: steps do not wait for their gradients
  cross_barrier,    // see CrossBarrier
  sharded,          // see ShardedEnd
  whole_layers,     // an optimizer whose update of an element depends on other elements
  no_overlap,       // gradients are exchanged after the backward pass
  max_skipped_steps,
  step_check,  // ranks compare the calls of every step
  dynamic_loss_scale,
  mpi_sums,  // MPI adds the sums of nodes
  codec,
  auto_codec,
  momentum_codec,   // it adds momentum in place of the optimizer
  other_optimizer,  // not SGD
  checkpoint_every,
  evaluations_within,  // an epoch
  profile,
  gpu
};

struct Exclusion {
  Feature feature;  // allowed only without `other`
  Feature other;
  std::string_view reason;
};
std::span<const Exclusion> exclusions();
// Null if there is no such row.
const Exclusion* find_exclusion(Feature feature, Feature other);

}  // namespace lockstep
