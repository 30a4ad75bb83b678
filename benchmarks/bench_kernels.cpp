// SPDX-License-Identifier: Apache-2.0
#include "benchmarks/bench_kernels.h"

#include <algorithm>
#include <memory>
#include <span>
#include <utility>

#include "benchmarks/on_device.h"
#include "core/random.h"

namespace lockstep {
namespace {

constexpr std::int64_t kSampleFeatures = 64 * 32 * 32;

// Fills memory with a repeated pattern of noise.
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

Layout flat(const BenchArena& m, DType type) { return Layout({m.count}, type); }

// An elementwise kernel. tensors: number of tensors that it reads or writes. more: other bytes per element.
// call(backend, arena) writes its result to c.
template <typename Call>
BenchKernel elementwise(const char* name, int tensors, int more, Call call) {
  return {name, true, [=](Backend& backend, BenchArena& m) -> BenchCall {
            const auto t = static_cast<double>(size_of(m.type));
            return {.call = [&backend, &m, call] { call(backend, m); },
                    .bytes = (tensors * t + more) * static_cast<double>(m.count),
                    .result = m.c.data(),
                    .result_layout = flat(m, m.type)};
          }};
}

std::vector<BenchKernel> elementwise_kernels() {
  std::vector<BenchKernel> all = {
      elementwise("add", 3, 0,
                  [](Backend& backend, BenchArena& m) {
                    backend.add(m.stream, {m.type, m.count, m.a.data(), m.b.data(), m.c.data()});
                  }),
      elementwise(
          "relu", 2, 0,
          [](Backend& backend, BenchArena& m) {
            backend.activation_forward(m.stream, {Activation::relu, m.type, m.count, m.a.data(), m.c.data()});
          }),
      elementwise("relu backward", 3, 0,
                  [](Backend& backend, BenchArena& m) {
                    backend.activation_backward(
                        m.stream, {Activation::relu, m.type, m.count, m.a.data(), m.b.data(), m.c.data()});
                  }),
      elementwise("scale", 2, 0,
                  [](Backend& backend, BenchArena& m) {
                    backend.scale(m.stream, {m.type, m.count, -1.0f, m.c.data()});
                  }),
      elementwise("cast from fp32", 1, 4, [](Backend& backend, BenchArena& m) {
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
                   const std::int64_t features = std::min<std::int64_t>(m.count, kSampleFeatures);
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

// step(backend, arena, update). state_bytes: bytes per element besides one read and write of the value, the
// gradients and the half copy. gradients: number of times that gradients are read.
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
                      backend.update(m.stream, update,
                                     SgdUpdate{.momentum_buffer = as<float>(m.momentum), .momentum = 0.9f});
                    }),
          optimizer("adamw", 16, 1,
                    [](Backend& backend, BenchArena& m, const Update& update) {
                      backend.update(m.stream, update,
                                     AdamWUpdate{.first_moment = as<float>(m.momentum),
                                                 .second_moment = as<float>(m.second)});
                    }),
          // Computes norms first, which reads values and gradients once more.
          optimizer("lars", 12, 2,
                    [](Backend& backend, BenchArena& m, const Update& update) {
                      const std::size_t chunks = update.table.chunks().size();
                      backend.update(m.stream, update,
                                     LarsUpdate{.momentum_buffer = as<float>(m.momentum),
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

// Uses the fp32 arrays for every element type.
std::vector<BenchKernel> codec_kernels() {
  struct Row {
    const char* name;
    BlockCode code;
    bool encodes;
  };
  std::vector<BenchKernel> all;
  for (const Row& row :
       {Row{"int8 encode", BlockCode::int8, true}, Row{"int8 decode", BlockCode::int8, false},
        Row{"sign encode", BlockCode::sign, true}, Row{"sign decode", BlockCode::sign, false}}) {
    all.push_back(
        {row.name, false, [row](Backend& backend, BenchArena& m) -> BenchCall {
           const std::int64_t blocks = m.count / kBlockElements;
           const BlockEncode encode{.code = row.code,
                                    .blocks = blocks,
                                    .values = as<float>(m.value),
                                    .residual = as<float>(m.momentum),
                                    .left = as<float>(m.second),
                                    .records = m.c.data()};
           const BlockSum sum{
               .code = row.code, .blocks = blocks, .records = m.c.data(), .values = as<float>(m.second)};
           backend.encode_blocks(m.stream, encode);
           const auto values = static_cast<double>(blocks * kBlockElements);
           const auto records = static_cast<double>(blocks * record_bytes(row.code));
           return {.call =
                       [&backend, &m, encode, sum, row] {
                         row.encodes ? backend.encode_blocks(m.stream, encode)
                                     : backend.sum_blocks(m.stream, sum);
                       },
                   .bytes = (row.encodes ? 12 : 4) * values + records,
                   .result = m.second.data(),
                   .result_layout = Layout({blocks * kBlockElements}, DType::f32)};
         }});
  }
  return all;
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
  std::vector<BenchKernel> all = elementwise_kernels();
  std::ranges::move(optimizer_kernels(), std::back_inserter(all));
  std::ranges::move(codec_kernels(), std::back_inserter(all));
  std::ranges::move(bench_layer_kernels(), std::back_inserter(all));
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
