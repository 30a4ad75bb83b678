// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <utility>
#include <vector>

#include "core/buffer.h"
#include "core/error.h"
#include "kernels/cpu/backend.h"
#include "kernels/cpu/deal.h"
#include "kernels/cpu/element.h"
#include "kernels/cpu/elementwise.h"
#include "kernels/cpu/engine.h"
#include "kernels/cpu/layout.h"
#include "kernels/cpu/onednn.h"
#include "kernels/shape_checks.h"

namespace lockstep {
namespace {

using dnnl::memory;

struct Window {
  memory::dims strides, kernel, padding;
};

Window window_of(const PoolingOptions& o, const Shape& in) {
  if (o.global) return {.strides = {1, 1}, .kernel = {in[2], in[3]}, .padding = {0, 0}};
  return {.strides = {o.stride, o.stride}, .kernel = {o.kernel, o.kernel}, .padding = {o.padding, o.padding}};
}

// Where an element (n, c, h, w) lies in a blocked tensor of oneDNN.
class ElementPlaces {
 public:
  ElementPlaces() = default;
  explicit ElementPlaces(const memory::desc& desc)
      : strides_(onednn::strides_of(desc)), blocks_(onednn::blocks_of(desc)) {}

  std::int64_t at(std::array<std::int64_t, 4> index) const {
    std::int64_t place = 0, apart = 1;
    for (auto block = blocks_.rbegin(); block != blocks_.rend(); ++block) {
      std::int64_t& outer = index[static_cast<std::size_t>(block->first)];
      place += outer % block->second * apart;
      outer /= block->second;
      apart *= block->second;
    }
    for (std::size_t i = 0; i < index.size(); ++i) place += index[i] * strides_[i];
    return place;
  }

 private:
  memory::dims strides_;
  std::vector<std::pair<int, std::int64_t>> blocks_;
};

// Max pooling as PyTorch defines it for all values: NaN is larger than all numbers, and the largest of
// -infinity alone is -infinity. oneDNN ignores NaN and begins with the lowest finite number.
class MaxOfAnyValues {
 public:
  MaxOfAnyValues() = default;
  MaxOfAnyValues(const Window& window, const Shape& in, const Shape& out, const memory::desc& source,
                 const memory::desc& destination, const memory::desc& workspace)
      : window_(window),
        in_(in),
        out_(out),
        from_(source),
        to_(destination),
        kept_(workspace),
        to_bytes_(destination.get_size()),
        kept_bytes_(workspace.get_size()),
        kept_is_byte_(kept_bytes_ > 0 && onednn::type_of(workspace) == memory::data_type::u8) {}

  // saved may be null.
  void run(const float* input, float* output, void* saved) const {
    std::memset(output, 0, to_bytes_);  // channels that are padding
    if (saved != nullptr) std::memset(saved, 0, kept_bytes_);
    deal(out_[0] * out_[1], [&](std::int64_t plane) {
      const std::int64_t n = plane / out_[1], c = plane % out_[1];
      for (std::int64_t row = 0; row < out_[2]; ++row) {
        for (std::int64_t column = 0; column < out_[3]; ++column) {
          const auto [largest, place] = largest_of(input, n, c, row, column);
          output[to_.at({n, c, row, column})] = largest;
          if (saved != nullptr) keep(saved, kept_.at({n, c, row, column}), place);
        }
      }
    });
  }

 private:
  // The value, and its place in the window, as oneDNN counts it.
  std::pair<float, std::int64_t> largest_of(const float* input, std::int64_t n, std::int64_t c,
                                            std::int64_t row, std::int64_t column) const {
    float largest = 0;
    std::int64_t place = -1;
    for (std::int64_t i = 0; i < window_.kernel[0] * window_.kernel[1]; ++i) {
      const std::int64_t h = row * window_.strides[0] - window_.padding[0] + i / window_.kernel[1];
      const std::int64_t w = column * window_.strides[1] - window_.padding[1] + i % window_.kernel[1];
      if (h < 0 || h >= in_[2] || w < 0 || w >= in_[3]) continue;
      const float value = input[from_.at({n, c, h, w})];
      if (place >= 0 && !(value > largest) && !std::isnan(value)) continue;
      largest = value;
      place = i;
    }
    return {largest, place};
  }
  void keep(void* saved, std::int64_t at, std::int64_t place) const {
    if (kept_is_byte_) {
      static_cast<std::uint8_t*>(saved)[at] = static_cast<std::uint8_t>(place);
    } else {
      static_cast<std::int32_t*>(saved)[at] = static_cast<std::int32_t>(place);
    }
  }

