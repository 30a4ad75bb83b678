// SPDX-License-Identifier: Apache-2.0
#include "data/device_batches.h"

#include <algorithm>
#include <utility>

#include "core/error.h"
#include "kernels/backend.h"

namespace lockstep {
namespace {

// The first byte of a loader's batch.
const std::byte* beginning(const Batch& batch) {
  return static_cast<const std::byte*>(batch.images.data == nullptr ? batch.labels.data : batch.images.data);
}

// The loader's batch, with pointers into the copy of its memory at `to`.
Batch moved(const Batch& batch, std::byte* to, Device device) {
  Batch copy = batch;
  const auto move = [&](const void* data) {
    return to + (static_cast<const std::byte*>(data) - beginning(batch));
  };
  for (Tensor* tensor : {&copy.images, &copy.labels, &copy.weights, &copy.rows}) {
    tensor->device = device;
    if (tensor->data != nullptr) tensor->data = move(tensor->data);
  }
  copy.samples = {reinterpret_cast<const SampleId*>(move(batch.samples.data())), batch.samples.size()};
  return copy;
}

bool stages(const DeviceBatchesOptions& options) {
  return !is_host_memory(options.device) || options.staging == Staging::always;
}

}  // namespace

DeviceBatches::Staged::Staged(std::size_t bytes, std::int64_t kept, Device device)
    : stream(device, StreamUse::copy), steps{StepMemory(bytes, device), StepMemory(bytes, device)} {
  for (std::int64_t i = 0; i < kept; ++i) batches_copied.emplace_back(device);
}

DeviceBatches::DeviceBatches(BatchLoader& loader, const DeviceBatchesOptions& options)
    : loader_(loader), options_(options) {
  if (!stages(options)) {
    CHECK(loader.gathered_bytes() == 0, "images in device memory require DeviceBatchesOptions::staging");
    return;
  }
  staged_.emplace(static_cast<std::size_t>(options.micro_batches) * staged_bytes(), loader.options().kept,
                  options.device);
}

// The copy stream may still be reading the loader's memory.
DeviceBatches::~DeviceBatches() {
  if (!staged_) return;
  try {
    staged_->stream.synchronize();
  } catch (const std::exception&) {  // the user of the batches has already seen the error
  }
}

void DeviceBatches::seek(std::int64_t epoch, std::int64_t step) {
  if (staged_) staged_->stream.synchronize();
  loader_.seek(epoch, step);
  if (!staged_) return;
  for (StepMemory& memory : staged_->steps) {  // drop batches that were copied ahead, and a part of a step
    memory.ahead = false;
    if (&memory != staged_->step || std::ssize(memory.batches) < options_.micro_batches)
      memory.batches.clear();
  }
}

void DeviceBatches::begin(Stream& compute, StepSlot slot) {
  next_ = 0;
  if (!staged_) return;
  release();
  StepMemory& step = staged_->steps[slot.index];
  CHECK(step.ahead || std::ranges::none_of(staged_->steps, &StepMemory::ahead),
        "begin() got slot {}, but the next step was prefetched to another slot", slot.index);
  copy_step(step);
  compute.wait(step.copied);
  step.ahead = false;
  staged_->step = &step;
  compute_ = &compute;
}

const Batch& DeviceBatches::next() {
  CHECK(next_ < options_.micro_batches, "next() was called more than {} times in a step",
        options_.micro_batches);
  const auto micro = static_cast<std::size_t>(next_++);
  return staged_ ? staged_->step->batches[micro] : loader_.next();
}

void DeviceBatches::prefetch(StepSlot next) {
  if (!staged_) return;
  release();
  try {
    copy_step(staged_->steps[next.index]);
  } catch (const Error&) {  // begin() throws it again for this step
  }
}

// The last step's memory is free once the work enqueued so far has completed.
void DeviceBatches::release() {
  if (compute_ != nullptr) std::exchange(compute_, nullptr)->record(staged_->step->released);
}

// loader_.next() lets the loader refill the memory of the oldest batch that it keeps, so that batch's copy
// must have completed. After an error, the next call continues with the micro-batch that failed.
void DeviceBatches::copy_step(StepMemory& step) {
  if (step.ahead) return;
  if (static_cast<std::int64_t>(step.batches.size()) == options_.micro_batches) step.batches.clear();
  staged_->stream.wait(step.released);
  while (static_cast<std::int64_t>(step.batches.size()) < options_.micro_batches) {
    Event& copied = staged_->batches_copied[staged_->batches % staged_->batches_copied.size()];
    copied.synchronize();
    const Batch& batch = loader_.next();
    std::byte* images = step.memory.data() + step.batches.size() * staged_bytes();
    std::byte* to = images + loader_.gathered_bytes();
    step.batches.push_back(moved(batch, to, options_.device));
    staged_->stream.copy(to, beginning(batch), loader_.batch_bytes());
    staged_->stream.record(copied);
    if (loader_.gathered_bytes() > 0) gather(step.batches.back(), images);
    ++staged_->batches;
  }
  staged_->stream.record(step.copied);
  step.ahead = true;
}

void DeviceBatches::gather(Batch& batch, std::byte* images) {
  batch.images.data = images;
  backend_for(options_.device)
      .gather_images(staged_->stream, {.batch = std::ssize(batch.samples),
                                       .image_bytes = loader_.dataset().image_shape().bytes(),
                                       .images = loader_.dataset().on_device().data(),
                                       .rows = batch.rows.as<std::int32_t>().data(),
                                       .output = images});
}

std::size_t DeviceBatches::staged_bytes() const { return loader_.batch_bytes() + loader_.gathered_bytes(); }

int DeviceBatches::loader_keeps(const DeviceBatchesOptions& options) {
  return stages(options) ? static_cast<int>(options.micro_batches) + 1 : 1;
}

std::size_t DeviceBatches::memory_bytes() const { return planned_bytes(options_, staged_bytes()); }

std::size_t DeviceBatches::planned_bytes(const DeviceBatchesOptions& options, std::size_t batch_bytes) {
  return stages(options) ? 2 * static_cast<std::size_t>(options.micro_batches) * batch_bytes : 0;
}

}  // namespace lockstep
