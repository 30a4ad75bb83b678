// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <memory>

#include "benchmarks/bench_kernels.h"
#include "benchmarks/on_device.h"
#include "core/error.h"

namespace lockstep {
namespace {

constexpr std::int64_t kChannels = 64;
constexpr std::int64_t kSide = 32;
constexpr std::int64_t kClasses = 1000;
constexpr std::int64_t kFeatures = 1024;  // of layer norm and softmax

// The layout of a convolution's output, with at most the arena's elements (at least one image).
Layout activations(Backend& backend, const BenchArena& m) {
  const std::int64_t batch = std::max<std::int64_t>(1, m.count / (kChannels * kSide * kSide));
  const auto images =
      backend.image_input({.batch = batch, .height = kSide, .width = kSide, .channels = 4, .type = m.type});
  KernelChoices first;
  const ConvolutionShape shape{
      .batch = batch, .in_channels = 4, .in_height = kSide, .in_width = kSide, .out_channels = kChannels};
  return backend.convolution(shape, images->output(), first)->output();
}

// Reorders memory from plain order to the layout; overwrites c.
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

// Batch norm with ReLU, and with or without a residual, which is in `value`.
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
            const double bits = residual ? elements / 8 : 0;  // bytes of the ReLU mask
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

BenchKernel layer_norm(const char* name, bool backward) {
  return {name, false, [=](Backend& backend, BenchArena& m) -> BenchCall {
            struct Planned {
              Buffer moments, gradients;  // gradients: of scale and shift, which are in `value`
            };
            auto p = std::make_shared<Planned>();
            const std::int64_t batch = m.count / kFeatures;
            const Layout layout({batch, kFeatures}, m.type);
            p->moments =
                Buffer(static_cast<std::size_t>(batch) * sizeof(LayerNormMoments), m.stream.device());
            p->gradients = Buffer(2 * kFeatures * sizeof(float), m.stream.device());
            const auto forward = [&backend, &m, p, batch] {
              backend.layer_norm_forward(m.stream, {.batch = batch,
                                                    .features = kFeatures,
                                                    .type = m.type,
                                                    .x = m.a.data(),
                                                    .scale = as<float>(m.value),
                                                    .shift = as<float>(m.value) + kFeatures,
                                                    .y = m.c.data(),
                                                    .moments = as<LayerNormMoments>(p->moments)});
            };
            const auto tensor = static_cast<double>(layout.bytes());
            if (!backward)
              return {.call = forward, .bytes = 2 * tensor, .result = m.c.data(), .result_layout = layout};
            forward();
            return {.call =
                        [&backend, &m, p, batch] {
                          backend.layer_norm_backward(
                              m.stream, {.batch = batch,
                                         .features = kFeatures,
                                         .type = m.type,
                                         .x = m.a.data(),
                                         .y_gradient = m.b.data(),
                                         .scale = as<float>(m.value),
                                         .moments = as<LayerNormMoments>(p->moments),
                                         .x_gradient = m.c.data(),
                                         .scale_gradient = as<float>(p->gradients),
                                         .shift_gradient = as<float>(p->gradients) + kFeatures});
                        },
                    .bytes = 3 * tensor,
                    .result = m.c.data(),
                    .result_layout = layout};
          }};
}

BenchKernel softmax(const char* name, bool backward) {
  return {name, false, [=](Backend& backend, BenchArena& m) -> BenchCall {
            const SoftmaxShape shape{.batch = m.count / kFeatures, .channels = kFeatures, .type = m.type};
            const Layout layout({shape.batch, kFeatures}, m.type);
            const auto forward = [&backend, &m, shape](void* y) {
              backend.softmax_forward(m.stream, {.shape = shape, .x = m.a.data(), .y = y});
            };
            const auto tensor = static_cast<double>(layout.bytes());
            if (!backward) {
              return {.call = [&m, forward] { forward(m.c.data()); },
                      .bytes = 2 * tensor,
                      .result = m.c.data(),
                      .result_layout = layout};
            }
            forward(m.a.data());
            return {.call =
                        [&backend, &m, shape] {
                          backend.softmax_backward(m.stream, {.shape = shape,
                                                              .y = m.a.data(),
                                                              .y_gradient = m.b.data(),
                                                              .x_gradient = m.c.data()});
                        },
                    .bytes = 3 * tensor,
                    .result = m.c.data(),
                    .result_layout = layout};
          }};
}

BenchKernel image_input() {
  return {"image input", true, [](Backend& backend, BenchArena& m) -> BenchCall {
            constexpr std::int64_t kColours = 3;
            constexpr std::int64_t kPadded = 8;  // most channels with padding
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

std::vector<BenchKernel> bench_layer_kernels() {
  const PoolingOptions max{.kind = PoolingKind::max, .kernel = 3, .stride = 2, .padding = 1};
  const PoolingOptions average{.kind = PoolingKind::average, .kernel = 2, .stride = 2};
  const PoolingOptions global{.kind = PoolingKind::average, .global = true};
  return {batch_norm("batch norm", false, false),
          batch_norm("batch norm backward", false, true),
          batch_norm("batch norm + add", true, false),
          batch_norm("batch norm + add backward", true, true),
          layer_norm("layer norm", false),
          layer_norm("layer norm backward", true),
          softmax("softmax", false),
          softmax("softmax backward", true),
          pooling("max pooling", max, false),
          pooling("max pooling backward", max, true),
          pooling("average pooling", average, false),
          pooling("average pooling backward", average, true),
          pooling("global pooling", global, false),
          pooling("global pooling backward", global, true),
          image_input(),
          reorder(),
          loss()};
}

}  // namespace lockstep
