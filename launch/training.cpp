// SPDX-License-Identifier: Apache-2.0
#include "launch/training.h"

#include <algorithm>
#include <cmath>
#include <thread>

#include <sched.h>

#include "core/error.h"
#include "core/log.h"
#include "launch/agreement.h"
#include "launch/kernel_cache.h"
#include "launch/kernel_progress.h"
#include "launch/terminal.h"
#include "models/network_state.h"
#include "models/networks/networks.h"

namespace lockstep {
namespace {

constexpr double kMiB = 1024.0 * 1024.0;

int usable_cores() {
  cpu_set_t cores;
  CPU_ZERO(&cores);
  if (sched_getaffinity(0, sizeof(cores), &cores) != 0)
    return static_cast<int>(std::thread::hardware_concurrency());
  return CPU_COUNT(&cores);
}

BucketOptions bucket_options(const Config& config) {
  const auto bytes = [](double mib) { return static_cast<std::size_t>(std::llround(mib * kMiB)); };
  return {.first_bytes = bytes(config.comm.bucket_mib[0]),
          .middle_bytes = bytes(config.comm.bucket_mib[1]),
          .last_bytes = bytes(config.comm.bucket_mib[2]),
          .overlap = config.comm.overlap};
}

NetworkChoice network_choice(const Config& config) {
  const std::string& stem = config.model.stem;
  return {.name = config.model.name,
          .batch_norm = config.model.batch_norm,
          .stem = stem == "auto"    ? Stem::automatic
                  : stem == "cifar" ? Stem::cifar
                                    : Stem::imagenet,
          .zero_init_residual = config.model.zero_init_residual,
          .dropout = config.model.dropout};
}

OptimizerOptions optimizer_options(const Config& config) {
  const auto& wanted = config.optimizer;
  if (wanted.name == "adamw") {
    return AdamWOptions{.beta1 = wanted.beta1,
                        .beta2 = wanted.beta2,
                        .epsilon = wanted.epsilon,
                        .weight_decay = wanted.weight_decay,
                        .decay_norm_and_bias = wanted.decay_norm_and_bias};
  }
  if (wanted.name == "lars") {
    return LarsOptions{.momentum = wanted.momentum,
                       .weight_decay = wanted.weight_decay,
                       .trust_coefficient = wanted.trust_coefficient,
                       .epsilon = wanted.epsilon};
  }
  return SgdOptions{.momentum = wanted.momentum,
                    .weight_decay = wanted.weight_decay,
                    .nesterov = wanted.nesterov,
                    .decay_norm_and_bias = wanted.decay_norm_and_bias};
}

LossScaleOptions loss_scale_options(const Config& config) {
  if (config.train.precision != "fp16") return {};
  return {.initial = static_cast<float>(config.train.loss_scale),
          .rule = {.interval = static_cast<std::int32_t>(config.train.loss_scale_interval)}};
}

void check_channels(const Config& config, const Dataset& dataset) {
  const auto channels = static_cast<std::size_t>(dataset.image_shape().channels);
  if (!config.data.mean.empty() && config.data.mean.size() != channels) {
    throw ConfigError(fmt::format("data.mean and data.deviation have {} values, the images {} channels",
                                  config.data.mean.size(), channels));
  }
}

}  // namespace

int choose_threads(std::int64_t wanted, const World& world) {
  if (wanted > 0) return static_cast<int>(wanted);
  const int cores = usable_cores();
  if (cores == 1 && std::thread::hardware_concurrency() > 1) {
    log::warning(
        "bound to one core of {}: communication has no core to overlap on; start with mpirun --bind-to none",
        std::thread::hardware_concurrency());
  }
  return std::max(1, cores / world.local_size());
}

Training::Training(const Config& config, World& world, Communicator& host, const Options& options)
    : config_(config), host_(host), communicator_(&host) {
  const DeviceChoice choice = choose_device(config_, world, host);
  run_agreed(host, [&] {
    threads_ = choose_threads(config_.train.threads, world);
    open_data({.rank = world.rank(), .size = world.size()}, choice.device);
  });
  device_ = choice.device;
  sharing_ = device_.kind == DeviceKind::cpu || choice.shared ? world.local_size() : 1;
  run_agreed(host,
             [&] { memory_at_start_ = available_memory(device_) / static_cast<std::size_t>(sharing_); });
  plan_network();
  run_agreed(host, [&] {
    if (!options.init.empty()) load_state(*network_, options.init);
  });
  if (options.trace) timeline_ = std::make_unique<Timeline>();
  connect(world, choice);
  within_memory([&] {
    buckets_ = std::make_unique<GradientBuckets>(network_->parameters(), *communicator_,
                                                 bucket_options(config_), timeline_.get());
    optimizer_ = make_optimizer(trained_memory(*network_, buckets_->gradients()), optimizer_options(config_),
                                loss_scale_options(config_));
  });
}

void Training::open_data(Shard shard, Device device) {
  const DatasetOptions dataset{.format = config_.data.format, .path = config_.data.path};
  train_set_ = open_dataset(dataset, Split::train);
  test_set_ = open_dataset(dataset, Split::test);
  if (test_set_->image_shape() != train_set_->image_shape() || test_set_->classes() > train_set_->classes()) {
    throw DataError(
        fmt::format("{}: training and test images differ in shape or classes", config_.data.path));
  }
  check_channels(config_, *train_set_);
  LoaderOptions options{.batch = config_.train.batch,
                        .accumulation = config_.train.accumulation,
                        .tail = config_.data.tail == "carry" ? Tail::carry : Tail::drop,
                        .seed = static_cast<std::uint64_t>(config_.train.seed),
                        .threads = static_cast<int>(config_.data.loader_threads),
                        .device = device};
  train_loader_ = std::make_unique<BatchLoader>(*train_set_, shard, options);
  options.accumulation = 1;
  options.tail = Tail::pad;
  test_loader_ = std::make_unique<BatchLoader>(*test_set_, shard, options);
}

// Gradients are reduced where they are computed.
void Training::connect(World& world, const DeviceChoice& choice) {
  if (choice.device.kind == DeviceKind::cpu) return;
  device_communicator_ = world.communicator(choice.device, host_,
                                            {.max_ctas = static_cast<int>(config_.comm.max_ctas),
                                             .register_memory = config_.comm.register_buckets,
                                             .share_device = choice.shared});
  communicator_ = device_communicator_.get();
}

Graph Training::build_graph(std::int64_t batch) const {
  const ImageShape image = train_set_->image_shape();
  Graph graph({.batch = batch,
               .height = image.height,
               .width = image.width,
               .channels = image.channels,
               .classes = train_set_->classes()});
  build_network(graph, network_choice(config_));
  return graph;
}

NetworkOptions Training::network_options() {
  NetworkOptions options{.device = device_,
                         .precision = parse_precision(config_.train.precision),
                         .seed = static_cast<std::uint64_t>(config_.train.seed)};
  options.mean.assign(config_.data.mean.begin(), config_.data.mean.end());
  options.deviation.assign(config_.data.deviation.begin(), config_.data.deviation.end());
  options.augmentation = {.crop_padding = config_.data.crop_padding,
                          .horizontal_flip = config_.data.horizontal_flip};
  options.label_smoothing = static_cast<float>(config_.train.label_smoothing);
  options.choices = &kernels_;
  options.recompute = config_.train.recompute ? Recompute::blocks : Recompute::nothing;
  return options;
}

// Rank 0 plans first, choosing kernels; the others plan with its choices: ranks must round alike.
void Training::plan_network() {
  const bool by_time = config_.kernels.choose == "time";
  kernels_ = KernelChoices(by_time ? ChooseBy::time : ChooseBy::name, config_.kernels.choose);
  const auto plan = [&] {
    within_memory([&] { network_ = std::make_unique<Network>(*graph_, network_options()); });
  };
  const bool first = host_.rank() == 0;
  run_agreed(host_, [&] {
    graph_.emplace(build_graph(config_.train.batch));
    Backend& backend = backend_for(device_);
    backend.set_threads(threads_);
    if (!first) return;
    if (!by_time) return plan();
    const auto folder = config_.kernels.cache == "auto"   ? default_kernel_cache()
                        : config_.kernels.cache == "none" ? std::filesystem::path()
                                                          : std::filesystem::path(config_.kernels.cache);
    const KernelCache cache(folder, backend.identity());
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
          .gradients = plan.gradients,
          .optimizer = optimizer_state_bytes(optimizer_options(config_), plan.parameters),
          .batches = device_batch_bytes(batch)};
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
  if (storage_type(parse_precision(config_.train.precision)) == DType::f32)
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
          .observer = observer};
}

Schedule Training::schedule() const {
  const auto& wanted = config_.schedule;
  const std::int64_t total = config_.data.tail == "carry"
                                 ? config_.train.epochs * train_set_->size() / train_loader_->global_batch()
                                 : config_.train.epochs * train_loader_->steps_in_epoch(0);
  const double steps_per_epoch = static_cast<double>(total) / static_cast<double>(config_.train.epochs);
  const auto steps = [&](double epochs) {
    return static_cast<std::int64_t>(std::llround(epochs * steps_per_epoch));
  };
  Schedule schedule{.kind = wanted.name == "cosine" ? ScheduleKind::cosine
                            : wanted.name == "step" ? ScheduleKind::step
                                                    : ScheduleKind::constant,
                    .base = config_.optimizer.learning_rate,
                    .total_steps = total,
                    .warmup_steps = steps(wanted.warmup_epochs),
                    .milestones = {},
                    .gamma = wanted.gamma,
                    .final_fraction = wanted.final_fraction};
  for (const double epoch : wanted.milestones) schedule.milestones.push_back(steps(epoch));
  return schedule;
}

}  // namespace lockstep
