// SPDX-License-Identifier: Apache-2.0
//
// Operations of the CUDA backend on a GPU, compared with the CPU backend in fp32 on operands rounded to the
// type.
#include <cmath>
#include <limits>

#include "core/error.h"
#include "tests/kernels/cuda_backend_fixture.h"
#include "tests/kernels/typed_kernels.h"
#include "tests/message_of.h"

namespace lockstep {
namespace {

using Results = std::vector<Values>;

constexpr std::int64_t kElementCounts[] = {1, 7, 8, 1023, 100'003};
constexpr Activation kActivations[] = {Activation::none, Activation::relu, Activation::relu6};

// Random values, some beyond the upper kink of relu6.
Values values_of(DType type, std::int64_t count, std::string_view purpose) {
  Values values = random_values(count, purpose);
  for (float& value : values) value *= 9;
  return rounded(values, type);
}

Layout flat(std::int64_t count, DType type) { return Layout({count}, type); }

template <typename T>
Buffer on_device(Stream& stream, const std::vector<T>& items) {
  Buffer buffer(items.size() * sizeof(T), stream.device());
  stream.copy(buffer.data(), items.data(), buffer.bytes());
  stream.synchronize();
  return buffer;
}

template <typename T>
T read(Stream& stream, const Buffer& buffer) {
  T value;
  stream.copy(&value, buffer.data(), sizeof(T));
  stream.synchronize();
  return value;
}

class CudaBackend : public testing::TestWithParam<DType> {
 protected:
  void SetUp() override { SKIP_WITHOUT_A_GPU(); }

  // Expects run(side, type) to give the CPU's results on the GPU.
  template <typename Run>
  void expect_cpus(Run run) {
    Side cpu(Device{}), gpu(kGpu);
    const Results expected = run(cpu, DType::f32);
    const Results actual = run(gpu, GetParam());
    ASSERT_EQ(actual.size(), expected.size());
    for (std::size_t i = 0; i < expected.size(); ++i) {
      EXPECT_LT(relative_error(actual[i], widen(expected[i])), tolerance_of(GetParam())) << "result " << i;
    }
  }
};

TEST_P(CudaBackend, ActivationsSumsAndProductsMatchTheCpu) {
  for (const std::int64_t count : kElementCounts) {
    for (const Activation activation : kActivations) {
      SCOPED_TRACE(fmt::format("{} elements, activation {}", count, static_cast<int>(activation)));
      expect_cpus([&](Side& side, DType type) {
        const Values a = values_of(GetParam(), count, "a"), b = values_of(GetParam(), count, "b");
        const TypedTensor x(side.lab, type, a), gradient(side.lab, type, b), scaled(side.lab, type, a),
            y(side.lab, flat(count, type)), x_gradient(side.lab, flat(count, type)),
            sum(side.lab, flat(count, type));
        side.backend.activation_forward(side.stream, {activation, type, count, x.data(), y.data()});
        side.backend.activation_backward(
            side.stream, {activation, type, count, x.data(), gradient.data(), x_gradient.data()});
        side.backend.add(side.stream, {type, count, x.data(), gradient.data(), sum.data()});
        side.backend.scale(side.stream, {type, count, 0.3f, scaled.data()});
        return Results{y.plain(), x_gradient.plain(), sum.plain(), scaled.plain()};
      });
    }
  }
}

TEST_P(CudaBackend, CastsMatchTheCpu) {
  Side gpu(kGpu);
  for (const std::int64_t count : kElementCounts) {
    for (const DType to : kTypes) {
      const Values values = values_of(GetParam(), count, "x");
      const TypedTensor from(gpu.lab, GetParam(), values), result(gpu.lab, flat(count, to));
      gpu.backend.cast(gpu.stream, {count, GetParam(), to, from.data(), result.data()});
      EXPECT_EQ(result.plain(), rounded(values, to)) << name_of(to);
    }
  }
}

TEST_P(CudaBackend, FindsASingleInfinityOrNaN) {
  Side gpu(kGpu);
  Buffer flag(sizeof(std::int32_t), kGpu);
  for (const std::int64_t count : kElementCounts) {
    Values values = values_of(GetParam(), count, "x");
    const auto judged = [&](Write write) {
      const TypedTensor x(gpu.lab, GetParam(), values);
      gpu.backend.all_finite(
          gpu.stream, {GetParam(), count, x.data(), reinterpret_cast<std::int32_t*>(flag.data()), write});
      return read<std::int32_t>(gpu.stream, flag);
    };
    EXPECT_EQ(judged(Write::overwrite), 1);
    for (const float bad : {std::numeric_limits<float>::infinity(), std::nanf("")}) {
      for (const std::int64_t place : {std::int64_t{0}, count / 2, count - 1}) {
        values = values_of(GetParam(), count, "x");
        values[static_cast<std::size_t>(place)] = bad;
        EXPECT_EQ(judged(Write::overwrite), 0) << place << " of " << count;
      }
    }
    values = values_of(GetParam(), count, "x");
    EXPECT_EQ(judged(Write::accumulate), 0);
    EXPECT_EQ(judged(Write::overwrite), 1);
  }
}

TEST_P(CudaBackend, DropoutHasTheCpusMask) {
  const std::vector<SampleId> samples = {{1, 7}, {2, 7}, {0, 123456}};
  for (const std::int64_t features : {1, 8, 147, 2049}) {
    expect_cpus([&](Side& side, DType type) {
      const auto batch = static_cast<std::int64_t>(samples.size());
      const TypedTensor x(side.lab, type, values_of(GetParam(), batch * features, "x")),
          y(side.lab, flat(batch * features, type));
      const Buffer ids = on_device(side.stream, samples);
      side.backend.dropout(side.stream, {.batch = batch,
                                         .features = features,
                                         .samples = reinterpret_cast<const SampleId*>(ids.data()),
                                         .key = key_for(1, "test"),
                                         .probability = 0.4f,
                                         .type = type,
                                         .x = x.data(),
                                         .y = y.data()});
      return Results{y.plain()};
    });
  }
}

TEST_P(CudaBackend, BatchNormMatchesTheCpuInEveryLayout) {
  Side cpu(Device{}), gpu(kGpu);
  for (const Shape& shape : {Shape{16, 64, 9, 7}, Shape{8, 3, 13, 11}, Shape{65, 40}}) {
    for (const Activation activation : kActivations) {
      for (const bool residual : {false, true}) {
        const BatchNormOptions options{.activation = activation, .residual = residual};
        const auto reference = cpu.backend.batch_norm(options, Layout(shape, DType::f32));
        const std::vector<Values> expected = run_batch_norm(cpu.lab, *reference, options);
        for (const Layout& layout : cuda_layouts_of(shape, GetParam())) {
          SCOPED_TRACE(layout.describe());
          const auto kernel = gpu.backend.batch_norm(options, layout);
          const std::vector<Values> actual = run_batch_norm(gpu.lab, *kernel, options);
          for (std::size_t i = 0; i < expected.size(); ++i) {
            EXPECT_LT(relative_error(actual[i], widen(expected[i])), tolerance_of(GetParam()))
                << "result " << i;
          }
        }
      }
    }
  }
}

TEST_P(CudaBackend, PoolingMatchesTheCpuInEveryLayout) {
  Side cpu(Device{}), gpu(kGpu);
  for (const Shape& shape : {Shape{4, 64, 15, 14}, Shape{2, 5, 9, 7}}) {
    for (const PoolingKind kind : {PoolingKind::max, PoolingKind::average}) {
      for (const PoolingOptions& options : {PoolingOptions{.kind = kind},
                                            {.kind = kind, .kernel = 3, .stride = 2, .padding = 1},
                                            {.kind = kind, .global = true}}) {
        const auto reference = cpu.backend.pooling(options, Layout(shape, DType::f32));
        const std::vector<Values> expected = run_pooling(cpu.lab, *reference);
        for (const Layout& layout : cuda_layouts_of(shape, GetParam())) {
          SCOPED_TRACE(layout.describe());
          const auto kernel = gpu.backend.pooling(options, layout);
          const std::vector<Values> actual = run_pooling(gpu.lab, *kernel);
          for (std::size_t i = 0; i < 2; ++i) {
            EXPECT_LT(relative_error(actual[i], widen(expected[i])), tolerance_of(GetParam()))
                << "result " << i;
          }
        }
      }
    }
  }
}

TEST_P(CudaBackend, ReordersBetweenAllLayouts) {
  Side gpu(kGpu);
  for (const Shape& shape : {Shape{4, 64, 15, 14}, Shape{2, 3, 33, 31}, Shape{130, 70, 1, 2}}) {
    const Values values = values_of(GetParam(), shape.elements(), "x");
    const std::vector<Layout> layouts = cuda_layouts_of(shape, GetParam());
    for (const Layout& from : layouts) {
      for (const Layout& to : layouts) {
        const TypedTensor source(gpu.lab, from, values), target(gpu.lab, to);
        gpu.backend.reorder(from, to)->run(gpu.stream, source.data(), target.data());
        EXPECT_EQ(target.plain(), values) << from.describe() << " to " << to.describe();
        EXPECT_TRUE(target.padding_is_zero());
      }
    }
  }
}

TEST_P(CudaBackend, ImagesMatchTheCpu) {
  const float mean[] = {0.1f, 0.5f, 0.9f, 0.3f}, deviation[] = {0.25f, 0.5f, 2.0f, 1.0f};
  for (const std::size_t channels : {1, 2, 3, 4}) {
    std::vector<std::uint8_t> images(3 * 31 * 33 * channels);
    for (std::size_t i = 0; i < images.size(); ++i) images[i] = static_cast<std::uint8_t>(i * 37 + 11);
    expect_cpus([&](Side& side, DType type) {
      const auto kernel = side.backend.image_input(
          {.batch = 3,
           .height = 31,
           .width = 33,
           .channels = static_cast<std::int64_t>(channels),
           .mean = std::span(mean).first(channels),
           .deviation = std::span(deviation).first(channels),
           .type = type,
           .augmentation = {.crop_padding = 4, .horizontal_flip = true, .key = {3, 5}}});
      const Buffer pixels = on_device(side.stream, images);
      const Buffer samples = on_device(side.stream, std::vector<SampleId>{{1, 7}, {1, 8}, {1, 300}});
      const TypedTensor output(side.lab, kernel->output()), augmented(side.lab, kernel->output());
      const auto* bytes = reinterpret_cast<const std::uint8_t*>(pixels.data());
      kernel->run(side.stream, bytes, output.data());
      kernel->run(side.stream, bytes, augmented.data(), reinterpret_cast<const SampleId*>(samples.data()));
      EXPECT_TRUE(output.padding_is_zero() && augmented.padding_is_zero());
      return Results{output.plain(), augmented.plain()};
    });
  }
}

TEST_P(CudaBackend, SoftmaxCrossEntropyMatchesTheCpu) {
  for (const auto& [batch, classes] : {std::pair<std::int64_t, std::int64_t>{1, 1}, {33, 101}, {300, 10}}) {
    for (const float smoothing : {0.0f, 0.1f}) {
      expect_cpus([&, samples = batch, count = classes](Side& side, DType type) {
        std::vector<std::int32_t> labels;
        Values weights = random_values(samples, "weights");
        for (std::int64_t i = 0; i < samples; ++i) {
          labels.push_back(static_cast<std::int32_t>(i * 7 % count));
          weights[static_cast<std::size_t>(i)] = i % 5 == 3 ? 0 : 1.5f + weights[static_cast<std::size_t>(i)];
        }
        const TypedTensor logits(side.lab, type, values_of(GetParam(), samples * count, "logits")),
            gradient(side.lab, flat(samples * count, type)), weight(side.lab, DType::f32, weights),
            scale(side.lab, DType::f32, {1024}),
            scratch(
                side.lab,
                Layout({static_cast<std::int64_t>(side.backend.loss_scratch_bytes(samples)) + 1}, DType::u8));
        const Buffer label = on_device(side.stream, labels), sums(sizeof(LossSums), side.stream.device());
        side.backend.softmax_cross_entropy(side.stream,
                                           {.batch = samples,
                                            .classes = count,
                                            .type = type,
                                            .logits = logits.data(),
                                            .labels = reinterpret_cast<const std::int32_t*>(label.data()),
                                            .weights = weight.floats(),
                                            .label_smoothing = smoothing,
                                            .gradient_scale = 1.0f / static_cast<float>(samples),
                                            .loss_scale = scale.floats(),
                                            .logits_gradient = gradient.data(),
                                            .sums = reinterpret_cast<LossSums*>(sums.data()),
                                            .scratch = scratch.data()});
        const auto total = read<LossSums>(side.stream, sums);
        return Results{gradient.plain(), Values{total.loss, total.weight},
                       Values{static_cast<float>(total.correct), static_cast<float>(total.samples)}};
      });
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Types, CudaBackend, testing::ValuesIn(kTypes),
                         [](const auto& type) { return std::string(name_of(type.param)); });

// data.augment_on changes no byte.
TEST(CudaBackendItself, ColorJitterHasTheBytesOfTheCpu) {
  SKIP_WITHOUT_A_GPU();
  constexpr std::int64_t kBatch = 200, kSide = 32, kChannels = 3;
  std::vector<std::uint8_t> images;
  for (const float value : random_values(kBatch * kSide * kSide * kChannels, "colours"))
    images.push_back(static_cast<std::uint8_t>(static_cast<std::int32_t>(value * 1e6f)));
  std::vector<SampleId> samples;
  for (std::int32_t i = 0; i < kBatch; ++i) samples.push_back({.epoch = 2, .index = i});
  const auto jittered = [&](Device device) {
    Side side(device);
    const Buffer from = on_device(side.stream, images), ids = on_device(side.stream, samples);
    Buffer to(images.size(), device);
    side.backend.color_jitter(side.stream,
                              {.batch = kBatch,
                               .height = kSide,
                               .width = kSide,
                               .channels = kChannels,
                               .how = {.brightness = 0.4, .contrast = 0.4, .saturation = 0.4, .hue = 0.1},
                               .key = {3, 4},
                               .images = reinterpret_cast<const std::uint8_t*>(from.data()),
                               .samples = reinterpret_cast<const SampleId*>(ids.data()),
                               .output = reinterpret_cast<std::uint8_t*>(to.data())});
    std::vector<std::uint8_t> output(images.size());
    side.stream.copy(output.data(), to.data(), to.bytes());
    side.stream.synchronize();
    return output;
  };
  EXPECT_EQ(jittered(kGpu), jittered(Device{}));
}

TEST(CudaBackendItself, DescribesItselfAndIsCreatedOncePerDevice) {
  SKIP_WITHOUT_A_GPU();
  Backend& backend = backend_for(kGpu);
  EXPECT_EQ(&backend, &backend_for(kGpu));
  const std::string name = cuda_status().devices.front().name;
  EXPECT_NE(backend.describe().find("cuDNN 9."), std::string::npos) << backend.describe();
  EXPECT_NE(backend.describe().find(name), std::string::npos) << backend.describe();
  EXPECT_NE(backend.identity().find("driver"), std::string::npos) << backend.identity();
}

TEST(CudaBackendItself, ReportsTheBatchMultiplesForTensorCores) {
  SKIP_WITHOUT_A_GPU();
  Backend& backend = backend_for(kGpu);
  EXPECT_EQ(backend.batch_multiple(DType::f16), 8);
  EXPECT_EQ(backend.batch_multiple(DType::f32), 4);
}

TEST(CudaBackendItself, MeasuresAPlausiblePeak) {
  SKIP_WITHOUT_A_GPU();
  if (cuda_status().devices[0].name == "emulated GPU")
    GTEST_SKIP() << "an emulated device has no measurable speed";
  const Peak peak = backend_for(kGpu).measure_peak();
  EXPECT_GT(peak.gigaflops, 100);
  EXPECT_GT(peak.tf32_gigaflops, peak.gigaflops);
  EXPECT_GT(peak.half_gigaflops, peak.tf32_gigaflops);
  EXPECT_GT(peak.gigabytes_per_second, 10);
}

TEST(CudaBackendItself, WithoutADeviceNamesTheOptionToChange) {
  EXPECT_TRUE(has_backend(DeviceKind::cuda));
  const Device none{.kind = DeviceKind::cuda, .index = 1000};
  const std::string message = message_of<ConfigError>([&] { backend_for(none); });
  expect_parts(message,
               {"cuda:1000", cuda_status().devices.empty() ? "--device cpu" : "CUDA_VISIBLE_DEVICES"});
}

}  // namespace
}  // namespace lockstep
