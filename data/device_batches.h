// SPDX-License-Identifier: Apache-2.0
//
// DeviceBatches: a loader's batches in device memory. While the device computes on one, the next is already
// on its way on a stream of its own; two slots take turns. Where the device reads the loader's memory itself
// (a CPU) nothing is copied.
#pragma once

#include <optional>

#include "core/buffer.h"
#include "core/stream.h"
#include "data/batch_loader.h"

namespace lockstep {

enum class Staging {
  automatic,  // none on the CPU
  always,
};

class DeviceBatches {
 public:
  // The loader must outlive this, and be asked by nobody else.
  DeviceBatches(BatchLoader& loader, Device device, Staging staging = Staging::automatic);
  ~DeviceBatches();

  BatchLoader& loader() { return loader_; }
  // See BatchLoader::seek.
  void seek(std::int64_t epoch, std::int64_t step);
  // The next micro-batch, in device memory for what is enqueued on `compute` from now on, and until next() is
  // called again. Rethrows what the dataset threw.
  const Batch& next(Stream& compute);
  // To be called when everything that reads the last batch is enqueued: starts copying the one after it. What
  // the dataset throws then is left to next().
  void prefetch();
  std::size_t memory_bytes() const;

 private:
  struct Slot {
    Slot(std::size_t bytes, Device device) : memory(bytes, device), copied(device), released(device) {}
    Buffer memory;
    Batch batch;
    Event copied;    // recorded on the copy stream
    Event released;  // recorded on the compute stream
  };
  struct Staged {
    Staged(std::size_t bytes, Device device)
        : stream(device, StreamUse::copy), slots{Slot(bytes, device), Slot(bytes, device)} {}
    Stream stream;
    Slot slots[2];
  };

  void release();
  void copy_next();

  BatchLoader& loader_;
  Device device_;
  std::optional<Staged> staged_;
  std::int64_t taken_ = 0;     // by next(), since the last seek
  std::int64_t copied_ = 0;    // from the loader
  Stream* compute_ = nullptr;  // of the last batch, as long as that is in use
};

}  // namespace lockstep
