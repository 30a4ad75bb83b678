// SPDX-License-Identifier: Apache-2.0
#include "benchmarks/bench_kernels.h"

#include <algorithm>
#include <memory>
#include <span>
#include <utility>

#include "core/error.h"
#include "core/random.h"

namespace lockstep {
namespace {

constexpr std::int64_t kChannels = 64;
constexpr std::int64_t kSide = 32;
constexpr std::int64_t kClasses = 1000;

template <typename T>
T* as(const Buffer& memory) {
  return reinterpret_cast<T*>(memory.data());
}

// A pattern of noise, repeated.
void fill(Stream& stream, Buffer& memory, const std::string& name) {
  const Random random(1, name);
  const std::size_t elements = memory.bytes() / sizeof(float);
  std::vector<float> noise(std::min<std::size_t>(elements, 1 << 16));
  for (std::size_t i = 0; i < noise.size(); ++i) noise[i] = random.normal(i);
  const std::size_t step = noise.size() * sizeof(float);
  for (std::size_t at = 0; at < memory.bytes(); at += step) {
    stream.copy(memory.data() + at, noise.data(), std::min(step, memory.bytes() - at));
  }
  stream.synchronize();
}

template <typename T>
Buffer on_device(Stream& stream, const std::vector<T>& items) {
  Buffer memory(items.size() * sizeof(T), stream.device());
  stream.copy(memory.data(), items.data(), memory.bytes());
  stream.synchronize();
  return memory;
}

Layout flat(const BenchArena& m, DType type) { return Layout({m.count}, type); }

// Elementwise: bytes per element, call(backend, arena), and where the result is.
template <typename Call>
BenchKernel elementwise(const char* name, std::function<double(double)> bytes, Call call) {
  return {name, true, [bytes = std::move(bytes), call](Backend& backend, BenchArena& m) -> BenchCall {
            const auto t = static_cast<double>(size_of(m.type));
            return {.call = [&backend, &m, call] { call(backend, m); },
                    .bytes = bytes(t) * static_cast<double>(m.count),
                    .result = m.c.data(),
                    .result_layout = flat(m, m.type)};
          }};
}

std::vector<BenchKernel> elementwise_kernels() {
  const auto times = [](double tensors) { return [tensors](double t) { return tensors * t; }; };
  std::vector<BenchKernel> all = {
      elementwise("add", times(3),
                  [](Backend& backend, BenchArena& m) {
                    backend.add(m.stream, {m.type, m.count, m.a.data(), m.b.data(), m.c.data()});
                  }),
      elementwise(
          "relu", times(2),
          [](Backend& backend, BenchArena& m) {
            backend.activation_forward(m.stream, {Activation::relu, m.type, m.count, m.a.data(), m.c.data()});
          }),
      elementwise("relu backward", times(3),
                  [](Backend& backend, BenchArena& m) {
                    backend.activation_backward(
                        m.stream, {Activation::relu, m.type, m.count, m.a.data(), m.b.data(), m.c.data()});
                  }),
      elementwise("scale", times(2),
                  [](Backend& backend, BenchArena& m) {
                    backend.scale(m.stream, {m.type, m.count, -1.0f, m.c.data()});
                  }),
      elementwise(
          "cast from fp32", [](double t) { return 4 + t; },
          [](Backend& backend, BenchArena& m) {
            backend.cast(m.stream, {m.count, DType::f32, m.type, m.value.data(), m.c.data()});
          })};
  all.push_back({"all finite", true, [](Backend& backend, BenchArena& m) -> BenchCall {
                   return {.call =
                               [&backend, &m] {
                                 backend.all_finite(m.stream, {m.type, m.count, m.a.data(),
                                                               as<std::int32_t>(m.flag), Write::overwrite});
                               },
                           .bytes = static_cast<double>(m.tensor_bytes()),
                           .result = m.flag.data(),
                           .result_layout = Layout({1}, DType::i32)};
                 }});
  all.push_back({"dropout", true, [](Backend& backend, BenchArena& m) -> BenchCall {
                   const std::int64_t features = std::min<std::int64_t>(m.count, kChannels * kSide * kSide);
                   std::vector<SampleId> ids(static_cast<std::size_t>(m.count / features));
                   for (std::size_t i = 0; i < ids.size(); ++i) ids[i].index = static_cast<std::int32_t>(i);
                   auto samples = std::make_shared<Buffer>(on_device(m.stream, ids));
                   const auto batch = static_cast<std::int64_t>(ids.size());
                   return {.call =
                               [&backend, &m, samples, batch, features] {
                                 backend.dropout(m.stream, {.batch = batch,
                                                            .features = features,
                                                            .samples = as<SampleId>(*samples),
                                                            .key = {1, 2},
                                                            .probability = 0.5f,
                                                            .type = m.type,
                                                            .x = m.a.data(),
                                                            .y = m.c.data()});
                               },
                           .bytes = 2.0 * static_cast<double>(m.tensor_bytes()),
                           .result = m.c.data(),
                           .result_layout = Layout({batch * features}, m.type)};
                 }});
  return all;
}

// step(backend, arena, update); bytes per element without the gradient and the half copy of the value.
template <typename Step>
BenchKernel optimizer(const char* name, double state_bytes, int gradients, Step step) {
  return {
      name, true, [=](Backend& backend, BenchArena& m) -> BenchCall {
        const UpdateSegment all{.begin = 0, .count = m.count, .weight_decay = 1e-4f, .adaptive = true};
        auto table = std::make_shared<UpdateTable>(m.stream.device(), std::span(&all, 1));
        auto control =
            std::make_shared<Buffer>(on_device(m.stream, std::vector<StepControl>{{.learning_rate = 0.01}}));
        const bool half = m.type != DType::f32;
        const auto t = static_cast<double>(size_of(m.type));
        return {.call =
                    [=, &backend, &m] {
                      step(backend, m,
                           Update{.table = *table,
                                  .value = as<float>(m.value),
                                  .gradient = m.a.data(),
                                  .gradient_type = m.type,
                                  .copy = half ? m.c.data() : nullptr,
                                  .copy_type = half ? m.type : DType::f16,
                                  .control = as<StepControl>(*control)});
                    },
                .bytes = (8 + state_bytes + gradients * t + (half ? t : 0)) * static_cast<double>(m.count),
                .result = m.value.data(),
                .result_layout = flat(m, DType::f32)};
      }};
}

std::vector<BenchKernel> optimizer_kernels() {
  return {optimizer("sgd", 8, 1,
                    [](Backend& backend, BenchArena& m, const Update& update) {
                      backend.sgd_update(m.stream, update,
                                         {.momentum_buffer = as<float>(m.momentum), .momentum = 0.9f});
                    }),
          optimizer("adamw", 16, 1,
                    [](Backend& backend, BenchArena& m, const Update& update) {
                      backend.adamw_update(
                          m.stream, update,
                          {.first_moment = as<float>(m.momentum), .second_moment = as<float>(m.second)});
                    }),
          // Norms first: reads values and gradients once more.
          optimizer("lars", 12, 2,
                    [](Backend& backend, BenchArena& m, const Update& update) {
                      const std::size_t chunks = update.table.chunks().size();
                      backend.lars_update(m.stream, update,
                                          {.momentum_buffer = as<float>(m.momentum),
                                           .norms = {as<SquaredNorms>(m.second), chunks},
                                           .trust_ratios = {as<float>(m.b), 1},
                                           .momentum = 0.9f});
                    }),
          {"restore", true, [](Backend& backend, BenchArena& m) -> BenchCall {
             auto control =
                 std::make_shared<Buffer>(on_device(m.stream, std::vector<StepControl>{{.finite = 0}}));
             return {.call =
                         [&backend, &m, control] {
                           backend.restore_if_skipped(m.stream, {.control = as<StepControl>(*control),
                                                                 .count = m.count,
                                                                 .from = as<float>(m.value),
                                                                 .to = as<float>(m.momentum)});
                         },
                     .bytes = 8.0 * static_cast<double>(m.count),
                     .result = m.momentum.data(),
                     .result_layout = flat(m, DType::f32)};
           }}};
}

// Activations as convolutions deliver them: the arena's elements, or a few less.
Layout activations(Backend& backend, const BenchArena& m) {
  const std::int64_t batch = std::max<std::int64_t>(1, m.count / (kChannels * kSide * kSide));
  const auto images =
      backend.image_input({.batch = batch, .height = kSide, .width = kSide, .channels = 4, .type = m.type});
  KernelChoices first;
  const ConvolutionShape shape{
      .batch = batch, .in_channels = 4, .in_height = kSide, .in_width = kSide, .out_channels = kChannels};
  return backend.convolution(shape, images->output(), first)->output();
}

// Puts what lies there in plain order into the layout, by way of c.
void arrange(Backend& backend, BenchArena& m, const Buffer& memory, const Layout& layout) {
  CHECK(layout.bytes() <= memory.bytes(), "{} bytes into {}", layout.bytes(), memory.bytes());
  const Layout plain(layout.shape(), layout.dtype());
  m.stream.copy(m.c.data(), memory.data(), plain.bytes());
  backend.reorder(plain, layout)->run(m.stream, m.c.data(), memory.data());
  m.stream.synchronize();
}

struct BatchNormMemory {
  std::unique_ptr<BatchNormKernel> kernel;
  Buffer channels, saved, scratch;  // channels: scale, shift, mean, variance, and two gradients
  float* channel(int which) const { return as<float>(channels) + which * kChannels; }
};

// With ReLU, and with or without a residual, which lies in `value`.
BenchKernel batch_norm(const char* name, bool residual, bool backward) {
  return {name, false, [=](Backend& backend, BenchArena& m) -> BenchCall {
            auto p = std::make_shared<BatchNormMemory>();
            const Layout layout = activations(backend, m);
            p->kernel = backend.batch_norm({.activation = Activation::relu, .residual = residual}, layout);
            const Device device = m.stream.device();
            p->channels = Buffer(6 * kChannels * sizeof(float), device);
            p->saved = Buffer(p->kernel->saved_bytes(), device);
            p->scratch = Buffer(p->kernel->scratch_bytes(), device);
            m.stream.copy(p->channels.data(), m.value.data(), 2 * kChannels * sizeof(float));
            m.stream.copy(m.value.data(), m.b.data(), layout.bytes());
            for (const Buffer* tensor : {&m.a, &m.b, &m.value}) arrange(backend, m, *tensor, layout);
            const auto forward = [&m, p, residual] {
              p->kernel->forward_training(m.stream, {.x = m.a.data(),
                                                     .residual = residual ? m.value.data() : nullptr,
                                                     .parameters = {p->channel(0), p->channel(1)},
                                                     .running = {p->channel(2), p->channel(3)},
                                                     .y = m.c.data(),
                                                     .saved = p->saved.data(),
                                                     .scratch = p->scratch.data()});
            };
            const auto elements = static_cast<double>(layout.physical_elements());
            const double bits = residual ? elements / 8 : 0;  // where the activation passed
            const auto tensor = static_cast<double>(layout.bytes());
            BenchCall made{.result = m.c.data(), .result_layout = layout};
            if (!backward) {
              made.call = forward;
              made.bytes = (residual ? 4 : 3) * tensor + bits;
              return made;
            }
            forward();
            made.call = [&m, p, residual] {
              p->kernel->backward(m.stream, {.x = m.a.data(),
                                             .y_gradient = m.b.data(),
                                             .parameters = {p->channel(0), p->channel(1)},
                                             .saved = p->saved.data(),
                                             .x_gradient = m.c.data(),
                                             .residual_gradient = residual ? m.value.data() : nullptr,
                                             .scale_gradient = p->channel(4),
                                             .shift_gradient = p->channel(5),
                                             .scratch = p->scratch.data()});
            };
            made.bytes = (residual ? 6 : 5) * tensor + 2 * bits;
            return made;
          }};
}

BenchKernel pooling(const char* name, const PoolingOptions& options, bool backward) {
  return {name, true, [=](Backend& backend, BenchArena& m) -> BenchCall {
            struct Planned {
              std::unique_ptr<PoolingKernel> kernel;
              Buffer saved, scratch;
            };
            auto p = std::make_shared<Planned>();
            p->kernel = backend.pooling(options, activations(backend, m));
            p->saved = Buffer(p->kernel->saved_bytes(), m.stream.device());
            p->scratch = Buffer(p->kernel->scratch_bytes(), m.stream.device());
            const Layout& input = p->kernel->input();
            const Layout& output = p->kernel->output();
            arrange(backend, m, m.a, input);
            arrange(backend, m, m.b, output);
            const auto forward = [&m, p] {
              p->kernel->forward(m.stream, m.a.data(), m.c.data(), p->saved.data(), p->scratch.data());
            };
            const auto bytes = static_cast<double>(input.bytes() + output.bytes() + p->kernel->saved_bytes());
            if (!backward)
              return {.call = forward, .bytes = bytes, .result = m.c.data(), .result_layout = output};
            forward();
            return {.call =
                        [&m, p] {
                          p->kernel->backward(m.stream, m.b.data(), p->saved.data(), m.c.data(),
                                              p->scratch.data());
                        },
                    .bytes = bytes,
                    .result = m.c.data(),
                    .result_layout = input};
          }};
}

BenchKernel image_input() {
  return {"image input", true, [](Backend& backend, BenchArena& m) -> BenchCall {
            constexpr std::int64_t kColours = 3;
            constexpr std::int64_t kPadded = 8;  // channels at most
            const std::int64_t batch = std::max<std::int64_t>(1, m.count / (kPadded * kSide * kSide));
            std::shared_ptr<ImageInputKernel> kernel = backend.image_input(
                {.batch = batch, .height = kSide, .width = kSide, .channels = kColours, .type = m.type});
            const Layout& output = kernel->output();
            return {.call = [&m, kernel] { kernel->run(m.stream, as<const std::uint8_t>(m.a), m.c.data()); },
                    .bytes = static_cast<double>(batch * kSide * kSide * kColours) +
                             static_cast<double>(output.bytes()),
                    .result = m.c.data(),
                    .result_layout = output};
          }};
}

BenchKernel reorder() {
  return {"reorder", false, [](Backend& backend, BenchArena& m) -> BenchCall {
            const Layout layout = activations(backend, m);
            const Layout plain(layout.shape(), layout.dtype());
            std::shared_ptr<ReorderKernel> kernel = backend.reorder(plain, layout);
            return {.call = [&m, kernel] { kernel->run(m.stream, m.a.data(), m.c.data()); },
                    .bytes = static_cast<double>(plain.bytes() + layout.bytes()),
                    .result = m.c.data(),
                    .result_layout = layout};
          }};
}

BenchKernel loss() {
  return {"softmax cross-entropy", false, [](Backend& backend, BenchArena& m) -> BenchCall {
            struct Planned {
              Buffer labels, weights, sums, scratch;
            };
            const std::int64_t batch = std::max<std::int64_t>(1, m.count / kClasses);
            const auto samples = static_cast<std::size_t>(batch);
            auto p = std::make_shared<Planned>();
            std::vector<std::int32_t> labels(samples);
            for (std::size_t i = 0; i < samples; ++i) labels[i] = static_cast<std::int32_t>(i % kClasses);
            p->labels = on_device(m.stream, labels);
            p->weights = on_device(m.stream, std::vector<float>(samples, 1.0f));
            p->sums = Buffer(sizeof(LossSums), m.stream.device());
            p->scratch = Buffer(backend.loss_scratch_bytes(batch), m.stream.device());
            return {
                .call =
                    [&backend, &m, p, batch] {
                      backend.softmax_cross_entropy(m.stream, {.batch = batch,
                                                               .classes = kClasses,
                                                               .type = m.type,
                                                               .logits = m.a.data(),
                                                               .labels = as<std::int32_t>(p->labels),
                                                               .weights = as<float>(p->weights),
                                                               .gradient_scale = 1,
                                                               .logits_gradient = m.c.data(),
                                                               .sums = as<LossSums>(p->sums),
                                                               .scratch = p->scratch.data()});
                    },
                .bytes = 2.0 * static_cast<double>(batch * kClasses) * static_cast<double>(size_of(m.type)),
                .result = m.c.data(),
                .result_layout = Layout({batch, kClasses}, m.type)};
          }};
}

}  // namespace

BenchArena::BenchArena(Device device, DType element, std::int64_t elements)
    : count(elements), type(element), stream(device, StreamUse::compute) {
  const auto bytes = static_cast<std::size_t>(count) * size_of(type);
  for (Buffer* tensor : {&a, &b, &c}) *tensor = Buffer(bytes, device);
  for (Buffer* state : {&value, &momentum, &second})
    *state = Buffer(static_cast<std::size_t>(count) * sizeof(float), device);
  flag = Buffer(sizeof(std::int32_t), device);
  for (const auto& [tensor, name] : {std::pair(&a, "a"), std::pair(&b, "b"), std::pair(&c, "c")}) {
    fill(stream, value, name);
    backend_for(device).cast(stream, {.count = count,
                                      .from_type = DType::f32,
                                      .to_type = type,
                                      .from = value.data(),
                                      .to = tensor->data()});
  }
  fill(stream, value, "value");
}

std::vector<BenchKernel> bench_kernels() {
  const PoolingOptions max{.kind = PoolingKind::max, .kernel = 3, .stride = 2, .padding = 1};
  const PoolingOptions average{.kind = PoolingKind::average, .kernel = 2, .stride = 2};
  const PoolingOptions global{.kind = PoolingKind::average, .global = true};
  std::vector<BenchKernel> all = elementwise_kernels();
  std::ranges::move(optimizer_kernels(), std::back_inserter(all));
  std::ranges::move(
      std::vector<BenchKernel>{
          batch_norm("batch norm", false, false), batch_norm("batch norm backward", false, true),
          batch_norm("batch norm + add", true, false), batch_norm("batch norm + add backward", true, true),
          pooling("max pooling", max, false), pooling("max pooling backward", max, true),
          pooling("average pooling", average, false), pooling("average pooling backward", average, true),
          pooling("global pooling", global, false), pooling("global pooling backward", global, true),
          image_input(), reorder(), loss()},
      std::back_inserter(all));
  return all;
}

std::vector<float> read_result(Backend& backend, Stream& stream, const BenchCall& call) {
  const Layout& layout = call.result_layout;
  const Layout plain(layout.shape(), layout.dtype());
  const auto elements = static_cast<std::size_t>(layout.shape().elements());
  std::vector<float> values(elements);
  if (layout.dtype() == DType::i32) {
    std::vector<std::int32_t> integers(elements);
    stream.copy(integers.data(), call.result, elements * sizeof(std::int32_t));
    stream.synchronize();
    std::ranges::copy(integers, values.begin());
    return values;
  }
  const void* in_order = call.result;
  const Buffer staging(layout.is_plain() ? 0 : plain.bytes(), stream.device());
  if (!layout.is_plain()) {
    backend.reorder(layout, plain)->run(stream, call.result, staging.data());
    in_order = staging.data();
  }
  std::vector<std::byte> raw(plain.bytes());
  stream.copy(raw.data(), in_order, raw.size());
  stream.synchronize();
  Stream host({}, StreamUse::compute);
  backend_for({}).cast(host, {.count = layout.shape().elements(),
                              .from_type = layout.dtype(),
                              .to_type = DType::f32,
                              .from = raw.data(),
                              .to = values.data()});
  return values;
}

}  // namespace lockstep
