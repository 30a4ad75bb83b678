// SPDX-License-Identifier: Apache-2.0
#include "models/networks/layers.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "core/error.h"
#include "core/text/enum_words.h"

namespace lockstep {
namespace {

using Type = LayerField::Type;

constexpr double kMostFeatures = 1 << 20;
constexpr double kMostSide = 4096;
constexpr double kMostRepeats = 1000;
constexpr std::size_t kMostLayers = 5000;
constexpr std::string_view kSame[] = {"same"};
constexpr std::string_view kPoolWords[] = {"max", "average"};

constexpr LayerField kStride{.name = "stride", .least = 1, .most = kMostSide};
constexpr LayerField kPadding{.name = "padding", .least = 0, .most = kMostSide, .words = kSame};
constexpr LayerField kBias{.name = "bias", .type = Type::flag};
constexpr LayerField kInitial{.name = "initialization", .type = Type::word, .words = kInitializationWords};
constexpr LayerField kL2{.name = "l2", .type = Type::number, .least = 0, .most = 1e6};
constexpr std::string_view kSoftmax = "softmax";
constexpr std::string_view kLayerActivations[] = {"none", "relu", "relu6", "sigmoid",
                                                  "tanh", "gelu", kSoftmax};
constexpr LayerField kActivation{.name = "activation", .type = Type::word, .words = kLayerActivations};

constexpr LayerField kConvolutionFields[] = {
    {.name = "channels", .least = 1, .most = kMostFeatures, .required = true},
    {.name = "kernel", .least = 1, .most = kMostSide, .required = true},
    kStride,
    kPadding,
    {.name = "dilation", .least = 1, .most = kMostSide},
    {.name = "groups", .least = 1, .most = kMostFeatures},
    kBias,
    kInitial,
    kL2,
    kActivation};
constexpr LayerField kDenseFields[] = {
    {.name = "features", .least = 1, .most = kMostFeatures}, kBias, kInitial, kL2, kActivation};
constexpr LayerField kBatchNormFields[] = {
    {.name = "momentum", .type = Type::number, .least = 0, .most = 1},
    {.name = "epsilon", .type = Type::number, .least = 1e-30, .most = 1},
    {.name = "initial_scale", .type = Type::number, .least = 0, .most = 1e6},
    kActivation};
constexpr LayerField kLayerNormFields[] = {
    {.name = "epsilon", .type = Type::number, .least = 1e-30, .most = 1}, kActivation};
constexpr LayerField kPoolingFields[] = {{.name = "pool", .type = Type::word, .words = kPoolWords},
                                         {.name = "global", .type = Type::flag},
                                         {.name = "kernel", .least = 1, .most = kMostSide},
                                         kStride,
                                         {.name = "padding", .least = 0, .most = kMostSide}};
constexpr LayerField kDropoutFields[] = {
    {.name = "rate", .type = Type::number, .least = 0, .most = 0.9999, .required = true}};
constexpr LayerField kActivationFields[] = {
    {.name = "activation", .type = Type::word, .words = kLayerActivations, .required = true}};
constexpr LayerField kAddFields[] = {{.name = "with", .type = Type::text, .required = true}, kActivation};
constexpr LayerField kUpsampleFields[] = {{.name = "factor", .least = 1, .most = 64}};
constexpr LayerField kBlockFields[] = {{.name = "repeat", .least = 1, .most = kMostRepeats},
                                       {.name = "residual", .type = Type::flag},
                                       kActivation};

constexpr LayerKind kKinds[] = {{"convolution", "conv", kConvolutionFields},
                                {"dense", "fc", kDenseFields},
                                {"batch_norm", "bn", kBatchNormFields},
                                {"layer_norm", "ln", kLayerNormFields},
                                {"pooling", "pool", kPoolingFields},
                                {"dropout", "dropout", kDropoutFields},
                                {"flatten", "flatten", {}},
                                {"activation", "activation", kActivationFields},
                                {"add", "add", kAddFields},
                                {"upsample", "up", kUpsampleFields},
                                {"concatenate", "concat", kAddFields},
                                {"block", "block", kBlockFields, true}};

// The activation of a layer.
struct AppliedActivation {
  Activation elementwise = Activation::none;
  bool softmax = false;

  static AppliedActivation of(const LayerSpec& spec) {
    const auto given = spec.value("activation", std::string("none"));
    if (given == kSoftmax) return {.softmax = true};
    return {.elementwise = *value_of<Activation>(given)};
  }
  bool is_none() const { return !softmax && elementwise == Activation::none; }
};

// A result of a layer, and whether a flatten follows that has not been appended: a dense layer, which
// flattens its input, needs none.
struct Result {
  Value value;
  bool flat = false;
};

template <typename Enum>
Enum word(const LayerSpec& spec, std::string_view field, Enum otherwise) {
  return spec.given(field) ? *value_of<Enum>(spec.value(field, std::string())) : otherwise;
}

class LayerBuilder {
 public:
  LayerBuilder(Graph& graph, std::span<const LayerSpec> layers) : graph_(graph), all_(layers) {}

