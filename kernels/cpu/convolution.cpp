// SPDX-License-Identifier: Apache-2.0
#include <memory>
#include <utility>

#include "core/error.h"
#include "kernels/cpu/backend.h"
#include "kernels/cpu/element.h"
#include "kernels/cpu/onednn.h"
#include "kernels/cpu/product_choice.h"
#include "kernels/cpu/winograd.h"
#include "kernels/shape_checks.h"

namespace lockstep {
namespace {

using dnnl::memory;
using Type = memory::data_type;
constexpr auto kAny = memory::format_tag::any;

struct Sizes {
  memory::dims source, weights, bias, destination, strides, dilation, padding;
};

Sizes sizes_of(const ConvolutionShape& s) {
  Sizes sizes{.source = {s.batch, s.in_channels, s.in_height, s.in_width},
              .weights = {s.out_channels, s.in_channels, s.kernel, s.kernel},
              .bias = {s.out_channels},
              .destination = {s.batch, s.out_channels, s.out_height(), s.out_width()},
              .strides = {s.stride, s.stride},
              .dilation = {s.dilation - 1, s.dilation - 1},  // oneDNN counts the gaps
              .padding = {s.padding, s.padding}};
  if (s.groups > 1) {
    sizes.weights = {s.groups, s.out_channels / s.groups, s.in_channels / s.groups, s.kernel, s.kernel};
  }
  return sizes;
}

// True if some weights are only multiplied with padding, which happens for images smaller than the kernel's
// reach.
bool has_idle_weights(const ConvolutionShape& s) {
  const auto is_idle = [&](std::int64_t tap, std::int64_t in, std::int64_t out) {
    for (std::int64_t o = 0; o < out; ++o) {
      const std::int64_t place = o * s.stride - s.padding + tap * s.dilation;
      if (place >= 0 && place < in) return false;
    }
    return true;
  };
  for (std::int64_t tap = 0; tap < s.kernel; ++tap) {
    if (is_idle(tap, s.in_height, s.out_height()) || is_idle(tap, s.in_width, s.out_width())) return true;
  }
  return false;
}

// oneDNN's bf16 kernels for AMX underestimate their input buffer if the stride exceeds the kernel
// (uxlfoundation/oneDNN, pull request 5494). Other kernels compute 1x1 convolutions without padding.
bool has_unsafe_stride(const ConvolutionShape& s) {
  return s.stride > s.kernel && (s.kernel > 1 || s.padding > 0);
}

// Plans the three directions of one convolution. Forward is chosen first, because it determines the layouts
// of weights and output; gradients use the layouts of their tensors. Half tensors can be processed by fp32
// kernels, for which CpuProduct converts them, by our Winograd kernel, which reads and writes bf16, and by
// oneDNN's bf16 kernels on processors that have them.
class ConvolutionPlanner {
 public:
  ConvolutionPlanner(const ConvolutionShape& shape, const Layout& input, KernelChoices& choices)
      : shape_(shape),
        sizes_(sizes_of(shape)),
        input_(input),
        type_(to_dnnl(input.dtype())),
        choices_(choices) {
    if (WinogradConvolution::supports(shape)) {
      winograd_ = std::make_shared<WinogradConvolution>(shape, to_dtype(type_of_winograd()));
    }
    if (shape.bias) bias_ = memory::desc(sizes_.bias, Type::f32, memory::format_tag::x);
    const memory::desc given = to_desc(input);
    source_ = onednn::dims_of(given) == sizes_.source ? given : given.reshape(sizes_.source);
  }

  AffineKernel::Plan plan() {
    AffineKernel::Plan plan;
    plan.forward = plan_forward();
    plan.input = input_;
    plan.output = to_layout(Shape(sizes_.destination), destination_);
    plan.weights = to_layout(
        {shape_.out_channels, shape_.in_channels / shape_.groups, shape_.kernel, shape_.kernel}, weights_);
    if (shape_.input_gradient) plan.backward_data = plan_backward_data();
    if (shape_.weight_gradient) plan.backward_weights = plan_backward_weights();
    return plan;
  }

