// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/affine.h"

#include <algorithm>
#include <chrono>

#include <omp.h>

#include "core/buffer.h"
#include "core/error.h"
#include "core/random.h"
#include "kernels/cpu/element.h"
#include "kernels/cpu/onednn.h"

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

// Times one step on random numbers: zeros could hide what real data costs.
class StepTimer {
 public:
  // Microseconds: the best of some calls, or of the first when that is far from `best_so_far`.
  double operator()(AffineStep& step, double best_so_far) {
    const AffineStep::Sizes sizes = step.sizes();
    grow(first_, sizes.first, step.type());
    grow(second_, sizes.second, step.type());
    grow(result_, sizes.result, step.type());
    grow(bias_, sizes.bias, DType::f32);
    grow(scratch_, step.scratch_bytes(), DType::f32);
    const AffineStep::Arguments arguments{
        .first = first_.data(),
        .second = second_.data(),
        .result = result_.data(),
        .bias = sizes.bias == 0 ? nullptr : reinterpret_cast<float*>(bias_.data()),
        .scratch = scratch_.data()};
    double best = call(step, arguments);
    if (best_so_far > 0 && best > 3 * best_so_far) return best;
    double spent = 0;
    for (int i = 0; i < 10 && (i < 3 || spent < kEnough); ++i) {
      const double time = call(step, arguments);
      best = std::min(best, time);
      spent += time;
    }
    return best;
  }

 private:
  static constexpr double kEnough = 20'000;  // microseconds

  static double call(AffineStep& step, const AffineStep::Arguments& arguments) {
    const auto begin = std::chrono::steady_clock::now();
    step.run(arguments);
    return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - begin).count();
  }

  static void grow(Buffer& buffer, std::size_t bytes, DType type) {
    if (buffer.bytes() >= bytes) return;
    buffer = Buffer(bytes, Device{});
    const Random random(1, "kernel timing");
    with_element(type, [&](auto element) {
      using T = typename decltype(element)::type;
      auto* values = reinterpret_cast<T*>(buffer.data());
      for (std::size_t i = 0; i < bytes / sizeof(T); ++i)
        values[i] = static_cast<T>(random.uniform(i % 4096, -1.0f, 1.0f));
    });
  }

  Buffer first_, second_, result_, bias_, scratch_;
};

}  // namespace

std::unique_ptr<AffineKernel> make_onednn_affine(AffineSteps steps) {
  return std::make_unique<OneDnnAffine>(std::move(steps));
}

std::size_t choose_step(KernelChoices& choices, const std::string& key, std::vector<AffineStep>& steps) {
  std::vector<std::string> names;
  for (const AffineStep& step : steps) names.push_back(step.name());
  StepTimer timer;
  double best = 0;
  return choices.choose(fmt::format("{}, {} threads", key, omp_get_max_threads()), names, [&](std::size_t i) {
    const double time = timer(steps[i], best);
    best = best > 0 ? std::min(best, time) : time;
    return time;
  });
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
