// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/timing.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "core/cuda/check.h"
#include "core/random.h"

namespace lockstep {
namespace {

Handle<cudaEvent_t, cudaEventDestroy> timing_event(Device device) {
  make_current(device);
  cudaEvent_t event = nullptr;
  CUDA_CHECK(cudaEventCreate(&event));
  return Handle<cudaEvent_t, cudaEventDestroy>(event);
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

  ProductMemory(const ProductSizes& sizes, std::size_t workspace_bytes)
      : stopwatch(sizes.device),
        x(random_memory(stopwatch.stream(), sizes.x_bytes, sizes.type)),
        w(random_memory(stopwatch.stream(), sizes.w_bytes, sizes.type)),
        y(random_memory(stopwatch.stream(), sizes.y_bytes, sizes.type)),
        workspace(std::max<std::size_t>(workspace_bytes, 1), sizes.device) {}

  double microseconds(const CudaProduct& product) {
    const AffineOperands operands{.x = x.data(), .w = w.data(), .y = y.data(), .workspace = workspace.data()};
    return stopwatch.microseconds([&] { product.run(stopwatch.stream(), operands, Write::overwrite); });
  }
};

}  // namespace

CudaStopwatch::CudaStopwatch(Device device)
    : stream_(device, StreamUse::compute), begin_(timing_event(device)), end_(timing_event(device)) {}

double CudaStopwatch::measure(const std::function<void()>& enqueue, int calls) {
  make_current(stream_.device());
  const auto stream = static_cast<cudaStream_t>(stream_.native());
  CUDA_CHECK(cudaEventRecord(begin_.get(), stream));
  for (int i = 0; i < calls; ++i) enqueue();
  CUDA_CHECK(cudaEventRecord(end_.get(), stream));
  CUDA_CHECK(cudaEventSynchronize(end_.get()));
  float milliseconds = 0;
  CUDA_CHECK(cudaEventElapsedTime(&milliseconds, begin_.get(), end_.get()));
  return 1e3 * static_cast<double>(milliseconds) / calls;
}

double CudaStopwatch::microseconds(const std::function<void()>& enqueue) {
  constexpr double kEnough = 1000;  // microseconds: what starting a kernel takes is little of it
  measure(enqueue, 1);
  const double once = measure(enqueue, 1);
  const int calls = static_cast<int>(std::clamp(kEnough / std::max(once, 1.0), 1.0, 50.0));
  std::array<double, 3> times{};
  for (double& time : times) time = measure(enqueue, calls);
  std::ranges::sort(times);
  return times[1];
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

CudaProduct choose_product(KernelChoices& choices, const std::string& key, std::vector<CudaProduct> products,
                           const ProductSizes& sizes) {
  std::vector<std::string> names;
  std::size_t workspace = 0;
  for (const CudaProduct& product : products) {
    names.push_back(product.name);
    workspace = std::max(workspace, product.workspace_bytes);
  }
  const auto contest = [&] {
    ProductMemory memory(sizes, workspace);
    KernelChoice best;
    for (const CudaProduct& product : products) {
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