  void build() {
    // Rows of a table are flat.
    Result x{graph_.input(), graph_.input_shape().type == DType::f32};
    for (const LayerSpec& spec : all_) x = layer(spec, x, "");
    const LayerSpec& last = all_.back();
    located(last, [&] {
      if (graph_.input_shape().masks && last.kind != "convolution")
        throw ConfigError(fmt::format(
            "{}: the last layer must be a convolution: the dataset has masks, so it has an output for each "
            "class and pixel",
            last.name));
      if (!graph_.input_shape().masks && last.kind != "dense")
        throw ConfigError(
            fmt::format("{}: the last layer must be dense: it has an output for each class", last.name));
      graph_.classify(x.value);
    });
  }

 private:
  // Calls body; errors name the place of the innermost layer.
  template <typename Body>
  auto located(const LayerSpec& spec, const Body& body) -> decltype(body()) {
    try {
      return body();
    } catch (const ConfigError& error) {
      if (spec.line == 0 || std::string_view(error.what()).starts_with(spec.file + ':')) throw;
      throw ConfigError(spec.place() + error.what());
    }
  }

  static SourcePlace place(const LayerSpec& spec) {
    return SourcePlace::current(spec.file.c_str(), static_cast<int>(spec.line));
  }

  Value unflattened(const LayerSpec& spec, Result x) {
    return x.flat && graph_.shape(x.value).rank() > 2 ? graph_.flatten(x.value, place(spec)) : x.value;
  }

  Value activated(const LayerSpec& spec, Value x, const AppliedActivation& activation) {
    return activated(spec, Result{x}, activation).value;
  }
  // Softmax after a flatten goes over features.
  Result activated(const LayerSpec& spec, Result x, const AppliedActivation& activation) {
    if (activation.is_none()) return x;
    if (activation.softmax) return {graph_.softmax(unflattened(spec, x), place(spec))};
    return {graph_.activation(x.value, activation.elementwise, place(spec)), x.flat};
  }

  Result layer(const LayerSpec& spec, Result x, const std::string& prefix) {
    const std::string name = prefix + spec.name;
    count_layer();
    const Result result = located(spec, [&] { return made(spec, x, name, prefix); });
    results_[name] = result;
    return result;
  }

  void count_layer() {
    if (++made_ > kMostLayers)
      throw ConfigError(fmt::format("the network has more than {} layers; reduce repeat", kMostLayers));
  }

  Result made(const LayerSpec& spec, Result x, const std::string& name, const std::string& prefix) {
    if (spec.kind == "dense") return dense(spec, x.value, name);
    const AppliedActivation activation = AppliedActivation::of(spec);
    if (spec.kind == "convolution")
      return {activated(spec, convolution(spec, unflattened(spec, x), name), activation)};
    if (spec.kind == "batch_norm")
      return {batch_norm(spec, unflattened(spec, x), std::nullopt, name, activation)};
    if (spec.kind == "layer_norm") return {layer_norm(spec, unflattened(spec, x), name, activation)};
    if (spec.kind == "pooling") return {graph_.pooling(unflattened(spec, x), pooling(spec), place(spec))};
    if (spec.kind == "dropout")
      return {graph_.dropout(x.value, spec.value("rate", 0.0), name, place(spec)), x.flat};
    if (spec.kind == "flatten") return {x.value, true};
    if (spec.kind == "activation") return activated(spec, x, activation);
    if (spec.kind == "add" || spec.kind == "concatenate") return joined(spec, x, prefix, activation);
    if (spec.kind == "upsample")
      return {graph_.upsample(unflattened(spec, x), spec.value("factor", std::int64_t{2}), place(spec))};
    return block(spec, x, name, activation);
  }

  Value convolution(const LayerSpec& spec, Value x, const std::string& name) {
    ConvolutionOptions options{.channels = spec.value("channels", std::int64_t{0}),
                               .kernel = spec.value("kernel", std::int64_t{0}),
                               .stride = repetition_ > 0 ? 1 : spec.value("stride", std::int64_t{1}),
                               .dilation = spec.value("dilation", std::int64_t{1}),
                               .groups = spec.value("groups", std::int64_t{1}),
                               .bias = spec.value("bias", true),
                               .initialization = word(spec, "initialization", Initialization::fan_in_uniform),
                               .l2 = spec.value("l2", 0.0)};
    const auto padding = spec.values.find("padding");
    if (padding != spec.values.end() && std::holds_alternative<std::string>(padding->second)) {
      if (options.kernel % 2 == 0)
        throw ConfigError(
            fmt::format("{}: padding = \"same\" needs an odd kernel, not {}", name, options.kernel));
      options.padding = options.dilation * (options.kernel / 2);
    } else if (padding != spec.values.end()) {
      options.padding = std::get<std::int64_t>(padding->second);
    }
    return graph_.convolution(x, options, name, place(spec));
  }

