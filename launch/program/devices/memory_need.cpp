// SPDX-License-Identifier: Apache-2.0
#include "launch/program/devices/memory_need.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include <fmt/ranges.h>

#include "core/error.h"
#include "core/log.h"
#include "core/tensor/buffer.h"
#include "core/text/units.h"

namespace lockstep {
namespace {

std::string parts_of(const MemoryNeed& need) {
  std::string text;
  for (const auto& [name, bytes] :
       {std::pair("activations", need.activations), std::pair("parameters", need.parameters),
        std::pair("gradients", need.gradients), std::pair("optimizer", need.optimizer),
        std::pair("codecs", need.codecs), std::pair("batches", need.batches)})
    if (bytes > 0) text += fmt::format("{}{} {}", text.empty() ? "" : ", ", name, in_units(bytes));
  return text;
}

}  // namespace

// Memory grows with the batch almost along a line, so the first guesses lie on the line between the largest
// batch known to fit and the smallest known not to.
std::int64_t largest_batch(const NeedOfBatch& need, std::int64_t too_large, std::size_t available) {
  struct Known {
    std::int64_t batch;
    double bytes;
  };
  const auto bytes_of = [&](std::int64_t batch) { return static_cast<double>(need(batch).total()); };
  const auto limit = static_cast<double>(available);
  if (too_large <= 1) return 0;
  Known fits{1, bytes_of(1)};
  if (fits.bytes > limit) return 0;
  Known not_fits{too_large, bytes_of(too_large)};
  constexpr int kOnTheLine = 4;
  for (int tries = 0; not_fits.batch - fits.batch > 1; ++tries) {
    const double on_line = (limit - fits.bytes) / std::max(not_fits.bytes - fits.bytes, 1.0);
    const double share = tries < kOnTheLine ? on_line : 0.5;
    const auto guess = fits.batch + static_cast<std::int64_t>(
                                        std::floor(share * static_cast<double>(not_fits.batch - fits.batch)));
    const std::int64_t batch = std::clamp(guess, fits.batch + 1, not_fits.batch - 1);
    const Known known{batch, bytes_of(batch)};
    (known.bytes <= limit ? fits : not_fits) = known;
  }
  return fits.batch;
}

std::string describe_shortage(const MemoryShortage& shortage, const NeedOfBatch& need) {
  const MemoryNeed planned = need(shortage.batch);
  const std::string ranks =
      shortage.sharing > 1 ? fmt::format("to each of {} ranks", shortage.sharing) : "to the rank";
  const std::string text =
      fmt::format("{} is out of memory: {} are planned per rank ({}), {} are available {}{}; ",
                  to_string(shortage.device), in_units(planned.total()), parts_of(planned),
                  in_units(shortage.available), ranks, shortage.limited ? " (world.memory_limit)" : "");
  if (planned.total() <= shortage.available)
    return text + "the plan would fit: another program uses the device's memory; end it or lower train.batch";
  const std::int64_t largest = largest_batch(need, shortage.batch, shortage.available);
  std::vector<std::string> changes = shortage.remedies;
  if (shortage.limited) changes.emplace_back("raise world.memory_limit");
  if (largest > 0) {
    changes.insert(
        changes.begin(),
        fmt::format("lower train.batch from {} (and raise train.accumulation to keep the samples per step)",
                    shortage.batch));
  }
  if (changes.empty()) changes.emplace_back("use a smaller network or smaller images");
  return fmt::format(
      "{}{}: {}", text,
      largest > 0 ? fmt::format("the largest batch that fits is {}", largest) : "not even a batch of 1 fits",
      fmt::join(changes, ", or "));
}

void MemoryBudget::require() const {
  if (need_(shortage_.batch).total() > shortage_.available) throw_shortage(shortage_.available);
}

BatchRoom MemoryBudget::room_for(std::int64_t batch) const {
  BatchRoom room{.needed = need_(batch).total(), .available = shortage_.available};
  room.fits = room.needed <= room.available;
  return room;
}

std::int64_t MemoryBudget::largest_batch(std::int64_t most, std::size_t room) const {
  if (need_(most).total() <= room) return most;
  return lockstep::largest_batch(need_, most, room);
}

void MemoryBudget::keep_within(const std::function<void()>& work) const {
  try {
    return work();
  } catch (const MemoryError& error) {
    log::error("{}", error.what());
  }
  // The memory of the failed work is free again; allocations of other ranks since the start are not.
  throw_shortage(std::min(shortage_.available, available_memory(shortage_.device)));
}

void MemoryBudget::throw_shortage(std::size_t available) const {
  MemoryShortage shortage = shortage_;
  shortage.limited &= available == shortage.available;
  shortage.available = available;
  throw MemoryError(describe_shortage(shortage, need_));
}

}  // namespace lockstep
