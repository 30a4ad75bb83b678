// SPDX-License-Identifier: Apache-2.0
//
// DeviceBatches: a loader's batches in device memory, step by step. Images that are already there
// (Dataset::on_device()) are gathered. While the device computes a step, a copy stream transfers the next
// step's batches to another slot. If the device reads the loader's memory directly (CPU), nothing is copied.
// The host waits for a copy only when the loader is about to refill that batch's memory, which a loader that
// keeps loader_keeps() batches avoids.
#pragma once

#include <array>
#include <optional>
#include <vector>

#include "core/step_slot.h"
#include "core/stream.h"
#include "core/tensor/batch.h"
#include "core/tensor/buffer.h"
#include "data/batch_loader.h"

namespace lockstep {

enum class Staging {
  automatic,  // none on the CPU
  always,
};

struct DeviceBatchesOptions {
  Device device;
  std::int64_t micro_batches = 1;  // of a step
  Staging staging = Staging::automatic;
};

class DeviceBatches {
 public:
  // The loader must outlive this object and have no other user.
  DeviceBatches(BatchLoader& loader, const DeviceBatchesOptions& options);
  ~DeviceBatches();

  // As BatchLoader::seek().
  void seek(std::int64_t epoch, std::int64_t step);
  // Begins the next step: work enqueued on `compute` from now until the next begin() finds its batches in
  // device memory. Batches of a slot are always at the same addresses. Rethrows what the dataset threw.
  void begin(Stream& compute, StepSlot slot);
  // Returns to the step's first micro-batch if batches are copied; otherwise does nothing.
  void rewind() {
    if (staged_) next_ = 0;
  }
  // Returns the step's next micro-batch, in the loader's order. Enqueues nothing. Call it at most once per
  // micro-batch of the step.
  const Batch& next();
  // Starts copying the next step's batches to slot `next`. Call it after everything that reads the current
  // step's batches is enqueued. begin() throws what the dataset throws here.
  void prefetch(StepSlot next);
  // LoaderOptions::kept with which the host never waits for a copy: a step's batches are copied while the
  // previous step computes.
  static int loader_keeps(const DeviceBatchesOptions& options);
  // Bytes of device memory held; planned_bytes() returns it for batches of `batch_bytes` before construction.
  std::size_t memory_bytes() const;
  static std::size_t planned_bytes(const DeviceBatchesOptions& options, std::size_t batch_bytes);

 private:
  struct StepMemory {
    StepMemory(std::size_t bytes, Device device) : memory(bytes, device), copied(device), released(device) {}
    Buffer memory;
    std::vector<Batch> batches;
    Event copied;        // recorded on the copy stream
    Event released;      // recorded on the compute stream
    bool ahead = false;  // holds the step that begins next
  };
  struct Staged {
    Staged(std::size_t bytes, std::int64_t kept, Device device);
    Stream stream;
    std::array<StepMemory, StepSlot::kCount> steps;
    StepMemory* step = nullptr;         // memory of the last step that began
    std::vector<Event> batches_copied;  // one for each batch that the loader keeps
    std::size_t batches = 0;            // taken from the loader
  };

  void release();
  void copy_step(StepMemory& step);
  void gather(Batch& batch, std::byte* images);
  std::size_t staged_bytes() const;  // of one batch

  BatchLoader& loader_;
  DeviceBatchesOptions options_;
  std::optional<Staged> staged_;
  std::int64_t next_ = 0;      // micro-batch of the step
  Stream* compute_ = nullptr;  // of the last step, while its batches are in use
};

}  // namespace lockstep
