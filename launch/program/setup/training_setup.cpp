// SPDX-License-Identifier: Apache-2.0
#include "launch/program/setup/training_setup.h"

#include <algorithm>

#include "comm/agreement.h"
#include "core/text/enum_words.h"
#include "core/text/units.h"
#include "launch/observe/account/bucket_choices.h"
#include "launch/observe/account/codec_advice.h"
#include "launch/program/config/config_conflicts.h"
#include "launch/program/devices/cores.h"
#include "launch/program/setup/engine_options.h"
#include "launch/program/setup/rank_memory.h"
#include "launch/program/setup/reproducible.h"
#include "launch/train/watch/replicas.h"
#include "launch/train/watch/step_watch.h"
#include "models/network_state.h"

namespace lockstep {

TrainingSetup::TrainingSetup(const Config& config, World& world, Communicator& host, const Options& options)
    : config_(config), registry_(options.registry), host_(host), communicator_(&host) {
  watch_job(world, host, config_.timeout_seconds);
  world.set_between_nodes(config_.between_nodes);
  const DeviceChoice choice = choose_device(config_.device, world, host);
  unused_devices_ = choice.unused;
  run_agreed(host, [&] {
    make_reproducible(config_, choice.device, host.size());
    bucket_options(config_, registry_);  // refuses codecs that conflict with other keys
    require_features_on(config_, choice.device);
  });
  if (config_.device.near_cores) keep_near(choice.device);
  const ThreadChoice threads = choose_threads(config_.threads, world, host);
  threads_ = planned_threads_ = threads.threads;
  node_cores_ = threads.node_cores;
  run_agreed(host, [&] {
    data_.emplace(config_, registry_.formats, world, choice.device, threads, options.datasets);
  });
  if (options.datasets.train == nullptr) prepare_data(world, choice, options.computes);
  run_agreed(host, [&] { data_->make_loaders(world); });
  run_agreed(host, [&] {
    prepare_plan(world, choice);
    if (!options.computes) planning_->only_describe();
    if (options.trains) planning_->require_batch_norm_values(train_set().size());
    if (!options.kernels.empty()) planning_->prefer(options.kernels);
  });
  if (config_.network.recompute.is_open()) choose_recompute(world);
  // Memory that is not touched does not run out.
  if (config_.device.memory_gib > 0 || !options.computes) run_agreed(host, [&] { budget_->require(); });
  network_ = planning_->plan(host, *budget_);
  if (config_.device.memory_gib > 0) keep_to_limit(world);
  planned_codec_bytes_ = planned_codec_need(config_, registry_, world, network_->memory());
  run_agreed(host, [&] {
    if (host.rank() == 0 && !options.init.empty())
      told_of_weights_ = load_state(*network_, options.init, config_.model.reset_head);
  });
  if (options.trace) timeline_ = std::make_unique<Timeline>();
  connect(world, choice);
  budget_->keep_within([&] {
    // Ranks send each other parameters directly, if NCCL knows their memory.
    if (config_.gradients.exchange == ExchangeForm::sharded && device_communicator_)
      network_->move_values(communicator_->allocate(network_->values().size_bytes()));
    buckets_ = std::make_unique<GradientBuckets>(network_->parameters(), *communicator_,
                                                 bucket_options(config_, registry_), timeline_.get());
  });
  run_agreed(host, [&] {
    budget_->keep_within([&] {
      if (config_.reproducible) {
        step_statistics_ =
            std::make_unique<StepStatistics>(*network_, *communicator_, config_.loader.accumulation);
      }
      optimizer_ = optimizer_kind().make(
          trained_memory(*network_, buckets_->applied_gradients(), buckets_->completion()), config_.optimizer,
          loss_scale_options(config_));
    });
  });
  broadcast_state(*communicator_, *network_);
  if (timeline_) timeline_->describe(to_json(traced_run(world)));
}

// Called only if this training opened the data.
void TrainingSetup::prepare_data(World& world, const DeviceChoice& choice, bool reads_images) {
  require_same_data(host_, train_set(), test_set(), config_.dataset.path);
  const std::unique_ptr<Communicator> node = host_.split(world.node(), world.rank());
  const PreloadOptions options{.mode = config_.loader_mode,
                               .several_epochs = config_.trainer.epochs > 1,
                               .device = choice.device,
                               .sharing = choice.shared ? world.local_size() : 1,
                               .memory_limit = config_.device.memory_limit(),
                               .threads = threads_,
                               .augments_on_host = config_.augments_on_host(),
                               .reads_images = reads_images};
  Preloading made = preload(data_->sets, options, *node);
  run_agreed(host_, [&] {
    if (!made.failed.empty())
      throw ConfigError(fmt::format("data.loader = \"{}\": {}", word_of(options.mode), made.failed));
  });
  if (config_.verify.extent == Verify::all) {  // decodes all images, and kept sets keep them
    const auto read = [](const std::shared_ptr<Dataset>& source, const std::shared_ptr<Dataset>& set) {
      return source != nullptr ? source : set;
    };
    run_agreed(host_, [&] {
      verify_sets(config_,
                  {.train = read(made.to_device.train, made.sets.train),
                   .test = read(made.to_device.test, made.sets.test)},
                  world, threads_);
    });
  }
  if (config_.preload_time == PreloadTime::before && reads_images) {
    decode_before_training(
        made, {.threads = threads_, .on_error = config_.dataset.on_error, .speaks = host_.rank() == 0}, host_,
        *node);
  }
  run_agreed(host_, [&] {
    data_->sets = move_to_device(made, options, {.rank = world.local_rank(), .size = world.local_size()});
  });
  told_of_data_ = made.told;
  keeps_images_ = made.on_host.train != nullptr || made.to_device.train != nullptr;
}

TracedRun TrainingSetup::traced_run(const World& world) const {
  TracedRun run{.network = config_.model.name,
                .batch = config_.loader.batch,
                .accumulation = config_.loader.accumulation,
                .ranks = world.size(),
                .nodes = world.nodes(),
                .overlap = config_.gradients.overlap,
                .between_nodes = config_.between_nodes,
                .threads = is_host_memory(network_->device()) ? threads_ : 0,
                .node_cores = node_cores_};
  for (const Bucket& bucket : buckets_->buckets()) run.bucket_bytes.push_back(bucket.bytes());
  return run;
}

void TrainingSetup::prepare_plan(const World& world, const DeviceChoice& choice) {
  const Device device = choice.device;
  const int sharing = is_host_memory(device) || choice.shared ? world.local_size() : 1;
  free_memory_ = available_memory(device) / static_cast<std::size_t>(sharing);
  const std::size_t limit = config_.device.memory_limit(), held = held_bytes(device);
  const std::size_t left = limit > held ? limit - held : 0;
  backend_for(device).set_threads(threads_);
  planning_.emplace(config_, find_network(registry_.networks, config_.model.name), train_set(), device,
                    host_.size());
  std::vector<std::string> remedies;
  for (const MemoryRemedy& each : planning_->remedies()) remedies.push_back(each.setting);
  budget_.emplace(MemoryShortage{.device = device,
                                 .batch = config_.loader.batch,
                                 .available = std::min(free_memory_, left),
                                 .sharing = sharing,
                                 .limited = left < free_memory_,
                                 .remedies = std::move(remedies)},
                  [this, &world](std::int64_t batch) { return memory_need(*planning_, batch, world); });
}

// The kernels that were chosen may need more memory than those that were assumed.
void TrainingSetup::keep_to_limit(const World& world) {
  const bool fits = budget_->room_for(config_.loader.batch).fits;
  if (first_rank_where(host_, !fits) < 0) return;
  if (config_.network.recompute == Recompute::automatic) {
    choose_recompute(world);
    network_.reset();
    network_ = planning_->plan(host_, *budget_);
  }
  run_agreed(host_, [&] { budget_->require(); });
}

// All ranks recompute the same layers, because synchronised batch norm communicates in them.
void TrainingSetup::choose_recompute(const World& world) {
  std::size_t room = 0;
  run_agreed(host_, [&] {
    planning_->set_recompute(Recompute::nothing);
    const MemoryNeed need = memory_need(*planning_, config_.loader.batch, world);
    const std::size_t others = need.total() - need.activations, usable = usable_memory();
    const bool takes_room = config_.network.recompute == Recompute::automatic;
    room = takes_room && usable > others ? usable - others : 0;
  });
  room = std::ranges::min(gather_values(host_, room));
  run_agreed(host_, [&] { planning_->choose_recompute(room); });
  planning_->set_recompute(gather_values(host_, planning_->recompute()).front());
}

std::string TrainingSetup::told_of_recompute() const {
  if (config_.network.recompute == Recompute::nothing) return {};
  const MemoryPlan& memory = network_->memory();
  const bool repeats = std::ranges::any_of(network_->nodes(), &PlannedNode::recomputed);
  if (!config_.network.recompute.is_open())
    return repeats ? "" : "train.recompute has no effect: this network has no such layers to compute again";
  if (network_->recomputes() == Recompute::nothing)
    return fmt::format("activations take {}, nothing is recomputed", in_units(memory.activations));
  return fmt::format("recomputation {}: activations take {} instead of {}", described(network_->recomputes()),
                     in_units(memory.activations), in_units(memory.activations_kept));
}

std::size_t TrainingSetup::held_bytes(Device device) const {
  const auto of_both = [&](auto bytes) { return bytes(*data_->sets.train) + bytes(*data_->sets.test); };
  if (!is_host_memory(device)) return of_both([](const Dataset& set) { return set.on_device().size(); });
  return of_both([](const Dataset& set) { return set.memory_bytes(); }) +
         data_->train_loader->memory_bytes() + data_->test_loader->memory_bytes();
}

std::int64_t TrainingSetup::largest_batch(std::int64_t most) const {
  return budget_->largest_batch(most, usable_memory());
}

std::size_t TrainingSetup::usable_memory() const {
  const auto use = device_memory_use(planning_->device());
  // Other batch sizes use other kernels, and allocations are rounded up: reserves twice the measured library
  // memory and 1/64 of the total. If ranks share a device, their buffers cannot be distinguished from library
  // memory.
  const std::size_t libraries = use && budget_->sharing() == 1 ? use->libraries : 0;
  const std::size_t reserve = use ? 2 * libraries + use->total / 64 : free_memory_ / 10;
  return std::min(budget_->available(), free_memory_ > reserve ? free_memory_ - reserve : 0);
}

BatchRoom TrainingSetup::room_for(std::int64_t batch, const World& world) const {
  BatchRoom room = budget_->room_for(batch);
  if (room.fits) return room;
  for (const MemoryRemedy& each : planning_->remedies()) {
    Config config = config_;
    each.apply(config);
    NetworkPlanning planning(config, find_network(registry_.networks, config.model.name), *data_->sets.train,
                             network_->device(), host_.size());
    if (memory_need(planning, batch, world).total() <= room.available) room.remedies.push_back(each.setting);
  }
  return room;
}

MemoryNeed TrainingSetup::memory_need(NetworkPlanning& planning, std::int64_t batch,
                                      const World& world) const {
  return planned_need(config_, registry_, world, planning.device(), planning.memory(batch),
                      data_->device_bytes(batch));
}

// Gradients are reduced on the device that computes them. Layers have their own communicator, so that they
// never wait for gradients.
void TrainingSetup::connect(World& world, const DeviceChoice& choice) {
  const bool on_cpu = choice.device.kind == DeviceKind::cpu;
  DeviceCommunicatorOptions options = config_.device_communicator;
  options.share_device = choice.shared;
  const auto on_device = [&] { return world.communicator(choice.device, host_, options); };
  if (!on_cpu) {
    device_communicator_ = on_device();
    communicator_ = device_communicator_.get();
  }
  communicator_->set_call_check(config_.check);
  if (on_cpu) set_niceness(communicator_->stream(), config_.communication_niceness);
  if (!config_.model.sync_batch_norm || host_.size() == 1) return;
  layers_communicator_ = on_cpu ? world.communicator() : on_device();
  layers_communicator_->set_call_check(config_.check);
  if (on_cpu) set_niceness(layers_communicator_->stream(), config_.communication_niceness);
  across_.emplace(*layers_communicator_);
}

Trainer::Parts TrainingSetup::parts(LayerObserver* observer) {
  return {.network = *network_,
          .buckets = *buckets_,
          .optimizer = *optimizer_,
          .train = train_loader(),
          .test = test_loader(),
          .communicator = *communicator_,
          .timeline = timeline_.get(),
          .observer = observer,
          .across = across_ ? &*across_ : nullptr,
          .step_statistics = step_statistics_.get()};
}

bool TrainingSetup::halves_are_fast() const {
  return config_.network.precision == Precision::fp32 && !is_host_memory(network_->device());
}

AdviceContext TrainingSetup::advice_context(const World& world) const {
  const Device device = network_->device();
  return {.on_gpu = !is_host_memory(device),
          .nodes = world.nodes(),
          .threads = threads_,
          .most_accumulation = data_->sets.train->size() / host_.size() / config_.loader.batch,
          .halves_are_fast = halves_are_fast(),
          .sum_type = config_.gradients.sum_type,
          .buckets = bucket_choices(network_->parameters(), buckets_->sent_type(), host_.size()),
          .may_cross = is_host_memory(device) && !config_.gradients.cross_barrier &&
                       could_turn_on(Feature::cross_barrier, config_),
          .codecs = codecs_to_advise(bucket_options(config_, registry_), network_->parameters(),
                                     buckets_->buckets(), buckets_->sent_type(), device, world.nodes())};
}

std::size_t TrainingSetup::codec_bytes() const {
  const bool chosen_later = buckets_->exchange().to_choose() != nullptr;
  return chosen_later ? planned_codec_bytes_ : buckets_->codec_bytes();
}

TrainingLength TrainingSetup::length() const {
  return training_length(config_, *data_->train_loader, data_->train_loader->global_batch());
}

Schedule TrainingSetup::schedule() const { return schedule_of(config_, data_->train_loader->global_batch()); }

Schedule TrainingSetup::schedule_of(const Config& config, std::int64_t global_batch) const {
  const TrainingLength length = training_length(config, *data_->train_loader, global_batch);
  const auto steps_before = [&](std::int64_t epoch) {
    return data_->train_loader->steps_before(epoch, global_batch);
  };
  Schedule schedule =
      make_schedule(config.schedule, config.trainer.epochs, steps_before, registry_.schedules);
  schedule.base = scaled_rate(config.schedule, global_batch);
  schedule.total_steps = length.steps_of_schedule;  // train.steps shortens the decay, but not the warm-up
  schedule.counts_steps = length.steps_of_schedule < length.steps_of_all_epochs;
  return schedule;
}

}  // namespace lockstep