 private:
  struct Variant {
    dnnl::algorithm algorithm = dnnl::algorithm::convolution_direct;
    int pieces = 1;
    std::string name;
    Type type = Type::f32;  // of the kernel's operands
  };

  bool has_winograd() const {
    return shape_.kernel == 3 && shape_.stride == 1 && shape_.dilation == 1 && shape_.groups == 1;
  }
  // In order of preference without timing. With the batch in pieces, intermediate data of a primitive
  // (Winograd's transformed tiles) and halves converted to fp32 stay in the cache.
  std::vector<Variant> variants() const {
    std::vector<Variant> all;
    for (const auto& [name, algorithm] : {std::pair{"direct", dnnl::algorithm::convolution_direct},
                                          std::pair{"winograd", dnnl::algorithm::convolution_winograd}}) {
      const bool winograd = algorithm == dnnl::algorithm::convolution_winograd;
      if (winograd && !has_winograd()) continue;
      for (const int pieces : {1, 2, 4, 8}) {
        if (shape_.batch % pieces != 0) continue;
        all.push_back({.algorithm = algorithm,
                       .pieces = pieces,
                       .name = pieces == 1 ? name : fmt::format("{} in {} pieces", name, pieces)});
      }
    }
    // oneDNN's bf16 kernels compute the gradient of idle weights from unwritten scratch.
    if (type_ == Type::bf16 && !has_idle_weights(shape_) && !has_unsafe_stride(shape_))
      all.push_back({.name = "direct bf16", .type = Type::bf16});
    return all;
  }
  // False for variants that need not be timed. A one-pass fp32 primitive gains nothing from pieces.
  // Winograd's gains, by measurement, only if its transformed tiles (36 values per 16) exceed a large
  // last-level cache.
  bool contends(const Variant& v) const {
    if (v.pieces == 1 || type_ != Type::f32) return true;
    constexpr std::int64_t kLargeCache = std::int64_t{128} << 20;
    const std::int64_t values =
        shape_.batch * (shape_.in_channels * shape_.in_height * shape_.in_width +
                        shape_.out_channels * shape_.out_height() * shape_.out_width());
    return v.algorithm == dnnl::algorithm::convolution_winograd && values * 36 / 16 * 4 > kLargeCache;
  }
  static memory::desc any_like(const memory::dims& dims, Type type) { return memory::desc(dims, type, kAny); }
  // For the whole batch a primitive may choose any layout; for pieces it uses the kept layout.
  static memory::desc wanted(const memory::desc& kept, const Variant& v) {
    return v.pieces == 1 ? any_like(onednn::dims_of(kept), v.type)
                         : onednn::with_type(piece_of(kept, v.pieces), v.type);
  }

  // library(variant) makes a oneDNN product, tiled() our Winograd product.
  template <typename Library, typename Tiled>
  CpuProduct choose(AffineDirection direction, Library library, Tiled tiled) {
    const ConvolutionShape& s = shape_;
    const std::string key = fmt::format(
        "convolution {}, {}x{}x{}x{} {} to {}, kernel {} stride {} padding {} dilation {} groups {}",
        name_of(direction), s.batch, s.in_channels, s.in_height, s.in_width, input_.describe(),
        s.out_channels, s.kernel, s.stride, s.padding, s.dilation, s.groups);
    std::vector<ProductCandidate> candidates;
    for (const Variant& variant : variants())
      candidates.push_back({.name = variant.name,
                            .make = [&, variant] { return library(variant); },
                            .contends = contends(variant)});
    if (winograd_) candidates.push_back({.name = "tiled winograd", .make = tiled});
    return choose_product(choices_, key, candidates);
  }

