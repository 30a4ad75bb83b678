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
    open_data({.rank = world.rank(), .size = world.size()});
  });
  plan_network(choice.device);
  run_agreed(host, [&] {
    if (!options.init.empty()) load_state(*network_, options.init);
  });
  if (options.trace) timeline_ = std::make_unique<Timeline>();
  connect(world, choice);
  buckets_ = std::make_unique<GradientBuckets>(network_->parameters(), *communicator_,
                                               bucket_options(config_), timeline_.get());
  optimizer_ = make_optimizer({.device = network_->device(),
                               .parameters = network_->parameters(),
                               .values = network_->values(),
                               .gradients = buckets_->gradients()},
                              optimizer_options(config_));
}

void Training::open_data(Shard shard) {
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
                        .threads = static_cast<int>(config_.data.loader_threads)};
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

// Rank 0 plans first, choosing kernels; the others plan with its choices: ranks must round alike.
void Training::plan_network(Device device) {
  const ImageShape image = train_set_->image_shape();
  NetworkOptions options{.device = device, .seed = static_cast<std::uint64_t>(config_.train.seed)};
  options.mean.assign(config_.data.mean.begin(), config_.data.mean.end());
  options.deviation.assign(config_.data.deviation.begin(), config_.data.deviation.end());
  options.label_smoothing = static_cast<float>(config_.train.label_smoothing);
  options.choices = &kernels_;
  options.recompute = config_.train.recompute ? Recompute::blocks : Recompute::nothing;
  const bool by_time = config_.kernels.choose == "time";
  kernels_ = KernelChoices(by_time ? ChooseBy::time : ChooseBy::name, config_.kernels.choose);
  const auto plan = [&] { network_ = std::make_unique<Network>(*graph_, options); };
  const bool first = host_.rank() == 0;
  run_agreed(host_, [&] {
    graph_.emplace(GraphInput{.batch = config_.train.batch,
                              .height = image.height,
                              .width = image.width,
                              .channels = image.channels,
                              .classes = train_set_->classes()});
    build_network(*graph_, network_choice(config_));
    Backend& backend = backend_for(device);
    backend.set_threads(threads_);
    if (!first) return;
    const auto folder = config_.kernels.cache == "auto"   ? default_kernel_cache()
                        : config_.kernels.cache == "none" ? std::filesystem::path()
                                                          : std::filesystem::path(config_.kernels.cache);
    by_time ? KernelCache(folder, backend.identity()).use(kernels_, plan) : plan();
  });
  const std::string choices = broadcast_text(host_, to_text(kernels_), 0);
  run_agreed(host_, [&] {
    if (first) return;
    from_text(choices, kernels_);
    plan();
  });
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
