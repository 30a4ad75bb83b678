// SPDX-License-Identifier: Apache-2.0
//
// BatchLoader: fills batches ahead of the training loop, on its own threads, into a ring of preallocated
// slots. Every batch of every rank has the same size. Its whole state is (seed, epoch, step), for any number
// of ranks.
//
// A training step's global batch takes consecutive positions of the sample order, ranks * accumulation *
// batch of them. Micro-batch m of rank r takes the batch at (r * accumulation + m) * batch: k ranks with
// accumulation j see the same micro-batches as one rank with accumulation k * j.
//
// All threads fill one batch together, in pieces, before they start the next: a batch of large images is
// ready as soon as possible, and more threads need no more slots. The number of threads changes no bit.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>

#include "core/tensor/batch.h"
#include "data/dataset.h"

namespace lockstep {

class HostAugmentation;

enum class Tail {
  drop,    // training: an epoch ends when less than a global batch is left
  carry,   // training: an epoch's remaining samples start the next epoch's first batch
  repeat,  // training: the last global batch is filled up with the first samples of its epoch
  // training: the last global batch is short. Its samples are dealt evenly to all micro-batches, in order,
  // with weights above 1 (Batch::weights). Each micro-batch is filled up with copies of its own samples, of
  // weight 0, so that batch norm sees images and no padding
  exact,
  pad,  // evaluation: in order, once; the last batches are filled with black images of weight 0
};
// The values that a configuration may name for training.
inline constexpr std::string_view kTailWords[] = {"drop", "carry", "repeat", "exact"};
constexpr std::span<const std::string_view> words_of(Tail) { return kTailWords; }

// Where color, crop and flip run: on the training device, or on the loader's threads.
enum class AugmentOn { automatic, host, device };
inline constexpr std::string_view kAugmentOnWords[] = {"auto", "host", "device"};
constexpr std::span<const std::string_view> words_of(AugmentOn) { return kAugmentOnWords; }

struct Shard {
  int rank = 0;
  int size = 1;
};

struct LoaderOptions {
  std::int64_t batch = 32;  // per rank and micro-batch
  std::int64_t accumulation = 1;
  Tail tail = Tail::drop;
  OnError on_error = OnError::leave_out;
  double most_left_out = 0.5;  // share of at least 32 samples; if more are left out, next() throws
  // Seed of the sample order.
  std::uint64_t seed = 0;
  int threads = 1;       // fewer, with a warning, where the system allows no more. 0: start with one, add
                         // threads (up to most_threads) while next() waits
  int most_threads = 1;  // for threads = 0
  int kept = 1;          // batches that stay valid: the last one that next() returned, and those before it
  int slots = 4;         // batches in memory, above kept: the kept ones and those filled ahead
  std::shared_ptr<const HostAugmentation> augmentation = nullptr;  // applied to each image; null: none
  Device device;  // target of the batches' copies: their memory is pinned for it
};

class BatchLoader {
 public:
  // dataset must outlive the loader. Throws ConfigError if the dataset has less than one global batch (drop,
  // carry, repeat), naming both numbers, or more than 2^31 - 1 samples; IoError if no thread can be started.
  BatchLoader(const Dataset& dataset, Shard shard, const LoaderOptions& options);
  ~BatchLoader();

  // Samples per step, over all ranks and micro-batches.
  std::int64_t global_batch() const;
  // Steps per epoch, the same on every rank. Depends on the epoch only with Tail::carry.
  std::int64_t steps_in_epoch(std::int64_t epoch) const;
  // Steps of this many samples over all ranks in the epochs before this one.
  std::int64_t steps_before(std::int64_t epoch, std::int64_t global_batch) const;
  // Samples of each epoch that are in none of its batches (Tail::drop), or in two (Tail::repeat).
  std::int64_t dropped_samples() const;
  std::int64_t repeated_samples() const;
  // Samples of each epoch's last global batch if that is short (Tail::exact); else 0.
  std::int64_t last_batch_samples() const;
  // Samples of the steps [first, end) of an epoch, on all ranks; less than full batches if the last is short.
  std::int64_t samples_in(std::int64_t first, std::int64_t end) const;
  // Bytes of one slot, and of all slots (memory_bytes()). A batch is contiguous in its slot and begins with
  // the images, or with the labels if the images are in the device's memory.
  std::size_t batch_bytes() const;
  // Bytes of a batch's images if they are gathered in device memory (Dataset::on_device()); else 0.
  std::size_t gathered_bytes() const;
  std::size_t memory_bytes() const;
  const Dataset& dataset() const;
  const LoaderOptions& options() const;

  // The step of this epoch that begins with the first unused sample, after `steps` steps of another global
  // batch; nullopt if none begins there.
  std::optional<std::int64_t> step_after(std::int64_t epoch, std::int64_t steps,
                                         std::int64_t global_batch) const;
  // Moves to the first micro-batch of a step of an epoch and drops prefetched batches. A new loader is at
  // (0, 0).
  void seek(std::int64_t epoch, std::int64_t step);
  // True if next() will return the first micro-batch of the first epoch.
  bool at_beginning() const;
  // Waits for the next micro-batch and returns it. It stays valid until the `kept`-th call after this one, or
  // seek(). An epoch's last micro-batch is followed by the next epoch's first (Tail::pad: the same samples
  // again).
  //
  // A sample for which the dataset throws DataError is left out, unless on_error is stop: it becomes padding
  // (a black image of label 0 and weight 0), and in training the other samples of its micro-batch share its
  // weight. A training micro-batch whose only sample is left out is filled as one without samples. Damage is
  // judged over 32 samples or more, or over the dataset's number of samples if it has fewer: those of one
  // micro-batch, or of several smaller ones. Copies and padding that fill up a short batch do not count
  // (Tail::exact, Tail::pad). Throws the first DataError if more than options.most_left_out of the samples
  // are left out. Rethrows any other exception of the dataset for this micro-batch. Throws again at each call
  // until a seek().
  const Batch& next();
  // Samples left out so far. The first five are logged by name, later ones only by their number.
  std::int64_t left_out() const;
  // Threads that fill batches now.
  int threads() const;
  // CPU seconds that the loader's threads have used so far (core/system/processor_time.h).
  double processor_seconds() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace lockstep