  // The activation of the last layer is part of the loss, which reads the layer's logits.
  Result dense(const LayerSpec& spec, Value x, const std::string& name) {
    const bool last = &spec == &all_.back();
    if (!last && !spec.given("features"))
      throw ConfigError(fmt::format(
          "{}: features is missing; only the last layer has one for each class without it", name));
    const Value y =
        graph_.linear(x,
                      {.features = spec.value("features", graph_.input_shape().classes),
                       .bias = spec.value("bias", true),
                       .initialization = word(spec, "initialization", Initialization::fan_in_uniform),
                       .l2 = spec.value("l2", 0.0)},
                      name, place(spec));
    const AppliedActivation activation = AppliedActivation::of(spec);
    if (!last || activation.is_none()) return {activated(spec, y, activation)};
    const Loss loss = graph_.input_shape().loss;
    const bool of_the_loss =
        (activation.softmax && loss == Loss::cross_entropy) ||
        (activation.elementwise == Activation::sigmoid && loss == Loss::binary_cross_entropy);
    if (of_the_loss) return {y};
    throw ConfigError(fmt::format("{}: activation = \"{}\": with model.loss = \"{}\" the last layer has {}",
                                  name, spec.value("activation", std::string()), word_of(loss),
                                  loss == Loss::cross_entropy          ? "softmax or none"
                                  : loss == Loss::binary_cross_entropy ? "sigmoid or none"
                                                                       : "none"));
  }

  Value batch_norm(const LayerSpec& spec, Value x, std::optional<Value> residual, const std::string& name,
                   const AppliedActivation& activation) {
    BatchNormOptions options;
    options.epsilon = static_cast<float>(spec.value("epsilon", static_cast<double>(options.epsilon)));
    options.momentum = static_cast<float>(spec.value("momentum", static_cast<double>(options.momentum)));
    options.initial_scale = static_cast<float>(spec.value("initial_scale", 1.0));
    const bool fused = !activation.softmax && is_fused(activation.elementwise);
    if (fused) options.activation = activation.elementwise;
    const Value y = residual ? graph_.batch_norm(x, *residual, options, name, place(spec))
                             : graph_.batch_norm(x, options, name, place(spec));
    return fused ? y : activated(spec, y, activation);
  }

  Value layer_norm(const LayerSpec& spec, Value x, const std::string& name,
                   const AppliedActivation& activation) {
    LayerNormOptions options;
    options.epsilon = static_cast<float>(spec.value("epsilon", static_cast<double>(options.epsilon)));
    return activated(spec, graph_.layer_norm(x, options, name, place(spec)), activation);
  }

  static PoolingOptions pooling(const LayerSpec& spec) {
    const auto kernel = spec.value("kernel", std::int64_t{2});
    return {.kind = spec.value("pool", std::string("max")) == "max" ? PoolingKind::max : PoolingKind::average,
            .kernel = kernel,
            .stride = spec.value("stride", kernel),
            .padding = spec.value("padding", std::int64_t{0}),
            .global = spec.value("global", false)};
  }

  Result joined(const LayerSpec& spec, Result x, const std::string& prefix,
                const AppliedActivation& activation) {
    const auto with = spec.value("with", std::string());
    auto other = results_.find(prefix + with);
    if (other == results_.end()) other = results_.find(with);
    if (other == results_.end())
      throw ConfigError(fmt::format("{}: with = \"{}\": no layer before it has this name", spec.name, with));
    const bool flat = x.flat || other->second.flat;
    const Value a = flat ? unflattened(spec, {x.value, true}) : x.value;
    const Value b = flat ? unflattened(spec, {other->second.value, true}) : other->second.value;
    const Value y =
        spec.kind == "add" ? graph_.add(a, b, place(spec)) : graph_.concatenate(a, b, place(spec));
    return {activated(spec, y, activation)};
  }