  CpuProduct::Problem problem_of(AffineDirection direction, const memory::desc& weights,
                                 const memory::desc& destination) const {
    const bool bias = shape_.bias && direction != AffineDirection::backward_data;
    return {.direction = direction,
            .kept = {.x = source_, .w = weights, .y = destination},
            .bias_elements = bias ? shape_.out_channels : 0};
  }

  // fp16 is computed in fp32, for its numerics and not for speed.
  Type type_of_winograd() const { return type_ == Type::bf16 ? Type::bf16 : Type::f32; }
  // The tensors in the layouts of WinogradConvolution.
  AffineDescs blocked(Type weights) const {
    using Tag = memory::format_tag;
    const std::int64_t block = winograd_->block();
    const Tag activations = block == 16 ? Tag::nChw16c : block == 8 ? Tag::nChw8c : Tag::nChw4c;
    const Tag of_weights = block == 16 ? Tag::OIhw16i16o : block == 8 ? Tag::OIhw8i8o : Tag::OIhw4i4o;
    const Type type = type_of_winograd();
    return {.x = memory::desc(sizes_.source, type, activations),
            .w = memory::desc(sizes_.weights, weights, of_weights),
            .y = memory::desc(sizes_.destination, type, activations)};
  }
  using TiledDirection = void (WinogradConvolution::*)(const AffineOperands&) const;
  CpuProduct tiled_winograd(const CpuProduct::Problem& problem, std::size_t scratch_bytes,
                            TiledDirection run) const {
    const bool sums = problem.direction == AffineDirection::backward_weights;
    return CpuProduct(
        problem, {.name = "tiled winograd",
                  .wanted = blocked(sums ? Type::f32 : type_of_winograd()),
                  .scratch = memory::desc({static_cast<memory::dim>(scratch_bytes)}, memory::data_type::u8,
                                          memory::format_tag::a),
                  .function = [kernel = winograd_, run](const AffineOperands& o) { ((*kernel).*run)(o); }});
  }

  AffineProduct plan_forward() {
    const dnnl::primitive_attr attributes = scratchpad_attributes();
    const auto describe = [&](const Variant& v, const memory::desc& source, const memory::desc& destination) {
      return onednn::describe<dnnl::convolution_forward>(
          onednn_engine(), attributes, dnnl::prop_kind::forward_training, v.algorithm, source,
          any_like(sizes_.weights, v.type), bias_, destination, sizes_.strides, sizes_.dilation,
          sizes_.padding, sizes_.padding);
    };
    const auto library = [&](const Variant& v) {
      const auto whole = describe(v, any_like(sizes_.source, v.type), any_like(sizes_.destination, v.type));
      const auto pd =
          v.pieces == 1 ? whole : describe(v, wanted(source_, v), piece_of(whole.dst_desc(), v.pieces));
      CpuProduct::Problem problem =
          problem_of(AffineDirection::forward, onednn::with_type_or_plain(pd.weights_desc(), type_),
                     onednn::with_type_or_plain(whole.dst_desc(), type_));
      problem.activation = shape_.activation;
      return CpuProduct(problem, {.name = v.name,
                                  .primitive = dnnl::convolution_forward(pd),
                                  .wanted = {.x = pd.src_desc(), .w = pd.weights_desc(), .y = pd.dst_desc()},
                                  .scratch = pd.scratchpad_desc(),
                                  .pieces = v.pieces});
    };
    const auto tiled = [&] {
      AffineDescs kept = blocked(type_of_winograd());
      for (memory::desc* desc : {&kept.w, &kept.y}) *desc = onednn::with_type(*desc, type_);
      return tiled_winograd(problem_of(AffineDirection::forward, kept.w, kept.y),
                            winograd_->forward_scratch_bytes(), &WinogradConvolution::forward);
    };
    CpuProduct product = choose(AffineDirection::forward, library, tiled);
    weights_ = product.problem().kept.w;
    destination_ = product.problem().kept.y;
    return CpuProduct::as_product(std::move(product));
  }

