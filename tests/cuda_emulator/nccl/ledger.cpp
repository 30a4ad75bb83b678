// SPDX-License-Identifier: Apache-2.0
#include "tests/cuda_emulator/nccl/ledger.h"

#include <algorithm>

namespace lockstep::emulator {
namespace {

bool meet(const std::byte* a, std::size_t a_bytes, const std::byte* b, std::size_t b_bytes) {
  return a_bytes > 0 && b_bytes > 0 && a < b + b_bytes && b < a + a_bytes;
}

}  // namespace

void Ledger::add(Entry& entry) {
  const std::lock_guard lock(mutex_);
  entry.turn = ++turns_;
  entries_.insert(&entry);
}

void Ledger::remove(Entry& entry) {
  const std::lock_guard lock(mutex_);
  entries_.erase(&entry);
  changed_.notify_all();
}

bool Ledger::may_run(const Entry& entry) const {
  return std::none_of(entries_.begin(), entries_.end(), [&](const Entry* other) {
    const bool earlier = !entry.operation.call.captured && other->pending() && other->turn < entry.turn;
    return other->running || earlier;
  });
}

bool Ledger::begin(Entry& entry) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return aborted_ || may_run(entry); });
  if (aborted_) return false;
  entry.running = true;
  return true;
}

void Ledger::end(Entry& entry) {
  const std::lock_guard lock(mutex_);
  entry.running = false;
  entry.over = !entry.operation.call.captured;
  changed_.notify_all();
}

void Ledger::abort() {
  const std::lock_guard lock(mutex_);
  aborted_ = true;
  changed_.notify_all();
}

bool Ledger::sleep_until(std::chrono::steady_clock::time_point time) {
  std::unique_lock lock(mutex_);
  return !changed_.wait_until(lock, time, [this] { return aborted_.load(); });
}

void Ledger::wait_until_none_runs() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] {
    return std::none_of(entries_.begin(), entries_.end(), [](const Entry* entry) { return entry->running; });
  });
}

void Ledger::wait_until_none_is_pending() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] {
    return aborted_ || std::none_of(entries_.begin(), entries_.end(),
                                    [](const Entry* entry) { return entry->running || entry->pending(); });
  });
}

std::size_t Ledger::captured() const {
  return static_cast<std::size_t>(std::count_if(
      entries_.begin(), entries_.end(), [](const Entry* entry) { return entry->operation.call.captured; }));
}

std::size_t Ledger::captured_after(std::chrono::milliseconds patience) {
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, patience, [this] { return captured() == 0; });
  return captured();
}

void Ledger::wait_until_none_is_captured() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return captured() == 0; });
}

bool Ledger::uses(const std::byte* data, std::size_t bytes) const {
  return std::any_of(entries_.begin(), entries_.end(), [&](const Entry* entry) {
    const Operation& operation = entry->operation;
    const auto transfers = [&](const Transfer& transfer) {
      return meet(transfer.data, transfer.bytes(), data, bytes);
    };
    return !entry->over && (meet(operation.send, operation.send_bytes, data, bytes) ||
                            meet(operation.recv, operation.recv_bytes, data, bytes) ||
                            std::ranges::any_of(operation.sends, transfers) ||
                            std::ranges::any_of(operation.receives, transfers));
  });
}

bool Ledger::uses_after(const std::byte* data, std::size_t bytes, std::chrono::milliseconds patience) {
  std::unique_lock lock(mutex_);
  return !changed_.wait_for(lock, patience, [&] { return !uses(data, bytes); });
}

}  // namespace lockstep::emulator
