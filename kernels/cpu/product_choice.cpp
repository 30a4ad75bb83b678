// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/product_choice.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <optional>
#include <utility>
#include <vector>

#include "core/error.h"
#include "core/random.h"
#include "core/tensor/buffer.h"
#include "kernels/cpu/element.h"
#include "kernels/cpu/processor_wait.h"
#include "kernels/race.h"

namespace lockstep {
namespace {

// Times products on its own memory, filled with random numbers, because zeros could be faster than real data.
class ProductTimer {
 public:
  // Microseconds of one call.
  double operator()(CpuProduct& product) {
    const CpuProduct::Problem& problem = product.problem();
    grow(x_, problem.kept.x.get_size(), product.type());
    grow(w_, problem.kept.w.get_size(), product.type());
    grow(y_, problem.kept.y.get_size(), product.type());
    grow(bias_, static_cast<std::size_t>(problem.bias_elements) * sizeof(float));
    grow(scratch_, product.scratch_bytes());
    const AffineOperands operands{
        .x = x_.data(),
        .w = w_.data(),
        .y = y_.data(),
        .bias = problem.bias_elements == 0 ? nullptr : reinterpret_cast<float*>(bias_.data()),
        .scratch = scratch_.data()};
    const auto begin = std::chrono::steady_clock::now();
    product.run(operands);
    return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - begin).count();
  }

 private:
  static bool grow(Buffer& buffer, std::size_t bytes) {
    if (buffer.bytes() >= bytes) return false;
    buffer = Buffer();  // frees the old buffer first
    buffer = Buffer(bytes, Device{});
    return true;
  }
  // Repeats a few numbers: generating many takes longer than the kernels.
  static void grow(Buffer& buffer, std::size_t bytes, DType type) {
    if (!grow(buffer, bytes)) return;
    constexpr std::size_t kNumbers = 4096;
    const Random random(1, "kernel timing");
    with_element(type, [&](auto element) {
      using T = typename decltype(element)::type;
      std::vector<T> numbers(kNumbers);
      for (std::size_t i = 0; i < kNumbers; ++i) numbers[i] = static_cast<T>(random.uniform(i, -1.0f, 1.0f));
      for (std::size_t at = 0; at < bytes; at += kNumbers * sizeof(T))
        std::memcpy(buffer.data() + at, numbers.data(), std::min(kNumbers * sizeof(T), bytes - at));
    });
  }

  Buffer x_, w_, y_, bias_, scratch_;
};

// Candidate products, each made on first use.
class Contenders {
 public:
  explicit Contenders(std::span<const ProductCandidate> candidates)
      : candidates_(candidates), made_(candidates.size()) {}

  // Null if oneDNN does not have the candidate.
  CpuProduct* product(std::size_t i) {
    std::optional<CpuProduct>& made = made_[i].product;
    if (!std::exchange(made_[i].tried, true)) {
      try {
        made = candidates_[i].make();
      } catch (const dnnl::error&) {
        if (i == 0) throw;
      }
    }
    return made ? &*made : nullptr;
  }
  CpuProduct take(std::size_t i) { return std::move(*product(i)); }

 private:
  struct Made {
    bool tried = false;
    std::optional<CpuProduct> product;
  };
  std::span<const ProductCandidate> candidates_;
  std::vector<Made> made_;
};

KernelChoice hold_contest(std::span<const ProductCandidate> candidates, Contenders& contenders) {
  std::vector<std::size_t> there;
  for (std::size_t i = 0; i < candidates.size(); ++i) {
    if (!candidates[i].contends) continue;
    const CpuProduct* product = contenders.product(i);
    // One call of a reference kernel may take as long as the rest of the contest.
    if (product != nullptr && (i == 0 || !product->is_reference())) there.push_back(i);
  }
  if (there.size() == 1) return {.candidate = candidates[there[0]].name};
  const ProcessorWait wait;
  ProductTimer timer;
  const RaceResult result =
      race(there.size(), [&](std::size_t i) { return timer(*contenders.product(there[i])); });
  return {.candidate = candidates[there[result.winner]].name,
          .microseconds = result.microseconds,
          .first_microseconds = result.first_microseconds,
          .waited = wait.fraction()};
}

}  // namespace

CpuProduct choose_product(KernelChoices& choices, const std::string& key,
                          std::span<const ProductCandidate> candidates) {
  std::vector<std::string> names;
  for (const ProductCandidate& candidate : candidates) names.push_back(candidate.name);
  Contenders contenders(candidates);
  KernelChoices::Candidates named{.names = names,
                                  .usable = [&](std::size_t i) { return contenders.product(i) != nullptr; }};
  if (std::ranges::count_if(candidates, &ProductCandidate::contends) > 1)
    named.contest = [&] { return hold_contest(candidates, contenders); };
  const std::optional<std::size_t> chosen = choices.choose(key, named);
  CHECK(chosen, "no usable kernel for {}", key);
  return contenders.take(*chosen);
}

}  // namespace lockstep
