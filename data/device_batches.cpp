// SPDX-License-Identifier: Apache-2.0
#include "data/device_batches.h"

#include <utility>

#include "core/error.h"

namespace lockstep {
namespace {

// The batch as it lies in a copy of its memory.
Batch moved(const Batch& batch, Buffer& memory, Device device) {
  Batch copy = batch;
  const auto move = [&](const void* data) {
    return memory.data() + (static_cast<const std::byte*>(data) - batch.memory.data());
  };
  for (Tensor* tensor : {&copy.images, &copy.labels, &copy.weights}) {
    tensor->data = move(tensor->data);
    tensor->device = device;
  }
  copy.samples = {reinterpret_cast<const SampleId*>(move(batch.samples.data())), batch.samples.size()};
  copy.memory = {memory.data(), memory.bytes()};
  return copy;
}

}  // namespace

DeviceBatches::DeviceBatches(BatchLoader& loader, Device device, Staging staging)
    : loader_(loader), device_(device) {
  if (device.kind != DeviceKind::cpu || staging == Staging::always)
    staged_.emplace(loader.batch_bytes(), device);
}

// The copy stream may still be reading the loader's memory.
DeviceBatches::~DeviceBatches() {
  if (!staged_) return;
  try {
    staged_->stream.synchronize();
  } catch (const std::exception&) {  // whoever used the batches has been told
  }
}

void DeviceBatches::seek(std::int64_t epoch, std::int64_t step) {
  if (staged_) staged_->stream.synchronize();
  loader_.seek(epoch, step);
  copied_ = taken_;  // what was copied ahead is forgotten
}

const Batch& DeviceBatches::next(Stream& compute) {
  if (!staged_) return loader_.next();
  release();
  if (copied_ == taken_) copy_next();
  Slot& slot = staged_->slots[taken_++ % 2];
  compute.wait(slot.copied);
  compute_ = &compute;
  return slot.batch;
}

void DeviceBatches::prefetch() {
  if (!staged_ || copied_ > taken_) return;
  release();
  try {
    copy_next();
  } catch (const Error&) {  // thrown again by next(), which is asked for this batch
  }
}

// The last batch is free when what was enqueued up to now is done.
void DeviceBatches::release() {
  if (compute_ == nullptr) return;
  std::exchange(compute_, nullptr)->record(staged_->slots[(taken_ - 1) % 2].released);
}

// The loader may fill a slot again only when its copy is done: the last one's was enqueued a batch ago.
void DeviceBatches::copy_next() {
  Slot& slot = staged_->slots[copied_ % 2];
  staged_->stream.synchronize();
  const Batch& batch = loader_.next();
  slot.batch = moved(batch, slot.memory, device_);
  staged_->stream.wait(slot.released);
  staged_->stream.copy(slot.memory.data(), batch.memory.data(), batch.memory.size());
  staged_->stream.record(slot.copied);
  ++copied_;
}

std::size_t DeviceBatches::memory_bytes() const { return staged_ ? 2 * loader_.batch_bytes() : 0; }

}  // namespace lockstep
