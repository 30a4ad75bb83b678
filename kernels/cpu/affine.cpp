// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/affine.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <utility>

#include "core/buffer.h"
#include "core/error.h"
#include "core/random.h"
#include "kernels/cpu/element.h"
#include "kernels/cpu/onednn.h"
#include "kernels/cpu/processor_wait.h"
#include "kernels/race.h"

namespace lockstep {
namespace {

class OneDnnAffine final : public AffineKernel {
 public:
  explicit OneDnnAffine(AffineSteps steps) : steps_(std::move(steps)) {
    input_ = steps_.input;
    output_ = steps_.output;
    weights_ = steps_.weights;
    scratch_bytes_ = std::max(steps_.forward.scratch_bytes(), steps_.backward_weights.scratch_bytes());
    choice_ = {.forward = steps_.forward.name(), .backward_weights = steps_.backward_weights.name()};
    if (!steps_.backward_data) return;
    scratch_bytes_ = std::max(scratch_bytes_, steps_.backward_data->scratch_bytes());
    choice_.backward_data = steps_.backward_data->name();
  }

  void forward(Stream&, const void* input, const void* weights, const float* bias, void* output,
               void* scratch) override {
    steps_.forward.run({.first = input,
                        .second = weights,
                        .result = output,
                        .bias = const_cast<float*>(bias),  // only read
                        .scratch = scratch});
  }

  void backward_data(Stream&, const void* output_gradient, const void* weights, void* input_gradient,
                     void* scratch) override {
    CHECK(steps_.backward_data, "this kernel was planned without the gradient of its input");
    steps_.backward_data->run(
        {.first = output_gradient, .second = weights, .result = input_gradient, .scratch = scratch});
  }

  void backward_weights(Stream&, const void* input, const void* output_gradient, void* weights_gradient,
                        float* bias_gradient, Write write, void* scratch) override {
    steps_.backward_weights.run({.first = input,
                                 .second = output_gradient,
                                 .result = weights_gradient,
                                 .bias = bias_gradient,
                                 .write = write,
                                 .scratch = scratch});
  }

 private:
  AffineSteps steps_;
};

// Runs steps on memory of its own, with random numbers in it: zeros could hide what real data costs.
class StepTimer {
 public:
  // Microseconds of one call.
  double operator()(AffineStep& step) {
    const AffineStep::Sizes sizes = step.sizes();
    grow(first_, sizes.first, step.type());
    grow(second_, sizes.second, step.type());
    grow(result_, sizes.result);
    grow(bias_, sizes.bias);
    grow(scratch_, step.scratch_bytes());
    const AffineStep::Arguments arguments{
        .first = first_.data(),
        .second = second_.data(),
        .result = result_.data(),
        .bias = sizes.bias == 0 ? nullptr : reinterpret_cast<float*>(bias_.data()),
        .scratch = scratch_.data()};
    const auto begin = std::chrono::steady_clock::now();
    step.run(arguments);
    return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - begin).count();
  }

 private:
  static bool grow(Buffer& buffer, std::size_t bytes) {
    if (buffer.bytes() >= bytes) return false;
    buffer = Buffer();  // never two of them at once
    buffer = Buffer(bytes, Device{});
    return true;
  }
  // The same few numbers again and again: making many takes longer than the kernels.
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

  Buffer first_, second_, result_, bias_, scratch_;
};

// Candidates, each made when it is first looked at.
class Contenders {
 public:
  explicit Contenders(std::span<const StepCandidate> candidates)
      : candidates_(candidates), made_(candidates.size()) {}

  // Null for one that oneDNN does not have.
  AffineStep* step(std::size_t i) {
    std::optional<AffineStep>& made = made_[i].step;
    if (!std::exchange(made_[i].tried, true)) {
      try {
        made = candidates_[i].make();
      } catch (const dnnl::error&) {
        if (i == 0) throw;
      }
    }
    return made ? &*made : nullptr;
  }
  AffineStep take(std::size_t i) { return std::move(*step(i)); }

 private:
  struct Made {
    bool tried = false;
    std::optional<AffineStep> step;
  };
  std::span<const StepCandidate> candidates_;
  std::vector<Made> made_;
};

KernelChoice hold_contest(std::span<const StepCandidate> candidates, Contenders& contenders) {
  std::vector<std::size_t> there;
  for (std::size_t i = 0; i < candidates.size(); ++i) {
    if (candidates[i].contends && contenders.step(i) != nullptr) there.push_back(i);
  }
  if (there.size() == 1) return {.candidate = candidates[there[0]].name};
  const ProcessorWait wait;
  StepTimer timer;
  const RaceResult result =
      race(there.size(), [&](std::size_t i) { return timer(*contenders.step(there[i])); });
  return {.candidate = candidates[there[result.winner]].name,
          .microseconds = result.microseconds,
          .waited = wait.fraction()};
}

}  // namespace

std::unique_ptr<AffineKernel> make_onednn_affine(AffineSteps steps) {
  return std::make_unique<OneDnnAffine>(std::move(steps));
}

AffineStep choose_step(KernelChoices& choices, const std::string& key,
                       std::span<const StepCandidate> candidates) {
  std::vector<std::string> names;
  for (const StepCandidate& candidate : candidates) names.push_back(candidate.name);
  Contenders contenders(candidates);
  KernelChoices::Candidates named{.names = names,
                                  .usable = [&](std::size_t i) { return contenders.step(i) != nullptr; }};
  if (std::ranges::count_if(candidates, &StepCandidate::contends) > 1)
    named.contest = [&] { return hold_contest(candidates, contenders); };
  return contenders.take(choices.choose(key, named));
}

dnnl::primitive_attr attributes_with(Activation activation) {
  dnnl::primitive_attr attributes = scratchpad_attributes();
  if (activation == Activation::none) return attributes;
  dnnl::post_ops ops;
  if (activation == Activation::relu) onednn::add_eltwise(ops, dnnl::algorithm::eltwise_relu, 0.0f, 0.0f);
  if (activation == Activation::relu6) onednn::add_eltwise(ops, dnnl::algorithm::eltwise_clip, 0.0f, 6.0f);
  attributes.set_post_ops(ops);
  return attributes;
}

}  // namespace lockstep
