// SPDX-License-Identifier: Apache-2.0
//
// How close are our own kernels to the memory's speed? Each moves at least so many bytes; what it reaches is
// held against a copy on the same device in the same run, for several sizes of memory. Results are compared
// with the CPU's before a time is reported.
#include <cmath>
#include <cstdio>

#include "benchmarks/bench_network.h"
#include "benchmarks/measure.h"
#include "core/error.h"
#include "core/random.h"
#include "core/timeline.h"

namespace lockstep {
namespace {

struct Options {
  std::string device = "cpu";
  std::string precision = "fp32";
  int threads = 2;
  std::vector<std::int64_t> mib = {1, 16, 64, 256};
  int repeats = 9;
  std::string json;
};

// Memory for every kernel: three tensors, two fp32 arrays and what belongs to them.
class Arena {
 public:
  Arena(Device device, DType element, std::int64_t elements)
      : count(elements), type(element), stream(device, StreamUse::compute) {
    const auto bytes = static_cast<std::size_t>(count) * size_of(type);
    for (Buffer* tensor : {&a, &b, &c}) *tensor = Buffer(bytes, device);
    for (Buffer* state : {&value, &momentum, &second})
      *state = Buffer(static_cast<std::size_t>(count) * sizeof(float), device);
    control = Buffer(sizeof(StepControl), device);
    finite = Buffer(sizeof(std::int32_t), device);
    Backend& backend = backend_for(device);
    const StepControl start{.learning_rate = 0.01};
    stream.copy(control.data(), &start, sizeof(start));
    stream.synchronize();
    fill(backend, value, "value");
    for (const auto& [tensor, name] : {std::pair(&a, "a"), std::pair(&b, "b")}) {
      fill(backend, momentum, name);
      backend.cast(stream, {.count = count,
                            .from_type = DType::f32,
                            .to_type = type,
                            .from = momentum.data(),
                            .to = tensor->data()});
    }
    stream.synchronize();
  }

  // The first elements of a tensor.
  std::vector<float> head(const Buffer& tensor, DType of) {
    const std::int64_t some = std::min<std::int64_t>(count, 4096);
    std::vector<std::byte> raw(static_cast<std::size_t>(some) * size_of(of));
    stream.copy(raw.data(), tensor.data(), raw.size());
    stream.synchronize();
    std::vector<float> values(static_cast<std::size_t>(some));
    Stream host({}, StreamUse::compute);
    backend_for({}).cast(
        host,
        {.count = some, .from_type = of, .to_type = DType::f32, .from = raw.data(), .to = values.data()});
    return values;
  }

  std::int64_t count;
  DType type;
  Stream stream;
  Buffer a, b, c, value, momentum, second, control, finite;

