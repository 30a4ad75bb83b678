// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/timing.h"

#include <algorithm>
#include <cstring>
#include <span>

#include "core/cuda/check.h"
#include "core/random.h"

namespace lockstep {
namespace {

Handle<cudaEvent_t, cudaEventDestroy> timing_event(Device device) {
  make_current(device);
  cudaEvent_t event = nullptr;
  CUDA_CHECK(cudaEventCreateWithFlags(&event, cudaEventBlockingSync));
  return Handle<cudaEvent_t, cudaEventDestroy>(event);
}

std::size_t l2_bytes(Device device) {
  int bytes = 0;
  CUDA_CHECK(cudaDeviceGetAttribute(&bytes, cudaDevAttrL2CacheSize, device.index));
  return static_cast<std::size_t>(std::max(bytes, 1));
}

template <typename T>
std::vector<std::byte> random_block(std::size_t bytes) {
  const Random random(1, "kernel timing");
  std::vector<std::byte> block(bytes);
  for (std::size_t i = 0; i < bytes / sizeof(T); ++i) {
    const T value(random.uniform(i, -1.0f, 1.0f));
    std::memcpy(block.data() + i * sizeof(T), &value, sizeof(T));
  }
  return block;
}

// Operands and workspace of the products of one problem.
struct ProductMemory {
  CudaStopwatch stopwatch;
  Buffer x, w, y, workspace;

  ProductMemory(const ProductTiming& timing, std::size_t workspace_bytes)
      : stopwatch(timing.device),
        x(random_tensor(timing.plan.input.wanted())),
        w(random_tensor(timing.plan.weights)),
        y(random_tensor(timing.plan.output)),
        workspace(std::max<std::size_t>(workspace_bytes, 1), timing.device) {}

  Buffer random_tensor(const Layout& layout) {
    return random_memory(stopwatch.stream(), layout.bytes(), layout.dtype());
  }
  double microseconds(const AffineProduct& product) {
    const AffineOperands operands{.x = x.data(), .w = w.data(), .y = y.data(), .scratch = workspace.data()};
    return stopwatch.microseconds([&] { product.run(stopwatch.stream(), operands); });
  }
};

}  // namespace

CudaStopwatch::CudaStopwatch(Device device)
    : stream_(device, StreamUse::compute), cache_(l2_bytes(device), device) {
  constexpr std::size_t kMostCalls = 16;
  for (std::size_t i = 0; i < kMostCalls; ++i)
    calls_.push_back({.begin = timing_event(device), .end = timing_event(device)});
}

// The host does not wait between the calls: while the device overwrites the cache, it starts what is timed.
std::vector<double> CudaStopwatch::measure(const std::function<void()>& enqueue, std::size_t count) {
  make_current(stream_.device());
  const auto stream = static_cast<cudaStream_t>(stream_.native());
  const std::span calls(calls_.data(), count);
  for (const Call& call : calls) {
    CUDA_CHECK(cudaMemsetAsync(cache_.data(), 0, cache_.bytes(), stream));
    CUDA_CHECK(cudaEventRecord(call.begin.get(), stream));
    enqueue();
    CUDA_CHECK(cudaEventRecord(call.end.get(), stream));
  }
  CUDA_CHECK(cudaEventSynchronize(calls.back().end.get()));
  std::vector<double> times;
  for (const Call& call : calls) {
    float milliseconds = 0;
    CUDA_CHECK(cudaEventElapsedTime(&milliseconds, call.begin.get(), call.end.get()));
    times.push_back(1e3 * static_cast<double>(milliseconds));
  }
  return times;
}

double CudaStopwatch::microseconds(const std::function<void()>& enqueue) {
  constexpr double kEnough = 3000;  // microseconds of all calls, where so many short ones are allowed
  measure(enqueue, 1);
  const double once = measure(enqueue, 1).front();
  const double calls = std::clamp(kEnough / std::max(once, 1.0), 3.0, static_cast<double>(calls_.size()));
  std::vector<double> times = measure(enqueue, static_cast<std::size_t>(calls));
  std::ranges::sort(times);
  return times[times.size() / 2];
}

Buffer random_memory(Stream& stream, std::size_t bytes, DType type) {
  constexpr std::size_t kBlock = std::size_t{1} << 20;
  Buffer memory(std::max<std::size_t>(bytes, 1), stream.device());
  const std::size_t first = std::min(bytes, kBlock);
  const std::vector<std::byte> block = type == DType::f16    ? random_block<Half>(first)
                                       : type == DType::bf16 ? random_block<BFloat16>(first)
                                                             : random_block<float>(first);
  stream.copy(memory.data(), block.data(), first);
  for (std::size_t filled = first; filled < bytes;) {
    const std::size_t more = std::min(filled, bytes - filled);
    stream.copy(memory.data() + filled, memory.data(), more);
    filled += more;
  }
  stream.synchronize();
  return memory;
}

AffineProduct choose_product(KernelChoices& choices, const std::string& key,
                             std::vector<AffineProduct> products, const ProductTiming& timing) {
  std::vector<std::string> names;
  std::size_t workspace = 0;
  for (const AffineProduct& product : products) {
    names.push_back(product.name);
    workspace = std::max(workspace, product.scratch_bytes);
  }
  const auto contest = [&] {
    ProductMemory memory(timing, workspace);
    KernelChoice best;
    for (const AffineProduct& product : products) {
      const double time = memory.microseconds(product);
      if (best.candidate.empty() || time < best.microseconds)
        best = {.candidate = product.name, .microseconds = time};
    }
    return best;
  };
  KernelChoices::Candidates candidates{.names = names};
  if (products.size() > 1) candidates.contest = contest;
  const std::size_t chosen = choices.choose(key, candidates);
  return std::move(products[chosen]);
}

}  // namespace lockstep
