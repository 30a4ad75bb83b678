// SPDX-License-Identifier: Apache-2.0
//
// BatchLoader: fills batches ahead of the training loop, on its own threads, into a ring of slots made once.
// Every batch of every rank has the same size. Its whole state is (seed, epoch, step), on any number of
// ranks.
//
// A training step's global batch takes consecutive positions of the sample order, ranks * accumulation *
// batch of them. Micro-batch m of rank r takes the batch at (r * accumulation + m) * batch: k ranks with
// accumulation j see the same micro-batches as one rank with accumulation k * j.
//
// All threads fill one batch together, in pieces, before they turn to the next: a batch of large images is
// ready as soon as the threads can make it, and more threads need no more slots. How many there are changes
// no bit.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

#include "core/batch.h"
#include "data/dataset.h"

namespace lockstep {

class HostAugmentation;

enum class Tail {
  drop,    // training: an epoch ends when less than a global batch is left
  carry,   // training: the rest of an epoch opens the next one's first batch
  repeat,  // training: the last global batch is filled up with the first samples of its epoch, once more
  // training: the last global batch is short. Its samples are dealt evenly to all micro-batches, in order,
  // with weights above 1 (Batch::weights); what is left of each is filled with its own samples again, of
  // weight zero, so that batch norm sees images and no padding
  exact,
  pad,  // evaluation: in order, once; the last batches are filled with samples of weight zero
};
// What a configuration may say of training.
inline constexpr std::string_view kTailWords[] = {"drop", "carry", "repeat", "exact"};
constexpr std::span<const std::string_view> words_of(Tail) { return kTailWords; }

// Where color, crop and flip are done: on the device that trains, or by the loader's threads.
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
  double most_left_out = 0.5;  // share of a batch's samples; more of them end it
  std::uint64_t seed = 0;
  int threads = 1;       // 0: one, and more (up to most_threads) as long as batches are waited for
  int most_threads = 1;  // of threads = 0
  int kept = 1;          // batches that stay valid: the last one that next() gave, and those before it
  int slots = 4;         // batches in memory, more than are kept: those and what is filled ahead
  std::shared_ptr<const HostAugmentation> augmentation = nullptr;  // of images, as they are read; null: none
  Device device;  // that batches are copied to from here: their memory is pinned for it
};

class BatchLoader {
 public:
  // dataset must outlive the loader. Throws ConfigError when the dataset has less than one global batch
  // (drop, carry, repeat), naming both numbers.
  BatchLoader(const Dataset& dataset, Shard shard, const LoaderOptions& options);
  ~BatchLoader();

  // How many samples a step takes, over all ranks and micro-batches.
  std::int64_t global_batch() const;
  // How many steps an epoch has; the same on every rank. Only with Tail::carry does it depend on the epoch.
  std::int64_t steps_in_epoch(std::int64_t epoch) const;
  // How many samples of each epoch are in none of its batches (Tail::drop), or in two (Tail::repeat).
  std::int64_t dropped_samples() const;
  std::int64_t repeated_samples() const;
  // How many samples the last global batch of each epoch has, where it is a short one (Tail::exact); else 0.
  std::int64_t last_batch_samples() const;
  // How many bytes one slot has, and all slots together. A batch takes a slot's, in one piece that begins
  // with the images, or where those lie in the device's memory with the labels.
  std::size_t batch_bytes() const;
  // How many bytes the images of a batch take that are gathered there (Dataset::on_device()); else 0.
  std::size_t gathered_bytes() const;
  std::size_t memory_bytes() const;
  const Dataset& dataset() const;
  // Of the order of samples.
  std::uint64_t seed() const;
  // How many batches stay valid.
  std::int64_t kept() const;

  // Goes to the first micro-batch of a step of an epoch; what was prefetched for elsewhere is dropped. A new
  // loader stands at (0, 0).
  void seek(std::int64_t epoch, std::int64_t step);
  // Returns the next micro-batch and waits until it is ready. It is valid until the `kept`-th call after this
  // one, or seek(). After the last one of an epoch's last step
  // comes the next epoch's first (with Tail::pad: the same samples again). A sample for which the dataset
  // throws a DataError is left out, unless on_error says otherwise, as padding is: a black image of label 0
  // and weight 0; in training the others of its micro-batch share its weight. Rethrows anything else that the
  // dataset threw for this micro-batch, and the DataError where more than options.most_left_out of the batch
  // would be left out, each time until a seek; copies that fill up a short batch (Tail::exact) do not count.
  const Batch& next();
  // How many samples were left out so far. The first are logged by name, the others by their number.
  std::int64_t left_out() const;
  // How many threads fill batches now.
  int threads() const;
  // What its threads have taken of cores so far (core/processor_time.h).
  double processor_seconds() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace lockstep