 private:
  // A pattern of noise, repeated.
  void fill(Backend&, Buffer& memory, const std::string& name) {
    const Random random(1, name);
    std::vector<float> noise(static_cast<std::size_t>(std::min<std::int64_t>(count, 1 << 16)));
    for (std::size_t i = 0; i < noise.size(); ++i) noise[i] = random.normal(i);
    const std::size_t step = noise.size() * sizeof(float);
    for (std::size_t at = 0; at < memory.bytes(); at += step) {
      stream.copy(memory.data() + at, noise.data(), std::min(step, memory.bytes() - at));
    }
    stream.synchronize();
  }
};

using Call = std::function<void()>;

struct Case {
  std::string name;
  double bytes = 0;  // that must be moved at least, per element
  std::function<Call(Backend&, Arena&)> prepare;
  const Buffer Arena::*result = nullptr;
  bool result_is_fp32 = false;
};

template <typename T>
T* as(const Buffer& memory) {
  return reinterpret_cast<T*>(memory.data());
}

std::vector<Case> elementwise_cases(double t) {
  return {
      {"add", 3 * t,
       [](Backend& backend, Arena& m) -> Call {
         return [&] { backend.add(m.stream, {m.type, m.count, m.a.data(), m.b.data(), m.c.data()}); };
       },
       &Arena::c},
      {"relu", 2 * t,
       [](Backend& backend, Arena& m) -> Call {
         return [&] {
           backend.activation_forward(m.stream, {Activation::relu, m.type, m.count, m.a.data(), m.c.data()});
         };
       },
       &Arena::c},
      {"relu backward", 3 * t,
       [](Backend& backend, Arena& m) -> Call {
         return [&] {
           backend.activation_backward(
               m.stream, {Activation::relu, m.type, m.count, m.a.data(), m.b.data(), m.c.data()});
         };
       },
       &Arena::c},
      {"cast from fp32", 4 + t,
       [](Backend& backend, Arena& m) -> Call {
         return [&] { backend.cast(m.stream, {m.count, DType::f32, m.type, m.value.data(), m.c.data()}); };
       },
       &Arena::c},
      {"all finite", t,
       [](Backend& backend, Arena& m) -> Call {
         return [&] {
           backend.all_finite(m.stream,
                              {m.type, m.count, m.a.data(), as<std::int32_t>(m.finite), Write::overwrite});
         };
       },
       nullptr}};
}

// step(backend, arena, update)
template <typename Step>
std::function<Call(Backend&, Arena&)> optimizer_case(Step step) {
  return [step](Backend& backend, Arena& m) -> Call {
    const UpdateSegment all{.begin = 0, .count = m.count};
    auto table = std::make_shared<UpdateTable>(m.stream.device(), std::span(&all, 1));
    return [&backend, &m, step, table] {
      const bool half = m.type != DType::f32;
      step(backend, m,
           Update{.table = *table,
                  .value = as<float>(m.value),
                  .gradient = m.a.data(),
                  .gradient_type = m.type,
                  .copy = half ? m.c.data() : nullptr,
                  .copy_type = half ? m.type : DType::f16,
                  .control = as<StepControl>(m.control)});
    };
  };
}

std::vector<Case> optimizer_cases(double t) {
  const double copy = t < 4 ? t : 0;
  return {
      {"sgd", 16 + t + copy, optimizer_case([](Backend& backend, Arena& m, const Update& update) {
         backend.sgd_update(m.stream, update, {.momentum_buffer = as<float>(m.momentum), .momentum = 0.9f});
       }),
       &Arena::value, true},
      {"adamw", 24 + t + copy, optimizer_case([](Backend& backend, Arena& m, const Update& update) {
         backend.adamw_update(m.stream, update,
                              {.first_moment = as<float>(m.momentum), .second_moment = as<float>(m.second)});
       }),
       &Arena::value, true}};
}

constexpr std::int64_t kChannels = 64;
constexpr std::int64_t kSide = 32;

// Layout of activations as convolutions deliver them; the arena's elements, or a few less.
Layout activations(Backend& backend, const Arena& m) {
  const std::int64_t batch = std::max<std::int64_t>(1, m.count / (kChannels * kSide * kSide));
  const auto images =
      backend.image_input({.batch = batch, .height = kSide, .width = kSide, .channels = 4, .type = m.type});
  KernelChoices first;
  const ConvolutionShape shape{
      .batch = batch, .in_channels = 4, .in_height = kSide, .in_width = kSide, .out_channels = kChannels};
  return backend.convolution(shape, images->output(), first)->output();
}

// With ReLU; forward reads x twice, backward reads x and the gradient twice.
std::vector<Case> batch_norm_cases(double t) {
  struct Planned {
    std::unique_ptr<BatchNormKernel> kernel;
    Buffer channels, saved, scratch;  // channels: scale, shift, mean, variance, and two gradients
    float* channel(int which) const { return as<float>(channels) + which * kChannels; }
  };
  const auto plan = [](Backend& backend, Arena& m) {
    auto planned = std::make_shared<Planned>();
    planned->kernel = backend.batch_norm({.activation = Activation::relu}, activations(backend, m));
    const Device device = m.stream.device();
    planned->channels = Buffer(6 * kChannels * sizeof(float), device);
    planned->saved = Buffer(planned->kernel->saved_bytes(), device);
    planned->scratch = Buffer(planned->kernel->scratch_bytes(), device);
    m.stream.copy(planned->channels.data(), m.value.data(), 2 * kChannels * sizeof(float));
    planned->kernel->forward_training(m.stream, {.x = m.a.data(),
                                                 .parameters = {planned->channel(0), planned->channel(1)},
                                                 .running = {planned->channel(2), planned->channel(3)},
                                                 .y = m.c.data(),
                                                 .saved = planned->saved.data(),
                                                 .scratch = planned->scratch.data()});
    return planned;
  };
  return {{"batch norm", 3 * t,
           [plan](Backend& backend, Arena& m) -> Call {
             return [&m, p = plan(backend, m)] {
               p->kernel->forward_training(m.stream, {.x = m.a.data(),
                                                      .parameters = {p->channel(0), p->channel(1)},
                                                      .running = {p->channel(2), p->channel(3)},
                                                      .y = m.c.data(),
                                                      .saved = p->saved.data(),
                                                      .scratch = p->scratch.data()});
             };
           },
           nullptr},
          {"batch norm backward", 5 * t, [plan](Backend& backend, Arena& m) -> Call {
             return [&m, p = plan(backend, m)] {
               p->kernel->backward(m.stream, {.x = m.a.data(),
                                              .y_gradient = m.b.data(),
                                              .parameters = {p->channel(0), p->channel(1)},
                                              .saved = p->saved.data(),
                                              .x_gradient = m.c.data(),
                                              .scale_gradient = p->channel(4),
                                              .shift_gradient = p->channel(5),
                                              .scratch = p->scratch.data()});
             };
           }}};
}

std::vector<Case> cases(DType type) {
  const auto t = static_cast<double>(size_of(type));
  std::vector<Case> all = elementwise_cases(t);
  for (const auto& more : {optimizer_cases(t), batch_norm_cases(t)}) {
    all.insert(all.end(), more.begin(), more.end());
  }
  return all;
}

// Seconds of one call, of as many in a row as take a while.
double seconds_of(Stream& stream, const Call& call) {
  call();
  stream.synchronize();
  int calls = 1;
  for (;;) {
    const std::int64_t begin = now_ns();
    for (int i = 0; i < calls; ++i) call();
    stream.synchronize();
    const double seconds = static_cast<double>(now_ns() - begin) * 1e-9;
    if (seconds > 2e-3) return seconds / calls;
    calls *= 2;
  }
}

// After one call each, on equal memory, the device's result is the CPU's. Batch norm's layouts differ between
// devices: its results are compared by the tests.
void verify(const Case& test, const Options& o, DType type, Device device) {
  if (test.result == nullptr) return;
  constexpr std::int64_t kCount = 100003;
  std::vector<float> results[2];
  for (const int which : {0, 1}) {
    const Device where = which == 0 ? device : Device{};
    Arena arena(where, type, kCount);
    test.prepare(backend_for(where), arena)();
    results[which] = arena.head(arena.*test.result, test.result_is_fp32 ? DType::f32 : type);
  }
  for (std::size_t i = 0; i < results[0].size(); ++i) {
    const double error = std::abs(static_cast<double>(results[0][i]) - static_cast<double>(results[1][i]));
    CHECK(error <= 1e-2 * std::max(1.0, std::abs(static_cast<double>(results[1][i]))),
          "{} in {}: element {} is {}, on the CPU {}", test.name, o.precision, i, results[0][i],
          results[1][i]);
  }
}

int run(const Options& o) {
  const Device device{.kind = o.device == "cuda" ? DeviceKind::cuda : DeviceKind::cpu};
  const DType type = storage_type(parse_precision(o.precision));
  Backend& backend = backend_for(device);
  backend.set_threads(o.threads);
  nlohmann::json rows = nlohmann::json::array();
  fmt::print("{}, {}\n{:<20} {:>6} {:>10} {:>10} {:>8}\n", backend.describe(), o.precision, "kernel", "MiB",
             "GB/s", "copy GB/s", "of copy");
  for (const Case& test : cases(type)) {
    verify(test, o, type, device);
    for (const std::int64_t mib : o.mib) {
      Arena arena(device, type, (mib << 20) / static_cast<std::int64_t>(size_of(type)));
      const Call call = test.prepare(backend, arena);
      std::vector<double> speeds, copies;
      for (int i = 0; i < o.repeats; ++i) {  // in turns
        speeds.push_back(test.bytes * static_cast<double>(arena.count) * 1e-9 /
                         seconds_of(arena.stream, call));
        copies.push_back(2e-9 * static_cast<double>(arena.a.bytes()) / seconds_of(arena.stream, [&] {
                           arena.stream.copy(arena.c.data(), arena.a.data(), arena.a.bytes());
                         }));
      }
      const double ratio = median(speeds) / median(copies);
      fmt::print("{:<20} {:>6} {:>10.1f} {:>10.1f} {:>6.0f} %\n", test.name, mib, median(speeds),
                 median(copies), 100 * ratio);
      rows.push_back({{"kernel", test.name},
                      {"mib", mib},
                      {"bytes_per_element", test.bytes},
                      {"gigabytes_per_second", median(speeds)},
                      {"copy_gigabytes_per_second", median(copies)},
                      {"of_copy", ratio}});
    }
  }
  write_json(o.json, {{"benchmark", "kernel"},
                      {"machine", describe_machine()},
                      {"device", backend.identity()},
                      {"precision", o.precision},
                      {"repeats", o.repeats},
                      {"kernels", rows}});
  return exit_code::done;
}

}  // namespace
}  // namespace lockstep

int main(int argc, char** argv) {
  lockstep::Options options;
  CLI::App app(
      "Bytes per second of our own kernels beside a copy's on the same device, in turns; medians. A kernel "
      "counts the bytes it must move at least: from memory, or from a cache that they fit into.",
      "kernel_bench");
  app.add_option("--device", options.device, "cpu or cuda")->check(CLI::IsMember({"cpu", "cuda"}));
  app.add_option("--precision", options.precision, "fp32, bf16 or fp16")
      ->check(CLI::IsMember({"fp32", "bf16", "fp16"}));
  app.add_option("--threads", options.threads, "compute threads of a CPU")->check(CLI::PositiveNumber);
  app.add_option("--mib", options.mib, "sizes of a tensor")->check(CLI::PositiveNumber);
  app.add_option("--repeats", options.repeats, "times each")->check(CLI::PositiveNumber);
  app.add_option("--json", options.json, "write the result here, too");
  return lockstep::run_benchmark(app, argc, argv, [&] { return lockstep::run(options); });
}
