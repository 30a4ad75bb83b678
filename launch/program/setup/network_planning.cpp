// SPDX-License-Identifier: Apache-2.0
#include "launch/program/setup/network_planning.h"

#include <utility>

#include "comm/agreement.h"
#include "core/log.h"
#include "core/system/terminal.h"
#include "launch/program/devices/kernel_cache.h"
#include "launch/program/devices/kernel_progress.h"
#include "launch/program/network/batch_norm_values.h"
#include "launch/program/setup/engine_options.h"
#include "launch/program/setup/frozen_layers.h"

namespace lockstep {
namespace {

constexpr std::size_t kLayersOfTwoSegments = 4;

GraphInput input_of(const Dataset& images) {
  const ImageShape image = images.image_shape();
  return {.height = image.height,
          .width = image.width,
          .channels = image.channels,
          .classes = images.classes(),
          .type = image.type,
          .masks = images.has_masks()};
}

// Collective. Warns of ranks with other instruction sets, GPUs or libraries.
void warn_of_other_machines(Communicator& host, Device device) {
  const Difference found = find_difference(host, backend_for(device).describe());
  if (found.ranks.empty()) return;
  log::shared_warning(
      "results of {} of {} ranks may differ in rounding from rank 0's, because their instruction sets, GPUs "
      "or libraries differ: rank {} has {}, rank 0 has {}; use machines of one kind",
      found.ranks.size(), host.size(), found.ranks.front(), found.text, found.reference);
}

}  // namespace

NetworkPlanning::NetworkPlanning(const Config& config, const NetworkEntry& network, const Dataset& images,
                                 Device device, int ranks)
    : config_(config),
      network_(network),
      input_(input_of(images)),
      device_(device),
      ranks_(ranks),
      kernels_(kernel_choices(config.kernels)),
      graph_(build_graph(config.loader.batch)) {}

Graph NetworkPlanning::build_graph(std::int64_t batch) const {
  GraphInput input = input_;
  input.batch = batch;
  input.loss = config_.model.loss;
  Graph graph(input);
  network_.build(graph, config_.model);
  freeze_layers(graph, config_.model.freeze);
  return graph;
}

const Recompute& NetworkPlanning::recompute() {
  if (!recompute_ && config_.network.recompute.is_open()) choose_recompute(0);
  if (!recompute_) recompute_ = config_.network.recompute;
  return *recompute_;
}

void NetworkPlanning::choose_recompute(std::size_t most_activations) {
  recompute_ = Network::chosen_recompute(graph_, open_options(), most_activations);
}

NetworkOptions NetworkPlanning::options() {
  NetworkOptions options = open_options();
  options.recompute = recompute();
  return options;
}

NetworkOptions NetworkPlanning::open_options() {
  NetworkOptions options = network_options(config_, device_);
  options.choices = &kernels_;
  options.computes = computes_;
  if (config_.model.sync_batch_norm) options.batch_norm_ranks = ranks_;
  return options;
}

MemoryPlan NetworkPlanning::memory(std::int64_t batch) {
  return Network::planned_memory(build_graph(batch), options());
}

void NetworkPlanning::require_batch_norm_values(std::int64_t samples) const {
  const std::int64_t micro_batches = ranks_ * config_.loader.accumulation;
  const bool exact = config_.loader.tail == Tail::exact;
  lockstep::require_batch_norm_values(graph_,
                                      {.tail = exact ? samples % (micro_batches * config_.loader.batch) : 0,
                                       .micro_batches = micro_batches,
                                       .synchronized_ranks = config_.model.sync_batch_norm ? ranks_ : 1});
}

std::vector<MemoryRemedy> NetworkPlanning::remedies() const {
  std::vector<MemoryRemedy> remedies;
  const Recompute& set = config_.network.recompute;
  if (set == Recompute::nothing && !graph_.blocks().empty())
    remedies.push_back({.setting = "train.recompute=true",
                        .apply = [](Config& config) { config.network.recompute = Recompute::blocks; }});
  else if (!set.is_open() && graph_.layers().size() >= kLayersOfTwoSegments)
    remedies.push_back({.setting = "train.recompute=auto",
                        .apply = [](Config& config) { config.network.recompute = Recompute::least; }});
  if (storage_type(config_.network.precision) == DType::f32)
    remedies.push_back({.setting = "train.precision=bf16",
                        .apply = [](Config& config) { config.network.precision = Precision::bf16; }});
  return remedies;
}

void NetworkPlanning::prefer(const std::string& choices) {
  from_text(choices, kernels_);
  preferred_ = kernels_.kept();
}

std::string NetworkPlanning::choices() const { return to_text(kernels_); }

// Warns of preferred kernels that this machine does not have.
void NetworkPlanning::tell_of_others() const {
  std::int64_t others = 0;
  for (const auto& [key, choice] : preferred_)
    others += kernels_.kept().at(key).candidate != choice.candidate;
  if (others == 0) return;
  log::shared_warning(
      "{} of the {} kernels of the saved training are not available here; other kernels replace them, and "
      "results may differ in rounding",
      others, preferred_.size());
}

// Rank 0 plans first and chooses kernels; the other ranks use its choices, so that all round alike.
std::unique_ptr<Network> NetworkPlanning::plan(Communicator& host, const MemoryBudget& budget) {
  std::unique_ptr<Network> network;
  const auto make = [&] {
    budget.keep_within([&] { network = std::make_unique<Network>(graph_, options()); });
  };
  const bool first = host.rank() == 0;
  run_agreed(host, [&] {
    if (!first) return;
    if (kernels_.by() == ChooseBy::name || !preferred_.empty()) return make();
    const KernelCache cache(kernel_cache_folder(config_.kernels), backend_for(device_).identity());
    cache.use(kernels_, [&] {
      budget.require();  // fails before the kernels are timed
      const KernelProgress progress(kernels_, cache.file(), find_terminal());
      make();
    });
  });
  const std::string choices = broadcast_text(host, to_text(kernels_), 0);
  run_agreed(host, [&] {
    if (first) return;
    from_text(choices, kernels_);
    make();
  });
  if (std::exchange(warned_, true)) return network;
  warn_of_other_machines(host, device_);
  tell_of_others();
  return network;
}

}  // namespace lockstep
