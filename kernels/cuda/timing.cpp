// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/timing.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <span>
#include <utility>

#include "core/cuda/check.h"
#include "core/error.h"
#include "core/log.h"
#include "core/random.h"
#include "kernels/race.h"

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

// Runs products of one problem on operands that are allocated on first use.
class ProductTrials {
 public:
  ProductTrials(CudaLibraries& libraries, const CudaAffinePlan& plan, std::string key)
      : libraries_(libraries), plan_(plan), key_(std::move(key)) {}

  // Returns true if the product runs without an error. It is tried once for all layers with the same problem.
  // Without memory for the trial it is assumed to run.
  bool runs(const AffineProduct& product) {
    const auto known = libraries_.product_trials().find(name_of(product));
    if (known != libraries_.product_trials().end()) return known->second;
    try {
      return attempt(product, [&](Stream& stream, const std::function<void()>& enqueue) {
        enqueue();
        stream.synchronize();
      });
    } catch (const MemoryError&) {
      return true;
    }
  }
  // Microseconds of one call; infinity if it fails. Throws MemoryError if there is no memory for the
  // operands.
  double microseconds(const AffineProduct& product) {
    double time = std::numeric_limits<double>::infinity();
    attempt(product, [&](Stream&, const std::function<void()>& enqueue) {
      time = stopwatch_->microseconds_of_one(enqueue);
    });
    return time;
  }
  const std::string& key() const { return key_; }
  // The error of the last product that failed.
  const std::string& failure() const { return failure_; }

 private:
  std::string name_of(const AffineProduct& product) const {
    return fmt::format("{}, {}", key_, product.name);
  }

  // Returns true if it ran. After an error that leaves the device unusable, every later product fails, too.
  template <typename Run>
  bool attempt(const AffineProduct& product, Run run) {
    prepare(product.scratch_bytes);
    const AffineOperands operands{
        .x = x_.data(), .w = w_.data(), .y = y_.data(), .scratch = workspace_.data()};
    bool& ran = libraries_.product_trials()[name_of(product)];
    try {
      run(stopwatch_->stream(), [&] { product.run(stopwatch_->stream(), operands); });
      return ran = true;
    } catch (const Error& error) {
      cudaGetLastError();  // clears the error, which a later cudaGetLastError() would return
      failure_ = error.what();
      log::warning("{}: kernel {} is not used, because its trial run failed: {}", key_, product.name,
                   failure_);
      return ran = false;
    }
  }

  void prepare(std::size_t workspace_bytes) {
    if (!stopwatch_) {
      stopwatch_.emplace(libraries_.device());
      const auto tensor = [&](const Layout& layout) {
        return random_memory(stopwatch_->stream(), layout.bytes(), layout.dtype());
      };
      x_ = tensor(plan_.input.wanted());
      w_ = tensor(plan_.weights);
      y_ = tensor(plan_.output);
    }
    const std::size_t wanted = std::max<std::size_t>(workspace_bytes, 1);
    if (workspace_.bytes() < wanted) workspace_ = Buffer(wanted, libraries_.device());
  }

  CudaLibraries& libraries_;
  const CudaAffinePlan& plan_;
  std::string key_;
  std::optional<CudaStopwatch> stopwatch_;
  Buffer x_, w_, y_, workspace_;
  std::string failure_;
};

// Returns the fastest product; an empty choice if all fail. A first call may include loading the kernel,
// which takes less than kLoading microseconds. A product is not called again if its
// first call takes longer than kLoading and longer than kHopeless times the shortest.
KernelChoice hold_contest(ProductTrials& trials, std::span<const AffineProduct> products) {
  constexpr double kLoading = 100e3, kHopeless = 10;
  std::vector<double> first;
  for (const AffineProduct& product : products) first.push_back(trials.microseconds(product));
  const double shortest = std::ranges::min(first);
  if (!std::isfinite(shortest)) return {};
  const RaceResult best = race(products.size(), [&](std::size_t i) {
    const bool races = std::isfinite(first[i]) && first[i] <= std::max(kLoading, kHopeless * shortest);
    return races ? trials.microseconds(products[i]) : std::numeric_limits<double>::infinity();
  });
  return {.candidate = products[best.winner].name,
          .microseconds = best.microseconds,
          .first_microseconds = best.first_microseconds};
}

[[noreturn]] void throw_all_fail(const ProductTrials& trials, std::size_t count) {
  throw Error(exit_code::failed,
              fmt::format("{}: all {} kernels of the library failed, the last with: {}. Check the device "
                          "with nvidia-smi, and that the driver supports the release of the libraries",
                          trials.key(), count, trials.failure()));
}

}  // namespace

CudaStopwatch::CudaStopwatch(Device device)
    : stream_(device, StreamUse::compute), cache_(l2_bytes(device), device) {
  constexpr std::size_t kMostCalls = 16;
  for (std::size_t i = 0; i < kMostCalls; ++i)
    calls_.push_back({.begin = timing_event(device), .end = timing_event(device)});
}

// The host does not wait between the calls: it enqueues the timed work while the device overwrites the cache.
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

double CudaStopwatch::microseconds_of_one(const std::function<void()>& enqueue) {
  return measure(enqueue, 1).front();
}

double CudaStopwatch::microseconds(const std::function<void()>& enqueue) {
  constexpr double kEnough = 3000;  // microseconds of all calls together, with 3 to calls_.size() calls
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

AffineProduct choose_product(KernelChoices& choices, const std::string& key, const ProductSource& source,
                             CudaLibraries& libraries, const CudaAffinePlan& plan) {
  ProductTrials trials(libraries, plan, key);
  const auto kept = choices.kept().find(key);
  if (source.find && kept != choices.kept().end()) {
    auto product = source.find(kept->second.candidate);
    if (product && (choices.plans_only() || trials.runs(*product))) return std::move(*product);
  }
  std::vector<AffineProduct> products = source.all();
  std::vector<std::string> names;
  for (const AffineProduct& product : products) names.push_back(product.name);
  KernelChoices::Candidates candidates{.names = names};
  if (!choices.plans_only())
    candidates.usable = [&](std::size_t index) { return trials.runs(products[index]); };
  if (products.size() > 1) {
    candidates.contest = [&] {
      KernelChoice best = hold_contest(trials, products);
      if (best.candidate.empty()) throw_all_fail(trials, products.size());
      return best;
    };
  }
  const std::optional<std::size_t> chosen = choices.choose(key, candidates);
  if (!chosen) throw_all_fail(trials, products.size());
  return std::move(products[*chosen]);
}

}  // namespace lockstep
