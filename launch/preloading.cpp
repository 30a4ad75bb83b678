// SPDX-License-Identifier: Apache-2.0
#include "launch/preloading.h"

#include <utility>
#include <vector>

#include "comm/agreement.h"
#include "comm/world.h"
#include "core/buffer.h"

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

// Asked before memory is: gradients, which come later, are shared, too. Who chooses leaves them half.
bool fits_shared(const Communicator& node, std::size_t bytes, bool asked) {
  return node.size() == 1 || bytes <= free_shared_memory() / (asked ? 1 : 2);
}

// Of those that ranks make of a set, all or none: whether all have what they need.
bool on_all(Communicator& node, bool right) { return first_rank_where(node, !right) < 0; }

}  // namespace

Preloading preload(const Datasets& sets, LoaderMode mode, bool several_epochs, Communicator& node) {
  const bool asked = mode == LoaderMode::preload;
  const auto wanted = [&](const Dataset& set) { return asked || (several_epochs && set.decodes()); };
  const bool train = wanted(*sets.train) && !sets.train->draws(), test = wanted(*sets.test);
  if (mode == LoaderMode::stream || (!train && !test)) return {.sets = sets};
  const auto bytes_of = [&](const Dataset& set) {
    return static_cast<std::size_t>(node.size()) * PreloadMemory::bytes_of_place(set, node.size());
  };
  const std::size_t bytes = (train ? bytes_of(*sets.train) : 0) + (test ? bytes_of(*sets.test) : 0);
  const std::string size = megabytes(bytes);
  const std::size_t available = available_memory({});
  if (!asked && !on_all(node, bytes <= available / 4)) {
    return {.sets = sets,
            .told = fmt::format("images are decoded in every epoch: they take {}, of {} that are free", size,
                                megabytes(available))};
  }
  Preloading made{.sets = sets};
  const auto keep = [&](std::shared_ptr<Dataset>& set) {
    std::shared_ptr<Dataset> shared = kept(set, node);
    if (!on_all(node, shared != nullptr)) return false;
    set = std::move(shared);
    return true;
  };
  if (on_all(node, fits_shared(node, bytes, asked)) && (!train || keep(made.sets.train)) &&
      (!test || keep(made.sets.test))) {
    made.told = fmt::format("{} are decoded once, into {}{}",
                            !train  ? "test images"
                            : !test ? "training images"
                                    : "images",
                            size, node.size() > 1 ? fmt::format(" that {} ranks share", node.size()) : "");
    return made;
  }
  const std::string reason = fmt::format(
      "no room for {} in memory that the ranks of a node share: make /dev/shm larger (containers "
      "often give it 64 MiB: --shm-size)",
      size);
  if (asked) return {.sets = sets, .failed = reason + ", or set \"stream\""};
  return {.sets = sets, .told = "images are decoded in every epoch: " + reason};
}

}  // namespace lockstep