  // The forward primitive that oneDNN requires as a hint to describe a gradient.
  dnnl::convolution_forward::primitive_desc hint(const Variant& v) const {
    memory::dims source = sizes_.source;
    memory::dims destination = sizes_.destination;
    source[0] /= v.pieces;
    destination[0] /= v.pieces;
    return onednn::describe<dnnl::convolution_forward>(
        onednn_engine(), scratchpad_attributes(), dnnl::prop_kind::forward_training,
        dnnl::algorithm::convolution_direct, any_like(source, v.type), any_like(sizes_.weights, v.type),
        bias_, any_like(destination, v.type), sizes_.strides, sizes_.dilation, sizes_.padding,
        sizes_.padding);
  }

  AffineProduct plan_backward_data() {
    const CpuProduct::Problem problem = problem_of(AffineDirection::backward_data, weights_, destination_);
    const auto library = [&](const Variant& v) {
      const auto pd = onednn::describe_backward<dnnl::convolution_backward_data>(
          onednn_engine(), scratchpad_attributes(), hint(v), v.algorithm, wanted(source_, v),
          any_like(sizes_.weights, v.type), wanted(destination_, v), sizes_.strides, sizes_.dilation,
          sizes_.padding, sizes_.padding);
      return CpuProduct(problem,
                        {.name = v.name,
                         .primitive = dnnl::convolution_backward_data(pd),
                         .wanted = {.x = pd.diff_src_desc(), .w = pd.weights_desc(), .y = pd.diff_dst_desc()},
                         .scratch = pd.scratchpad_desc(),
                         .pieces = v.pieces});
    };
    const auto tiled = [&] {
      return tiled_winograd(problem, winograd_->backward_data_scratch_bytes(),
                            &WinogradConvolution::backward_data);
    };
    return CpuProduct::as_product(choose(problem.direction, library, tiled));
  }

  AffineProduct plan_backward_weights() {
    const CpuProduct::Problem problem = problem_of(AffineDirection::backward_weights, weights_, destination_);
    const auto library = [&](const Variant& v) {
      const auto pd = onednn::describe_backward<dnnl::convolution_backward_weights>(
          onednn_engine(), scratchpad_attributes(), hint(v), v.algorithm, wanted(source_, v),
          any_like(sizes_.weights, Type::f32), bias_, wanted(destination_, v), sizes_.strides,
          sizes_.dilation, sizes_.padding, sizes_.padding);
      return CpuProduct(problem,
                        {.name = v.name,
                         .primitive = dnnl::convolution_backward_weights(pd),
                         .wanted = {.x = pd.src_desc(), .w = pd.diff_weights_desc(), .y = pd.diff_dst_desc()},
                         .scratch = pd.scratchpad_desc(),
                         .pieces = v.pieces});
    };
    const auto tiled = [&] {
      return tiled_winograd(problem, winograd_->backward_weights_scratch_bytes(),
                            &WinogradConvolution::backward_weights);
    };
    return CpuProduct::as_product(choose(problem.direction, library, tiled));
  }

  ConvolutionShape shape_;
  Sizes sizes_;
  Layout input_;
  Type type_;  // of the tensors
  KernelChoices& choices_;
  std::shared_ptr<const WinogradConvolution> winograd_;  // null if not supported
  memory::desc bias_;
  memory::desc source_;       // the input's layout
  memory::desc weights_;      // as forward chose
  memory::desc destination_;  // as forward chose
};

}  // namespace

std::unique_ptr<AffineKernel> CpuBackend::convolution(const ConvolutionShape& shape, const Layout& input,
                                                      KernelChoices& choices) {
  check_convolution(shape, input);
  const std::string what =
      fmt::format("a {0}x{0} convolution of {1}", shape.kernel, to_string(input.shape()));
  return plan_with_onednn(
      what, [&] { return std::make_unique<AffineKernel>(ConvolutionPlanner(shape, input, choices).plan()); });
}

}  // namespace lockstep
