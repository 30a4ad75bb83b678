// SPDX-License-Identifier: Apache-2.0
#include "models/graph.h"

#include <algorithm>
#include <array>
#include <span>

#include <fmt/ranges.h>

#include "core/error.h"
#include "core/text/enum_words.h"
#include "kernels/affine.h"

namespace lockstep {
namespace {

void require(bool condition, const std::string& layer, const std::string& message) {
  if (!condition) throw ConfigError(fmt::format("layer {}: {}", layer, message));
}

// Larger sizes overflow 64 bits somewhere.
constexpr std::int64_t kMostElements = std::int64_t{1} << 56;

void require_possible(std::span<const std::int64_t> sizes, const std::string& layer,
                      const std::string& what) {
  std::int64_t elements = 1;
  for (const std::int64_t size : sizes)
    require(!__builtin_mul_overflow(elements, size, &elements) && elements <= kMostElements, layer,
            fmt::format("{} [{}] are too large; the limit is 2^56 elements", what, fmt::join(sizes, ", ")));
}

void require_options(const BatchNormOptions& options, const std::string& layer) {
  require(
      is_fused(options.activation), layer,
      fmt::format("batch norm does not apply {}; append it with activation()", word_of(options.activation)));
  require(options.ranks == 1, layer,
          fmt::format("options.ranks is {}; set NetworkOptions::batch_norm_ranks instead", options.ranks));
}

void require_image(const Shape& shape, const std::string& layer) {
  require(shape.rank() == 4, layer, fmt::format("needs [N, C, H, W], got {}", to_string(shape)));
}

}  // namespace

std::string_view kind_of(const Operation& operation) {
  struct Kind {
    std::string_view operator()(const ConvolutionOptions&) const { return "convolution"; }
    std::string_view operator()(const LinearOptions&) const { return "linear"; }
    std::string_view operator()(const BatchNormOptions&) const { return "batch norm"; }
    std::string_view operator()(const LayerNormOptions&) const { return "layer norm"; }
    std::string_view operator()(const PoolingOptions& o) const {
      return o.kind == PoolingKind::max ? "max pooling" : "average pooling";
    }
    std::string_view operator()(const ActivationOptions&) const { return "activation"; }
    std::string_view operator()(const DropoutOptions&) const { return "dropout"; }
    std::string_view operator()(const AddOptions&) const { return "add"; }
    std::string_view operator()(const SoftmaxOptions&) const { return "softmax"; }
    std::string_view operator()(const FlattenOptions&) const { return "flatten"; }
    std::string_view operator()(const UpsamplingOptions&) const { return "upsampling"; }
    std::string_view operator()(const ConcatenateOptions&) const { return "concatenate"; }
    std::string_view operator()(const PixelsOptions&) const { return "pixels"; }
  };
  return std::visit(Kind{}, operation);
}

std::string shown_name(const Layer& layer) {
  return layer.name.empty() ? std::string(kind_of(layer.operation)) : layer.name;
}

bool has_parameters(const Operation& operation) {
  return std::holds_alternative<ConvolutionOptions>(operation) ||
         std::holds_alternative<LinearOptions>(operation) ||
         std::holds_alternative<BatchNormOptions>(operation) ||
         std::holds_alternative<LayerNormOptions>(operation);
}

Graph::Graph(const GraphInput& input) : input_(input) {
  if (input.batch < 1 || input.height < 1 || input.width < 1 || input.channels < 1 || input.classes < 1) {
    throw ConfigError(fmt::format("graph input: batch {}, {}x{}x{}, {} classes; each must be at least 1",
                                  input.batch, input.height, input.width, input.channels, input.classes));
  }
  shapes_.push_back({input.batch, input.channels, input.height, input.width});
  wants_gradient_.push_back(false);
}

const Shape& Graph::shape(Value value) const {
  CHECK(value.id >= 0 && value.id < static_cast<int>(shapes_.size()),
        "value {} does not belong to this graph", value.id);
  return shapes_[static_cast<std::size_t>(value.id)];
}

bool Graph::hidden(Value value) const {
  if (value.id == 0) return false;
  const auto layer = static_cast<std::size_t>(value.id) - 1;  // the layer that made it
  const std::size_t ended = blocks_.size() - (in_block_ ? 1 : 0);
  return std::any_of(blocks_.begin(), blocks_.begin() + static_cast<std::ptrdiff_t>(ended),
                     [&](const LayerRange& block) { return layer >= block.first && layer + 1 < block.end; });
}

bool Graph::wants_gradient(Value value) const {
  shape(value);  // throws for a value of another graph
  return wants_gradient_[static_cast<std::size_t>(value.id)];
}

// True if the layer itself or a layer before it is trained.
bool Graph::trains(const Layer& layer) const {
  if (has_parameters(layer.operation) && !layer.frozen) return true;
  return std::ranges::any_of(layer.inputs, [&](Value input) { return wants_gradient(input); });
}

int Graph::freeze(std::string_view prefix) {
  int found = 0;
  for (Layer& layer : layers_) {
    const std::string_view name = layer.name;
    const bool begins = !prefix.empty() && name.starts_with(prefix) &&
                        (name.size() == prefix.size() || name[prefix.size()] == '.');
    if (begins && has_parameters(layer.operation)) {
      layer.frozen = true;
      ++found;
    }
    wants_gradient_[static_cast<std::size_t>(layer.output.id)] = trains(layer);
  }
  return found;
}

Value Graph::append(Layer layer, const Shape& result) {
  const bool taken = !layer.name.empty() && std::ranges::count(layers_, layer.name, &Layer::name) > 0;
  require(!taken, layer.name, "another layer has the same name");
  const bool is_named =
      has_parameters(layer.operation) || std::holds_alternative<DropoutOptions>(layer.operation);
  require(!is_named || !layer.name.empty(), shown_name(layer),
          "its name is empty; initial values, saved parameters and dropout masks depend on it");
  for (const Value input : layer.inputs) {
    require(!hidden(input), shown_name(layer),
            fmt::format("its input {} was computed inside a block that has ended; only the block's last "
                        "value may be used",
                        to_string(shape(input))));
  }
  require_possible(result.dims(), shown_name(layer), "its results");
  layer.output = {static_cast<int>(shapes_.size())};
  shapes_.push_back(result);
  wants_gradient_.push_back(trains(layer));
  layers_.push_back(std::move(layer));
  return layers_.back().output;
}

Value Graph::convolution(Value x, const ConvolutionOptions& options, const std::string& name,
                         SourcePlace place) {
  const Shape in = shape(x);
  require_image(in, name);
  require(options.channels > 0 && options.kernel > 0 && options.stride > 0 && options.padding >= 0 &&
              options.dilation > 0 && options.groups > 0,
          name,
          fmt::format("{} channels, kernel {}, stride {}, padding {}, dilation {}, groups {}; padding must "
                      "be at least 0, the other numbers at least 1",
                      options.channels, options.kernel, options.stride, options.padding, options.dilation,
                      options.groups));
  require(in[1] % options.groups == 0 && options.channels % options.groups == 0, name,
          fmt::format("{} -> {} channels cannot be divided into {} groups", in[1], options.channels,
                      options.groups));
  require_possible(std::array{options.channels, in[1] / options.groups, options.kernel, options.kernel}, name,
                   "its weights");
  const ConvolutionShape shape{.in_height = in[2],
                               .in_width = in[3],
                               .kernel = options.kernel,
                               .stride = options.stride,
                               .padding = options.padding,
                               .dilation = options.dilation};
  const std::int64_t reach = options.dilation * (options.kernel - 1) + 1;
  require(in[2] + 2 * options.padding >= reach && in[3] + 2 * options.padding >= reach, name,
          fmt::format("kernel {} with dilation {} and padding {} does not fit {}", options.kernel,
                      options.dilation, options.padding, to_string(in)));
  return append({.name = name, .operation = options, .inputs = {x}, .place = place},
                {in[0], options.channels, shape.out_height(), shape.out_width()});
}

Value Graph::linear(Value x, const LinearOptions& options, const std::string& name, SourcePlace place) {
  const Shape in = shape(x);
  require(options.features > 0, name,
          fmt::format("the number of features is {}, must be at least 1", options.features));
  require_possible(std::array{options.features, in.elements() / in[0]}, name, "its weights");
  return append({.name = name, .operation = options, .inputs = {x}, .place = place},
                {in[0], options.features});
}

Value Graph::batch_norm(Value x, const BatchNormOptions& options, const std::string& name,
                        SourcePlace place) {
  const Shape in = shape(x);
  require(!options.residual, name, "options.residual is set, but no residual is given");
  require_options(options, name);
  return append({.name = name, .operation = options, .inputs = {x}, .place = place, .frozen = options.frozen},
                in);
}

Value Graph::batch_norm(Value x, Value residual, BatchNormOptions options, const std::string& name,
                        SourcePlace place) {
  const Shape in = shape(x);
  require(in == shape(residual), name,
          fmt::format("the input has the shape {}, the residual {}; they must be equal", to_string(in),
                      to_string(shape(residual))));
  require_options(options, name);
  options.residual = true;
  return append(
      {.name = name, .operation = options, .inputs = {x, residual}, .place = place, .frozen = options.frozen},
      in);
}

Value Graph::layer_norm(Value x, const LayerNormOptions& options, const std::string& name,
                        SourcePlace place) {
  const Shape in = shape(x);
  require(options.epsilon > 0, name, fmt::format("epsilon is {}, must be above 0", options.epsilon));
  return append({.name = name, .operation = options, .inputs = {x}, .place = place}, in);
}

Value Graph::pooling(Value x, const PoolingOptions& options, SourcePlace place) {
  const Shape in = shape(x);
  require_image(in, "pooling");
  const bool fits = options.global ||
                    (options.kernel > 0 && options.stride > 0 && options.padding >= 0 &&
                     2 * options.padding <= options.kernel && in[2] + 2 * options.padding >= options.kernel &&
                     in[3] + 2 * options.padding >= options.kernel);
  require(fits, "pooling",
          fmt::format("window {} with stride {} and padding {} does not fit {}; window and stride must be at "
                      "least 1, the padding at most half the window, the window at most the padded image",
                      options.kernel, options.stride, options.padding, to_string(in)));
  return append({.operation = options, .inputs = {x}, .place = place},
                {in[0], in[1], options.out_size(in[2]), options.out_size(in[3])});
}

Value Graph::activation(Value x, Activation activation, SourcePlace place) {
  const Shape in = shape(x);
  return append({.operation = ActivationOptions{activation}, .inputs = {x}, .place = place}, in);
}

Value Graph::add(Value a, Value b, SourcePlace place) {
  const Shape in = shape(a);
  require(in == shape(b), "add",
          fmt::format("the inputs have the shapes {} and {}, which must be equal", to_string(in),
                      to_string(shape(b))));
  return append({.operation = AddOptions{}, .inputs = {a, b}, .place = place}, in);
}

Value Graph::softmax(Value x, SourcePlace place) {
  const Shape in = shape(x);
  return append({.operation = SoftmaxOptions{}, .inputs = {x}, .place = place}, in);
}

Value Graph::flatten(Value x, SourcePlace place) {
  const Shape in = shape(x);
  return append({.operation = FlattenOptions{}, .inputs = {x}, .place = place},
                {in[0], in.elements() / in[0]});
}

Value Graph::upsample(Value x, std::int64_t factor, SourcePlace place) {
  const Shape in = shape(x);
  require_image(in, "upsample");
  require(factor > 0, "upsample", fmt::format("the factor is {}, must be at least 1", factor));
  require(factor <= kMostElements / std::max(in[2], in[3]), "upsample",
          fmt::format("{} times {} is too large", factor, to_string(in)));
  return append({.operation = UpsamplingOptions{factor}, .inputs = {x}, .place = place},
                {in[0], in[1], in[2] * factor, in[3] * factor});
}

Value Graph::concatenate(Value a, Value b, SourcePlace place) {
  const Shape in = shape(a), other = shape(b);
  require_image(in, "concatenate");
  require_image(other, "concatenate");
  require(in[2] == other[2] && in[3] == other[3], "concatenate",
          fmt::format("the inputs have the shapes {} and {}, whose heights and widths must be equal",
                      to_string(in), to_string(other)));
  return append({.operation = ConcatenateOptions{}, .inputs = {a, b}, .place = place},
                {in[0], in[1] + other[1], in[2], in[3]});
}

Value Graph::dropout(Value x, double probability, const std::string& name, SourcePlace place) {
  const Shape in = shape(x);
  // Kernels compute with the fp32 value, which may be 1.
  require(probability >= 0 && static_cast<float>(probability) < 1, name,
          fmt::format("dropout probability {}, expected at least 0 and, as fp32, below 1", probability));
  if (probability == 0) return x;
  return append({.name = name, .operation = DropoutOptions{probability, name}, .inputs = {x}, .place = place},
                in);
}

void Graph::begin_block() {
  CHECK(!in_block_, "blocks cannot be nested");
  in_block_ = true;
  blocks_.push_back({layers_.size(), layers_.size()});
}

void Graph::end_block() {
  CHECK(in_block_, "no block has begun");
  in_block_ = false;
  blocks_.back().end = layers_.size();
  if (blocks_.back().first == layers_.size()) blocks_.pop_back();
}

// The logits as rows of classes, one for each pixel.
Value Graph::checked_mask_logits(Value logits) {
  const Shape expected{input_.batch, input_.classes, input_.height, input_.width};
  require(input_.loss == Loss::cross_entropy, "classify",
          fmt::format("the loss of masks is cross_entropy, not {}", word_of(input_.loss)));
  require(
      shape(logits) == expected, "classify",
      fmt::format("the logits have the shape {}, expected {}: the dataset has masks, so the network needs "
                  "an output for each class and pixel, such as that of \"unet\"",
                  to_string(shape(logits)), to_string(expected)));
  require(logits.id > 0 && std::holds_alternative<ConvolutionOptions>(
                               layers_[static_cast<std::size_t>(logits.id) - 1].operation),
          "classify", "the logits of masks must be the output of a convolution");
  const Layer& head = layers_[static_cast<std::size_t>(logits.id) - 1];
  return append({.operation = PixelsOptions{}, .inputs = {logits}, .place = head.place},
                {rows(), input_.classes});
}

const Layer& Graph::head() const {
  const Layer& last = layers_[static_cast<std::size_t>(logits_.id) - 1];
  return input_.masks ? layers_[static_cast<std::size_t>(last.inputs[0].id) - 1] : last;
}

void Graph::classify(Value logits) {
  require(logits_.id < 0, "classify", "the logits are already set");
  if (input_.masks) {
    logits_ = checked_mask_logits(logits);
    return;
  }
  require(shape(logits).rank() == 2, "classify",
          fmt::format("the logits have the shape {}, with an output for each pixel, but the dataset has one "
                      "label for each image; use data.format = \"masks\" or a network for images",
                      to_string(shape(logits))));
  const Shape expected{input_.batch, input_.classes}, single{input_.batch, 1};
  const bool may_be_single = input_.loss == Loss::mean_squared_error ||
                             (input_.loss == Loss::binary_cross_entropy && input_.classes <= 2);
  require(shape(logits) == expected || (may_be_single && shape(logits) == single), "classify",
          fmt::format("the logits have the shape {}, expected {}{} for {} of {} classes",
                      to_string(shape(logits)), to_string(expected),
                      may_be_single ? " or " + to_string(single) : "", word_of(input_.loss), input_.classes));
  require(!hidden(logits), "classify",
          "the logits were computed inside a block that has ended; only the block's last value may be used");
  require(logits.id > 0 && std::holds_alternative<LinearOptions>(
                               layers_[static_cast<std::size_t>(logits.id) - 1].operation),
          "classify", "the logits must be the output of a linear layer");
  logits_ = logits;
}

}  // namespace lockstep
