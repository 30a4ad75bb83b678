// SPDX-License-Identifier: Apache-2.0
#include "launch/training.h"

#include <algorithm>

#include "comm/agreement.h"
#include "core/error.h"
#include "core/log.h"
#include "data/verify.h"
#include "launch/cores.h"
#include "launch/engine_options.h"
#include "launch/kernel_cache.h"
#include "launch/kernel_progress.h"
#include "launch/replicas.h"
#include "launch/reproducible.h"
#include "launch/terminal.h"
#include "models/network_state.h"

namespace lockstep {
namespace {

void check_channels(const Config& config, const Dataset& dataset) {
  const auto channels = static_cast<std::size_t>(dataset.image_shape().channels);
  if (!config.data.mean.empty() && config.data.mean.size() != channels) {
    throw ConfigError(fmt::format("data.mean and data.deviation have {} values, the images {} channels",
                                  config.data.mean.size(), channels));
  }
}

}  // namespace

Training::Training(const Config& config, World& world, Communicator& host, const Options& options)
    : config_(config), registry_(options.registry), host_(host), communicator_(&host) {
  world.set_timeout(std::chrono::milliseconds(static_cast<std::int64_t>(1000 * config_.comm.timeout)));
  const DeviceChoice choice = choose_device(config_, world, host);
  run_agreed(host, [&] { make_reproducible(config_, choice.device, host.size()); });
  threads_ = choose_threads(config_.train.threads, world, host);
  run_agreed(host, [&] { open_data(world, choice.device); });
  require_same_data(host, *train_set_, *test_set_, config_.data.path);
  device_ = choice.device;
  sharing_ = device_.kind == DeviceKind::cpu || choice.shared ? world.local_size() : 1;
  run_agreed(host,
             [&] { memory_at_start_ = available_memory(device_) / static_cast<std::size_t>(sharing_); });
  plan_network();
  run_agreed(host, [&] {
    if (host.rank() == 0 && !options.init.empty()) load_state(*network_, options.init);
  });
  if (options.trace) timeline_ = std::make_unique<Timeline>();
  connect(world, choice);
  within_memory([&] {
    buckets_ = std::make_unique<GradientBuckets>(network_->parameters(), *communicator_,
                                                 bucket_options(config_), timeline_.get());
    if (config_.train.reproducible) {
      step_statistics_ =
          std::make_unique<StepStatistics>(*network_, *communicator_, config_.train.accumulation);
    }
    optimizer_ = make_optimizer(trained_memory(*network_, buckets_->gradients()),
                                optimizer_options(config_.optimizer), loss_scale_options(config_));
  });
  broadcast_state(*communicator_, *network_);
}

void Training::open_data(const World& world, Device device) {
  const DatasetOptions dataset = dataset_options(config_);
  train_set_ = open_dataset(dataset, Split::train, registry_.formats);
  test_set_ = open_dataset(dataset, Split::test, registry_.formats);
  if (test_set_->image_shape() != train_set_->image_shape() || test_set_->classes() > train_set_->classes()) {
    throw DataError(
        fmt::format("{}: training and test images differ in shape or classes", config_.data.path));
  }
  check_channels(config_, *train_set_);
  for (const Dataset* set : {train_set_.get(), test_set_.get()})
    verify(*set, verify_options(config_, {.rank = world.local_rank(), .size = world.local_size()}, threads_));
  const Shard shard{.rank = world.rank(), .size = world.size()};
  LoaderOptions options = loader_options(config_, device);
  train_loader_ = std::make_unique<BatchLoader>(*train_set_, shard, options);
  options.accumulation = 1;
  options.tail = Tail::pad;
  test_loader_ = std::make_unique<BatchLoader>(*test_set_, shard, options);
}

// Gradients are reduced where they are computed. What layers ask of other ranks never waits behind them.
void Training::connect(World& world, const DeviceChoice& choice) {
  const bool on_cpu = choice.device.kind == DeviceKind::cpu;
  const auto on_device = [&] {
    return world.communicator(choice.device, host_, device_communicator_options(config_, choice.shared));
  };
  if (!on_cpu) {
    device_communicator_ = on_device();
    communicator_ = device_communicator_.get();
  }
  communicator_->set_call_check(config_.comm.check);
  if (!config_.model.sync_batch_norm || host_.size() == 1) return;
  layers_communicator_ = on_cpu ? world.communicator() : on_device();
  layers_communicator_->set_call_check(config_.comm.check);
  across_.emplace(*layers_communicator_);
}

Graph Training::build_graph(std::int64_t batch) const {
  const ImageShape image = train_set_->image_shape();
  Graph graph({.batch = batch,
               .height = image.height,
               .width = image.width,
               .channels = image.channels,
               .classes = train_set_->classes()});
  find_network(registry_.networks, config_.model.name).build(graph, config_.model);
  return graph;
}

NetworkOptions Training::network_options() {
  NetworkOptions options = lockstep::network_options(config_, device_);
  options.choices = &kernels_;
  if (config_.model.sync_batch_norm) options.batch_norm_ranks = host_.size();
  return options;
}

// Rank 0 plans first, choosing kernels; the others plan with its choices: ranks must round alike.
void Training::plan_network() {
  kernels_ = kernel_choices(config_);
  const auto plan = [&] {
    within_memory([&] { network_ = std::make_unique<Network>(*graph_, network_options()); });
  };
  const bool first = host_.rank() == 0;
  run_agreed(host_, [&] {
    graph_.emplace(build_graph(config_.train.batch));
    Backend& backend = backend_for(device_);
    backend.set_threads(threads_);
    if (!first) return;
    if (kernels_.by() == ChooseBy::name) return plan();
    const KernelCache cache(kernel_cache_folder(config_), backend.identity());
    cache.use(kernels_, [&] {
      require_memory();  // before kernels are timed in vain
      const KernelProgress progress(kernels_, cache.file(), find_terminal());
      plan();
    });
  });
  const std::string choices = broadcast_text(host_, to_text(kernels_), 0);
  run_agreed(host_, [&] {
    if (first) return;
    from_text(choices, kernels_);
    plan();
  });
}

MemoryNeed Training::memory_need(std::int64_t batch) {
  const MemoryPlan plan = Network::planned_memory(build_graph(batch), network_options());
  return {.activations = plan.activations,
          .parameters = plan.parameters + plan.weight_copies + plan.statistics,
          .gradients = plan.gradients + sums_bytes(plan),
          .optimizer = optimizer_state_bytes(optimizer_options(config_.optimizer), plan.parameters),
          .batches = device_batch_bytes(batch)};
}

// Of what train.reproducible adds up beside gradients and statistics.
std::size_t Training::sums_bytes(const MemoryPlan& plan) const {
  if (!config_.train.reproducible) return 0;
  const auto elements = static_cast<std::int64_t>(plan.parameters / sizeof(float));
  const auto half =
      static_cast<std::int64_t>(plan.weight_copies / size_of(storage_type(config_.train.precision)));
  const std::int64_t micro_batches = config_.train.accumulation;
  return MicroBatchSums::planned_bytes(elements, half, micro_batches) +
         StepStatistics::planned_bytes(plan, micro_batches);
}

std::size_t Training::device_batch_bytes(std::int64_t batch) const {
  const auto bytes = static_cast<std::size_t>(batch) * train_loader_->batch_bytes() /
                     static_cast<std::size_t>(config_.train.batch);
  const auto copies = [&](std::int64_t micro_batches) {
    return DeviceBatches::planned_bytes({.device = device_, .micro_batches = micro_batches}, bytes);
  };
  return copies(config_.train.accumulation) + copies(1);  // to train, and to evaluate
}

void Training::require_memory() {
  if (memory_need(config_.train.batch).total() > memory_at_start_) throw_shortage(memory_at_start_);
}

void Training::within_memory(const std::function<void()>& work) {
  try {
    return work();
  } catch (const MemoryError& error) {
    log::error("{}", error.what());
  }
  // What the work took before it failed is free again; what other ranks took by now is not.
  throw_shortage(std::min(memory_at_start_, available_memory(device_)));
}

void Training::throw_shortage(std::size_t available) {
  MemoryShortage shortage{
      .device = device_, .batch = config_.train.batch, .available = available, .sharing = sharing_};
  if (!config_.train.recompute && !graph_->blocks().empty())
    shortage.remedies.emplace_back("set train.recompute = true");
  if (storage_type(config_.train.precision) == DType::f32)
    shortage.remedies.emplace_back("train.precision = \"bf16\"");
  throw MemoryError(describe_shortage(shortage, [this](std::int64_t batch) { return memory_need(batch); }));
}

Trainer::Parts Training::parts(LayerObserver* observer) {
  return {.network = *network_,
          .buckets = *buckets_,
          .optimizer = *optimizer_,
          .train = *train_loader_,
          .test = *test_loader_,
          .communicator = *communicator_,
          .timeline = timeline_.get(),
          .observer = observer,
          .across = across_ ? &*across_ : nullptr,
          .step_statistics = step_statistics_.get()};
}

std::int64_t Training::steps_of_epochs() const {
  if (config_.data.tail != Tail::carry) return config_.train.epochs * train_loader_->steps_in_epoch(0);
  return config_.train.epochs * train_set_->size() / train_loader_->global_batch();
}

Training::Length Training::length() const {
  const std::int64_t all = steps_of_epochs();
  const std::int64_t limit = config_.train.steps;
  if (limit == 0 || limit >= all) return {.epochs = config_.train.epochs, .steps = all};
  const auto quotient_up = [](std::int64_t value, std::int64_t by) { return (value + by - 1) / by; };
  const std::int64_t epochs = config_.data.tail == Tail::carry
                                  ? quotient_up(limit * train_loader_->global_batch(), train_set_->size())
                                  : quotient_up(limit, train_loader_->steps_in_epoch(0));
  return {.epochs = epochs, .steps = limit};
}

Schedule Training::schedule() const {
  Schedule schedule = schedule_of(config_, steps_of_epochs());
  schedule.total_steps = length().steps;  // a run that train.steps ends has decayed by then
  return schedule;
}

}  // namespace lockstep
