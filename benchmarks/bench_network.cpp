// SPDX-License-Identifier: Apache-2.0
#include "benchmarks/bench_network.h"

#include <algorithm>

#include "benchmarks/measure.h"
#include "benchmarks/on_device.h"
#include "core/random.h"
#include "core/text/enum_words.h"
#include "core/timeline.h"
#include "launch/program/devices/kernel_cache.h"
#include "models/networks/networks.h"

namespace lockstep {
namespace {
constexpr std::int64_t kStride = 64;  // bytes between the beginnings of consecutive random images
}

void BenchOptions::add_shape_flags(BenchProgram& program) {
  program.text("--model", model, "network");
  program.positive("--batch", batch, "samples per step");
  program.positive("--image", image, "height and width of an image in pixels");
  program.positive("--channels", channels, "channels of an image");
  program.positive("--classes", classes, "number of labels");
  program.positive("--threads", threads, "compute threads");
  program.json(json);
}

void BenchOptions::add_flags(BenchProgram& program) {
  add_shape_flags(program);
  program.text("--kernels", kernels, "time (chooses the fastest), direct, winograd or tiled winograd");
  program.one_of("--precision", precision, {"fp32", "tf32", "bf16", "fp16"}, "fp32, tf32, bf16 or fp16");
  program.one_of("--device", device, {"cpu", "cuda"}, "cpu or cuda");
  program.flag("--recompute", recompute, "recompute the activations inside residual blocks in backward");
}

nlohmann::json BenchOptions::to_json() const {
  return {{"model", model},         {"batch", batch},     {"image", {image, image, channels}},
          {"classes", classes},     {"threads", threads}, {"kernels", kernels},
          {"precision", precision}, {"device", device},   {"recompute", recompute}};
}

RandomImages::RandomImages(const BenchOptions& options, std::int64_t size)
    : size_(size), shape_{options.image, options.image, options.channels}, classes_(options.classes) {
  const Random random(1, "random images");
  noise_.resize(static_cast<std::size_t>(shape_.bytes() + kStride * size));
  for (std::size_t i = 0; i < noise_.size(); ++i) noise_[i] = static_cast<std::uint8_t>(random.bits(i));
}

std::int32_t RandomImages::read(std::int64_t index, std::span<std::uint8_t> image) const {
  std::copy_n(noise_.begin() + kStride * index, image.size(), image.begin());
  return static_cast<std::int32_t>(Random(static_cast<std::uint64_t>(index), "random labels").bits(0) %
                                   static_cast<std::uint32_t>(classes_));
}

FixedBatch::FixedBatch(const Dataset& dataset, std::int64_t batch, Device device) {
  const ImageShape shape = dataset.image_shape();
  const auto bytes = static_cast<std::size_t>(shape.bytes());
  const auto count = static_cast<std::size_t>(batch);
  std::vector<std::uint8_t> images(count * bytes);
  std::vector<std::int32_t> labels;
  std::vector<SampleId> samples;
  for (std::size_t i = 0; i < count; ++i) {
    const auto index = static_cast<std::int64_t>(i);
    labels.push_back(dataset.read(index, std::span(images).subspan(i * bytes, bytes)));
    samples.push_back({.epoch = 0, .index = static_cast<std::int32_t>(i)});
  }
  Stream stream(device, StreamUse::compute);
  images_ = on_device(stream, images);
  labels_ = on_device(stream, labels);
  weights_ = on_device(stream, std::vector<float>(count, 1.0f));
  samples_ = on_device(stream, samples);
  input_ = {.images = {images_.data(), {batch, shape.height, shape.width, shape.channels}, DType::u8, device},
            .labels = {labels_.data(), {batch}, DType::i32, device},
            .weights = {weights_.data(), {batch}, DType::f32, device},
            .samples = {reinterpret_cast<const SampleId*>(samples_.data()), count}};
}

BenchNetwork::BenchNetwork(const BenchOptions& o)
    : graph(o.input()),
      choices(o.kernels == "time" ? ChooseBy::time : ChooseBy::name, o.kernels),
      self(make_self_communicator(o.where())) {
  Backend& backend = backend_for(o.where());
  backend.set_threads(o.threads);
  build_network(graph, {.name = o.model});
  const std::int64_t begin = now_ns();
  KernelCache(o.kernels == "time" ? default_kernel_cache() : "", backend.identity()).use(choices, [&] {
    network = std::make_unique<Network>(
        graph, NetworkOptions{.device = o.where(),
                              .precision = *value_of<Precision>(o.precision),
                              .recompute = o.recompute ? Recompute::blocks : Recompute::nothing,
                              .choices = &choices});
  });
  planning_seconds = seconds_since(begin);
  buckets = std::make_unique<GradientBuckets>(network->parameters(), *self, BucketOptions{});
  optimizer = make_optimizer(trained_memory(*network, buckets->gradients()), SgdOptions{},
                             o.precision == "fp16" ? LossScaleOptions{.initial = 1024} : LossScaleOptions{});
}

std::size_t BenchNetwork::planned_bytes() const {
  const MemoryPlan& memory = network->memory();
  return memory.activations + memory.parameters + memory.weight_copies + memory.statistics +
         buckets->memory_bytes() + optimizer->state().size_bytes();
}

BenchTraining::BenchTraining(BenchNetwork& bench, const Dataset& images, const TrainerOptions& options)
    : train(images, {}, {.batch = bench.network->batch(), .device = bench.network->device()}),
      test(images, {},
           {.batch = bench.network->batch(), .tail = Tail::pad, .device = bench.network->device()}),
      trainer({.network = *bench.network,
               .buckets = *bench.buckets,
               .optimizer = *bench.optimizer,
               .train = train,
               .test = test,
               .communicator = *bench.self},
              {.base = kBenchRate, .total_steps = 1 << 30}, options) {}

}  // namespace lockstep
