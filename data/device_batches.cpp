// SPDX-License-Identifier: Apache-2.0
#include "data/device_batches.h"

#include <utility>

#include "core/error.h"

namespace lockstep {
namespace {

// The batch as it lies in a copy of its memory.
Batch moved(const Batch& batch, std::byte* to, Device device) {
  Batch copy = batch;
  const auto move = [&](const void* data) {
    return to + (static_cast<const std::byte*>(data) - batch.memory.data());
  };
  for (Tensor* tensor : {&copy.images, &copy.labels, &copy.weights}) {
    tensor->data = move(tensor->data);
    tensor->device = device;
  }
  copy.samples = {reinterpret_cast<const SampleId*>(move(batch.samples.data())), batch.samples.size()};
  copy.memory = {to, batch.memory.size()};
  return copy;
}

bool stages(const DeviceBatchesOptions& options) {
  return options.device.kind != DeviceKind::cpu || options.staging == Staging::always;
}

}  // namespace

DeviceBatches::Staged::Staged(std::size_t bytes, std::int64_t kept, Device device)
    : stream(device, StreamUse::copy), steps{StepMemory(bytes, device), StepMemory(bytes, device)} {
  for (std::int64_t i = 0; i < kept; ++i) batches_copied.emplace_back(device);
}

DeviceBatches::DeviceBatches(BatchLoader& loader, const DeviceBatchesOptions& options)
    : loader_(loader), options_(options) {
  if (!stages(options)) return;
  staged_.emplace(static_cast<std::size_t>(options.micro_batches) * loader.batch_bytes(), loader.kept(),
                  options.device);
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
  copied_ = begun_;  // what was copied ahead is forgotten
  if (staged_) memory_of(copied_).batches.clear();
}

void DeviceBatches::begin(Stream& compute) {
  next_ = 0;
  if (!staged_) return;
  release();
  if (copied_ == begun_) copy_step();
  compute.wait(memory_of(begun_++).copied);
  compute_ = &compute;
}

const Batch& DeviceBatches::next() {
  CHECK(next_ < options_.micro_batches, "a step has {} micro-batches", options_.micro_batches);
  const auto micro = static_cast<std::size_t>(next_++);
  return staged_ ? memory_of(begun_ - 1).batches[micro] : loader_.next();
}

void DeviceBatches::prefetch() {
  if (!staged_ || copied_ > begun_) return;
  release();
  try {
    copy_step();
  } catch (const Error&) {  // thrown again by begin(), which is asked for this step
  }
}

// The last step's batches are free when what was enqueued up to now is done.
void DeviceBatches::release() {
  if (compute_ != nullptr) std::exchange(compute_, nullptr)->record(memory_of(begun_ - 1).released);
}

// The loader fills the memory of the oldest batch it keeps when it is asked for another: its copy must be
// done. After an error this goes on where it was.
void DeviceBatches::copy_step() {
  StepMemory& step = memory_of(copied_);
  if (static_cast<std::int64_t>(step.batches.size()) == options_.micro_batches) step.batches.clear();
  staged_->stream.wait(step.released);
  while (static_cast<std::int64_t>(step.batches.size()) < options_.micro_batches) {
    Event& copied = staged_->batch_copied(staged_->batches);
    copied.synchronize();
    const Batch& batch = loader_.next();
    std::byte* to = step.memory.data() + step.batches.size() * batch.memory.size();
    step.batches.push_back(moved(batch, to, options_.device));
    staged_->stream.copy(to, batch.memory.data(), batch.memory.size());
    staged_->stream.record(copied);
    ++staged_->batches;
  }
  staged_->stream.record(step.copied);
  ++copied_;
}

std::size_t DeviceBatches::memory_bytes() const { return planned_bytes(options_, loader_.batch_bytes()); }

std::size_t DeviceBatches::planned_bytes(const DeviceBatchesOptions& options, std::size_t batch_bytes) {
  return stages(options) ? 2 * static_cast<std::size_t>(options.micro_batches) * batch_bytes : 0;
}

}  // namespace lockstep
