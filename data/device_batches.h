// SPDX-License-Identifier: Apache-2.0
//
// DeviceBatches: a loader's batches in device memory, step by step; images that lie there anyway
// (Dataset::on_device()) are gathered there. While the device computes a step, the
// next one's batches are already on their way on a stream of their own, in the memory of another slot. Where
// the device reads the loader's memory itself (a CPU) nothing is copied. The host waits for a copy only when
// the loader is about to fill that batch's memory again: a loader that keeps as many as loader_keeps() says
// is one it need not wait for.
#pragma once

#include <array>
#include <optional>
#include <vector>

#include "core/batch.h"
#include "core/buffer.h"
#include "core/step_slot.h"
#include "core/stream.h"
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
  // The loader must outlive this, and be asked by nobody else.
  DeviceBatches(BatchLoader& loader, const DeviceBatchesOptions& options);
  ~DeviceBatches();

  // Goes where BatchLoader::seek goes.
  void seek(std::int64_t epoch, std::int64_t step);
  // The next step's batches: what is enqueued on `compute` from now on finds them in device memory, until the
  // next begin(). A slot's always lie at the same addresses. Rethrows what the dataset threw.
  void begin(Stream& compute, StepSlot slot);
  // Goes back to the step's first micro-batch, where batches are copied; elsewhere it does nothing.
  void rewind() {
    if (staged_) next_ = 0;
  }
  // Returns the step's next micro-batch, in the loader's order. It enqueues nothing, and must not be called
  // more often than a step has micro-batches.
  const Batch& next();
  // To be called when everything that reads the step's batches is enqueued: starts copying the next step's,
  // which has this slot. What the dataset throws then is left to begin().
  void prefetch(StepSlot next);
  // LoaderOptions::kept of a loader that the host never waits for: a step's batches are copied while the one
  // before it computes.
  static int loader_keeps(const DeviceBatchesOptions& options);
  // Memory of the device that is held; planned_bytes() says what it would be for a loader's batches of so
  // many bytes.
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
    // Of the loader's n-th batch.
    Event& batch_copied(std::int64_t n) {
      return batches_copied[static_cast<std::size_t>(n) % batches_copied.size()];
    }

    Stream stream;
    std::array<StepMemory, StepSlot::kCount> steps;
    StepMemory* step = nullptr;         // of the last step that began
    std::vector<Event> batches_copied;  // of those that the loader keeps
    std::int64_t batches = 0;           // taken from the loader
  };

  void release();
  void copy_step(StepMemory& step);
  void gather(Batch& batch, std::byte* images);
  std::size_t staged_bytes() const;  // of a batch

  BatchLoader& loader_;
  DeviceBatchesOptions options_;
  std::optional<Staged> staged_;
  std::int64_t next_ = 0;      // micro-batch of the step
  Stream* compute_ = nullptr;  // of the last step, as long as its batches are in use
};

}  // namespace lockstep