  Window window_;
  Shape in_, out_;
  ElementPlaces from_, to_, kept_;
  std::size_t to_bytes_ = 0, kept_bytes_ = 0;
  bool kept_is_byte_ = false;
};

// saved: where oneDNN found each maximum. Computes in fp32, so that sums over windows that overlap are
// rounded once; tensors of halves are brought over in scratch memory, behind oneDNN's own.
class CpuPooling final : public PoolingKernel {
 public:
  CpuPooling(const PoolingOptions& options, const Layout& input) {
    input_ = input;
    const Shape& in = input.shape();
    const Shape out{in[0], in[1], options.out_size(in[2]), options.out_size(in[3])};
    const Window w = window_of(options, in);
    const auto algorithm = options.kind == PoolingKind::max ? dnnl::algorithm::pooling_max
                                                            : dnnl::algorithm::pooling_avg_exclude_padding;
    const memory::desc source = onednn::with_type(to_desc(input), memory::data_type::f32);
    const memory::desc any({out[0], out[1], out[2], out[3]}, memory::data_type::f32, memory::format_tag::any);
    const dnnl::primitive_attr attributes = scratchpad_attributes();
    const dnnl::engine& engine = onednn_engine();

    const memory::dims dense = {0, 0};  // oneDNN counts the gaps between a window's elements
    const auto forward = [&](dnnl::prop_kind kind, const memory::desc& destination) {
      return onednn::describe<onednn::PoolingForward>(engine, attributes, kind, algorithm, source,
                                                      destination, w.strides, w.kernel, dense, w.padding,
                                                      w.padding);
    };
    const auto training = forward(dnnl::prop_kind::forward_training, any);
    const memory::desc destination = training.dst_desc();
    const auto inference = forward(dnnl::prop_kind::forward_inference, destination);
    const auto backward = onednn::describe_backward<onednn::PoolingBackward>(
        engine, attributes, training, algorithm, source, destination, w.strides, w.kernel, dense, w.padding,
        w.padding);

    output_ = to_layout(out, onednn::with_type(destination, to_dnnl(input.dtype())));
    saved_bytes_ = training.workspace_desc().get_size();
    if (options.kind == PoolingKind::max)
      of_any_values_ = MaxOfAnyValues(w, in, out, source, destination, training.workspace_desc());
    is_max_ = options.kind == PoolingKind::max;
    const std::size_t primitives =
        std::max({training.scratchpad_desc().get_size(), inference.scratchpad_desc().get_size(),
                  backward.scratchpad_desc().get_size()});
    wide_input_ = align_up(primitives);
    wide_output_ = wide_input_ + align_up(source.get_size());
    scratch_bytes_ = is_cast() ? wide_output_ + align_up(destination.get_size()) : primitives;
    training_ =
        Primitive(onednn::PoolingForward(training), {{DNNL_ARG_SRC, source},
                                                     {DNNL_ARG_DST, destination},
                                                     {DNNL_ARG_SCRATCHPAD, training.scratchpad_desc()},
                                                     {DNNL_ARG_WORKSPACE, training.workspace_desc()}});
    inference_ =
        Primitive(onednn::PoolingForward(inference), {{DNNL_ARG_SRC, source},
                                                      {DNNL_ARG_DST, destination},
                                                      {DNNL_ARG_SCRATCHPAD, inference.scratchpad_desc()}});
    backward_ =
        Primitive(onednn::PoolingBackward(backward), {{DNNL_ARG_DIFF_DST, destination},
                                                      {DNNL_ARG_DIFF_SRC, source},
                                                      {DNNL_ARG_SCRATCHPAD, backward.scratchpad_desc()},
                                                      {DNNL_ARG_WORKSPACE, backward.workspace_desc()}});
  }

  // Evaluation has no saved memory: nothing is remembered.
  void forward(Stream&, const void* input, void* output, void* saved, void* scratch) override {
    const void* from = widened(input_, input, scratch, wide_input_);
    void* to = is_cast() ? at(scratch, wide_output_) : output;
    if (is_max_ && !is_finite(input)) {
      of_any_values_.run(static_cast<const float*>(from), static_cast<float*>(to), saved);
    } else if (saved_bytes_ == 0 || saved == nullptr) {
      inference_.run({from, to, scratch});
    } else {
      training_.run({from, to, scratch, saved});
    }
    if (is_cast()) round(output_, to, output);
  }

  void backward(Stream&, const void* output_gradient, const void* saved, void* input_gradient,
                void* scratch) override {
    CHECK(saved_bytes_ == 0 || saved != nullptr, "max pooling needs the places its forward found");
    const void* from = widened(output_, output_gradient, scratch, wide_output_);
    void* to = is_cast() ? at(scratch, wide_input_) : input_gradient;
    backward_.run({from, to, scratch, saved});
    if (is_cast()) round(input_, to, input_gradient);
  }

 private:
  static void* at(void* scratch, std::size_t offset) { return static_cast<std::byte*>(scratch) + offset; }
  bool is_cast() const { return input_.dtype() != DType::f32; }

  bool is_finite(const void* input) const {
    std::int32_t finite = 1;
    cpu_check_finite(
        {.type = input_.dtype(), .count = input_.physical_elements(), .values = input, .finite = &finite});
    return finite != 0;
  }

  const void* widened(const Layout& layout, const void* data, void* scratch, std::size_t place) const {
    if (!is_cast()) return data;
    cpu_cast({.count = layout.physical_elements(),
              .from_type = layout.dtype(),
              .to_type = DType::f32,
              .from = data,
              .to = at(scratch, place)});
    return at(scratch, place);
  }
  void round(const Layout& layout, const void* wide, void* data) const {
    cpu_cast({.count = layout.physical_elements(),
              .from_type = DType::f32,
              .to_type = layout.dtype(),
              .from = wide,
              .to = data});
  }

  std::size_t wide_input_ = 0;  // offsets in scratch
  std::size_t wide_output_ = 0;
  bool is_max_ = false;
  MaxOfAnyValues of_any_values_;
  Primitive training_;
  Primitive inference_;
  Primitive backward_;
};

}  // namespace

std::unique_ptr<PoolingKernel> CpuBackend::pooling(const PoolingOptions& options, const Layout& input) {
  check_pooling(options, input);
  return plan_with_onednn(fmt::format("pooling of {}", to_string(input.shape())),
                          [&] { return std::make_unique<CpuPooling>(options, input); });
}

}  // namespace lockstep
