// SPDX-License-Identifier: Apache-2.0
#include "launch/program/setup/preloading.h"

#include <algorithm>
#include <numeric>
#include <string_view>
#include <utility>
#include <vector>

#include "comm/agreement.h"
#include "comm/world.h"
#include "core/tensor/buffer.h"
#include "core/text/text.h"
#include "core/timeline.h"
#include "launch/observe/terminal/progress_meter.h"
#include "launch/train/hold.h"

namespace lockstep {
namespace {

std::string megabytes(std::size_t bytes) {
  return fmt::format("{:.1f} MB", static_cast<double>(bytes) * 1e-6);
}

std::shared_ptr<Dataset> kept(std::shared_ptr<Dataset> dataset, Communicator& node) {
  auto own = std::make_shared<Buffer>(node.allocate(PreloadMemory::bytes_of_place(*dataset, node.size())));
  std::vector<std::byte*> places = node.shared_places(own->data());
  if (places.empty()) return nullptr;
  return preloaded(std::move(dataset), {.places = std::move(places), .owner = std::move(own)});
}

// Checks before memory is allocated, because gradients need shared memory later. Leaves half free unless the
// user requested the mode (asked).
bool fits_shared(const Communicator& node, std::size_t bytes, bool asked) {
  return node.size() == 1 || bytes <= free_shared_memory() / (asked ? 1 : 2);
}

// True if `right` holds on all ranks: either all keep a set or none does.
bool on_all(Communicator& node, bool right) { return first_rank_where(node, !right) < 0; }

// Which of a run's two sets are kept.
struct Chosen {
  bool train = false, test = false;
  bool any() const { return train || test; }
  Datasets of(const Datasets& sets) const {
    return {.train = train ? sets.train : nullptr, .test = test ? sets.test : nullptr};
  }
  std::string_view images() const {
    if (train && test) return "images";
    return train ? "training images" : "test images";
  }
};

template <typename Bytes>
std::size_t bytes_of(const Datasets& sets, const Chosen& chosen, Bytes bytes) {
  return (chosen.train ? bytes(*sets.train) : 0) + (chosen.test ? bytes(*sets.test) : 0);
}

// Returns false if a rank has no room for them.
bool keep_on_host(Preloading& made, const Chosen& chosen, Communicator& node) {
  const auto keep = [&](std::shared_ptr<Dataset>& set) {
    std::shared_ptr<Dataset> shared = kept(set, node);
    if (!on_all(node, shared != nullptr)) return false;
    set = std::move(shared);
    return true;
  };
  Datasets& sets = made.sets;
  if ((chosen.train && !keep(sets.train)) || (chosen.test && !keep(sets.test))) return false;
  made.on_host = chosen.of(sets);
  return true;
}

std::size_t bytes_on_host(const Datasets& sets, const Chosen& chosen, const Communicator& node) {
  return bytes_of(sets, chosen, [&](const Dataset& set) {
    return static_cast<std::size_t>(node.size()) * PreloadMemory::bytes_of_place(set, node.size());
  });
}

// Bytes that a node's ranks may use of the memory of their CPU.
std::size_t limit_on_host(const PreloadOptions& options, const Communicator& node) {
  const auto ranks = static_cast<std::size_t>(node.size());
  const std::size_t most = std::numeric_limits<std::size_t>::max();
  return is_host_memory(options.device) && options.memory_limit < most / ranks ? options.memory_limit * ranks
                                                                               : most;
}

Preloading preload_on_host(const Datasets& sets, const PreloadOptions& options, bool asked,
                           Communicator& node) {
  const bool several_epochs = options.several_epochs;
  const auto wanted = [&](const Dataset& set) { return asked || (several_epochs && set.decodes()); };
  const Chosen chosen{.train = wanted(*sets.train) && !sets.train->draws(), .test = wanted(*sets.test)};
  if (!chosen.any()) return {.sets = sets};
  const std::size_t bytes = bytes_on_host(sets, chosen, node);
  const std::string size = megabytes(bytes);
  const std::size_t limit = limit_on_host(options, node), available = std::min(available_memory({}), limit);
  if (asked && bytes > limit) {
    return {.sets = sets,
            .failed = fmt::format("no room for {} within world.memory_limit, of which {} have {}: raise it, "
                                  "or set data.loader = \"stream\"",
                                  size, counted(node.size(), "rank"), megabytes(limit))};
  }
  if (!asked && !on_all(node, bytes <= available / 4)) {
    return {
        .sets = sets,
        .told = fmt::format(
            "images are decoded in every epoch: they need {}, more than a quarter of the {} that are free",
            size, megabytes(available))};
  }
  Preloading made{.sets = sets};
  if (on_all(node, fits_shared(node, bytes, asked)) && keep_on_host(made, chosen, node)) {
    made.told = fmt::format("{} are decoded once, into {}{}", chosen.images(), size,
                            node.size() > 1 ? fmt::format(" that {} ranks share", node.size()) : "");
    return made;
  }
  const std::string reason = fmt::format(
      "no room for {} in memory that the ranks of a node share: make /dev/shm larger (containers "
      "often give it 64 MiB: --shm-size)",
      size);
  if (asked) return {.sets = sets, .failed = reason + ", or set data.loader = \"stream\""};
  return {.sets = sets, .told = "images are decoded in every epoch: " + reason};
}

// Ranks share the sets that they decode for their devices, if there is room.
Datasets shared_on_the_way(const Datasets& sets, const Chosen& chosen, Communicator& node) {
  const Chosen decoded{.train = chosen.train && sets.train->decodes(),
                       .test = chosen.test && sets.test->decodes()};
  Preloading made{.sets = sets};
  const std::size_t bytes = bytes_on_host(sets, decoded, node);
  const bool room = node.size() > 1 && decoded.any() && bytes <= available_memory({}) / 4 &&
                    fits_shared(node, bytes, false);
  if (on_all(node, room)) keep_on_host(made, decoded, node);
  return chosen.of(made.sets);
}

}  // namespace

Preloading preload(const Datasets& sets, const PreloadOptions& options, Communicator& node) {
  hold_in("preload");
  if (options.mode == LoaderMode::stream) return {.sets = sets};
  const bool asked = options.mode != LoaderMode::automatic;
  // resident() keeps no masks: they would be decoded again at each read.
  const bool decodes_masks = sets.train->has_masks() && sets.train->decodes();
  const bool may_move = options.mode != LoaderMode::preload && !is_host_memory(options.device) &&
                        !options.augments_on_host && !decodes_masks;
  if (!may_move || (!asked && !options.several_epochs)) return preload_on_host(sets, options, asked, node);
  const Chosen chosen{.train = !sets.train->draws(), .test = true};
  const std::size_t bytes = bytes_of(sets, chosen, resident_bytes);
  const std::size_t free = available_memory(options.device) / static_cast<std::size_t>(options.sharing);
  const std::size_t available = std::min(free, options.memory_limit);
  if (on_all(node, bytes <= available / (asked ? 1 : 10))) {
    return {.sets = sets,
            .to_device = options.reads_images ? shared_on_the_way(sets, chosen, node) : chosen.of(sets),
            .told = fmt::format("{} are in the memory of the device and take {}", chosen.images(),
                                megabytes(bytes))};
  }
  if (!asked) return preload_on_host(sets, options, asked, node);
  return {.sets = sets,
          .failed = fmt::format(
              "no room for {} in the memory of {}, of which {} are {}: set data.loader = \"preload\"",
              megabytes(bytes), to_string(options.device), megabytes(available),
              available < free ? "allowed to a rank (world.memory_limit)" : "free")};
}

void decode_before_training(Preloading& made, const DecodingOptions& options, Communicator& host,
                            Communicator& node) {
  hold_in("decode");
  const std::int64_t begin = now_ns();
  std::int64_t images = 0, undecodable = 0;
  run_agreed(host, [&] {
    for (const Dataset* set : {made.on_host.train.get(), made.on_host.test.get()}) {
      if (set == nullptr) continue;
      ProgressMeter meter("decoding", "images", find_terminal());
      DecodeOptions each{.shard = {.rank = node.rank(), .size = node.size()},
                         .threads = options.threads,
                         .on_error = options.on_error};
      if (options.speaks)
        each.told_progress = [&](std::int64_t done, std::int64_t all) { meter.show(done, all); };
      undecodable += decode_now(*set, each);
      images += set->size();
    }
  });
  if (images == 0) {
    if (made.to_device.train == nullptr && made.to_device.test == nullptr)
      made.told +=
          fmt::format("{}data.preload = \"before\" has no effect, because data.loader keeps no images",
                      made.told.empty() ? "" : "; ");
    return;
  }
  const std::vector<std::int64_t> of_ranks = gather_values(node, undecodable);
  undecodable = std::accumulate(of_ranks.begin(), of_ranks.end(), std::int64_t{0});
  made.told += fmt::format("; {} of {} were decoded before the first step, in {:.1f} s", images - undecodable,
                           images, seconds_between(begin, now_ns()));
}

Datasets move_to_device(const Preloading& made, const PreloadOptions& options, const Shard& shard) {
  const auto moved = [&](const std::shared_ptr<Dataset>& set,
                         const std::shared_ptr<Dataset>& source) -> std::shared_ptr<Dataset> {
    if (source == nullptr) return set;
    return resident(
        set, source,
        {.device = options.device, .threads = options.threads, .shard = shard, .read = options.reads_images});
  };
  return {.train = moved(made.sets.train, made.to_device.train),
          .test = moved(made.sets.test, made.to_device.test)};
}

}  // namespace lockstep