  Result block(const LayerSpec& spec, Result x, const std::string& name,
               const AppliedActivation& activation) {
    const auto repeat = spec.value("repeat", std::int64_t{1});
    for (std::int64_t i = 0; i < repeat; ++i) {
      const std::string each = spec.given("repeat") ? fmt::format("{}.{}", name, i) : name;
      if (!spec.value("residual", false)) {
        for (const LayerSpec& inner : spec.layers) x = layer(inner, x, each + '.');
        x = activated(spec, x, activation);
        continue;
      }
      const std::int64_t outer = repetition_;
      repetition_ = i;
      x = residual_block(spec, x, each, activation);
      repetition_ = outer;
    }
    return x;
  }

  Result residual_block(const LayerSpec& spec, Result x, const std::string& name,
                        const AppliedActivation& activation) {
    count_layer();                    // its sum
    std::optional<BlockScope> scope;  // they do not nest
    if (!in_scope_) scope.emplace(graph_);
    const bool outer = std::exchange(in_scope_, true);
    const Value input = unflattened(spec, x);
    Result y{input};
    // The sum is fused into a batch norm that ends the block.
    const LayerSpec& last = spec.layers.back();
    const bool fuses = last.kind == "batch_norm" && !last.given("activation");
    for (const LayerSpec& inner : std::span(spec.layers).first(spec.layers.size() - (fuses ? 1 : 0)))
      y = layer(inner, y, name + '.');
    const Value made = unflattened(spec, y);
    const Value shortcut = shortcut_of(spec, input, graph_.shape(made), name);
    Value sum;
    if (fuses) {
      sum =
          located(last, [&] { return batch_norm(last, made, shortcut, name + '.' + last.name, activation); });
    } else {
      sum = activated(spec, graph_.add(made, shortcut, place(spec)), activation);
    }
    in_scope_ = outer;
    return {sum};
  }

  // The block's input, projected if its shape is not that of the block's result.
  Value shortcut_of(const LayerSpec& spec, Value x, const Shape& wanted, const std::string& name) {
    const Shape in = graph_.shape(x);
    if (in == wanted) return x;
    if (in.rank() != wanted.rank())
      throw ConfigError(fmt::format("{}: its layers turn {} into {}, so no shortcut can be added", name,
                                    to_string(in), to_string(wanted)));
    if (in.rank() == 2)
      return graph_.linear(x, {.features = wanted[1], .bias = false}, name + ".downsample.0", place(spec));
    for (std::int64_t stride = 1; stride <= std::max(in[2], in[3]); ++stride) {
      if ((in[2] - 1) / stride + 1 != wanted[2] || (in[3] - 1) / stride + 1 != wanted[3]) continue;
      x = graph_.convolution(x,
                             {.channels = wanted[1],
                              .stride = stride,
                              .bias = false,
                              .initialization = Initialization::he_normal},
                             name + ".downsample.0", place(spec));
      return graph_.batch_norm(x, {}, name + ".downsample.1", place(spec));
    }
    throw ConfigError(
        fmt::format("{}: its layers turn {} into {}, which no 1x1 convolution does for the "
                    "shortcut; use padding = \"same\" in the block",
                    name, to_string(in), to_string(wanted)));
  }

  Graph& graph_;
  std::span<const LayerSpec> all_;
  std::map<std::string, Result> results_;  // by full name
  std::size_t made_ = 0;                   // layers and blocks, also those that append nothing to the graph
  std::int64_t repetition_ = 0;            // of the innermost residual block: later ones have stride 1
  bool in_scope_ = false;
};

}  // namespace

std::span<const LayerKind> layer_kinds() { return kKinds; }

const LayerKind* find_layer_kind(std::string_view name) {
  const auto* found = std::ranges::find(kKinds, name, &LayerKind::name);
  return found == std::end(kKinds) ? nullptr : found;
}

const LayerField* find_layer_field(const LayerKind& kind, std::string_view name) {
  const auto found = std::ranges::find(kind.fields, name, &LayerField::name);
  return found == kind.fields.end() ? nullptr : &*found;
}

std::string LayerSpec::place() const { return line == 0 ? "" : fmt::format("{}:{}: ", file, line); }

void name_layers(std::span<LayerSpec> layers) {
  std::map<std::string_view, int> counts;
  for (LayerSpec& spec : layers) {
    const LayerKind& kind = *find_layer_kind(spec.kind);
    int& number = ++counts[kind.stem];
    while (spec.name.empty()) {
      const std::string name = fmt::format("{}{}", kind.stem, number);
      if (std::ranges::count(layers, name, &LayerSpec::name) == 0)
        spec.name = name;
      else
        ++number;
    }
    name_layers(spec.layers);
  }
}

void build_layers(Graph& graph, std::span<const LayerSpec> layers) {
  if (layers.empty())
    throw ConfigError("model.name = \"layers\": describe the network's layers in tables [[model.layer]]");
  LayerBuilder(graph, layers).build();
}

}  // namespace lockstep
