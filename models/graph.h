// SPDX-License-Identifier: Apache-2.0
//
// Graph: the computation of a network, as a list of layers in execution order. Symbolic: no memory, no
// device. Shapes are known immediately, and an invalid layer throws where it is appended. Network plans a
// Graph for a device.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "core/tensor/tensor.h"
#include "kernels/batch_norm.h"
#include "kernels/loss.h"
#include "kernels/pooling.h"
#include "models/source_place.h"

namespace lockstep {

// The result of a layer of one Graph: [N, C, H, W], or [N, features].
struct Value {
  int id = -1;
};

struct GraphInput {
  std::int64_t batch = 0;
  std::int64_t height = 0;
  std::int64_t width = 0;
  std::int64_t channels = 0;
  std::int64_t classes = 0;
  DType type = DType::u8;  // of samples: see ImageInput::source
  Loss loss = Loss::cross_entropy;
  // Each pixel has a label (Batch::labels), instead of each sample: the logits are [batch, classes, height,
  // width].
  bool masks = false;
};

// The distribution of initial weights. fan_in_uniform is PyTorch's default, U(-1/sqrt(fan_in),
// 1/sqrt(fan_in)), also for biases. With the others biases are zero: he_normal is N(0, 2 / fan_out) (He et
// al., 2015), normal_001 is N(0, 0.01^2), he_uniform is U(-b, b) with b = sqrt(6 / fan_in), and
// glorot_uniform with b = sqrt(6 / (fan_in + fan_out)) (Glorot and Bengio, 2010; Keras' default).
enum class Initialization { fan_in_uniform, he_normal, normal_001, he_uniform, glorot_uniform, zeros };
inline constexpr std::string_view kInitializationWords[] = {"fan_in_uniform", "he_normal",      "normal_001",
                                                            "he_uniform",     "glorot_uniform", "zeros"};
constexpr std::span<const std::string_view> words_of(Initialization) { return kInitializationWords; }

struct ConvolutionOptions {
  std::int64_t channels = 0;  // of the output
  std::int64_t kernel = 1;
  std::int64_t stride = 1;
  std::int64_t padding = 0;
  std::int64_t dilation = 1;
  std::int64_t groups = 1;
  bool bias = true;
  Initialization initialization = Initialization::fan_in_uniform;
  double l2 = 0;  // of the weights: see Parameter::l2
};

struct LinearOptions {
  std::int64_t features = 0;  // of the output
  bool bias = true;
  Initialization initialization = Initialization::fan_in_uniform;
  double l2 = 0;
};

// Over all features of each sample, with a scale and a shift for each feature: see kernels/layer_norm.h.
struct LayerNormOptions {
  float epsilon = 1e-5f;
};

struct ActivationOptions {
  Activation activation = Activation::relu;
};
struct AddOptions {};
struct FlattenOptions {};
struct SoftmaxOptions {};
struct UpsamplingOptions {
  std::int64_t factor = 2;
};
struct ConcatenateOptions {};
struct PixelsOptions {};
struct DropoutOptions {
  double probability = 0;
  std::string purpose;  // of its random numbers
};

using Operation = std::variant<ConvolutionOptions, LinearOptions, BatchNormOptions, LayerNormOptions,
                               PoolingOptions, ActivationOptions, AddOptions, FlattenOptions, SoftmaxOptions,
                               UpsamplingOptions, ConcatenateOptions, PixelsOptions, DropoutOptions>;

// "convolution", "max pooling", ...
std::string_view kind_of(const Operation& operation);

struct Layer {
  std::string name = {};  // prefix of its parameters' names; of dropout, its key; else empty
  Operation operation;
  std::vector<Value> inputs;
  Value output = {};
  SourcePlace place = {};  // source line that appended it
  bool frozen = false;     // see Graph::freeze
};

// Its name, or its kind if it has none: for messages.
std::string shown_name(const Layer& layer);

bool has_parameters(const Operation& operation);

// Layers [first, end) of a graph.
struct LayerRange {
  std::size_t first = 0;
  std::size_t end = 0;
};

class Graph {
 public:
  // Throws ConfigError for sizes below one.
  explicit Graph(const GraphInput& input);

  Value input() const { return {0}; }
  // Each appends a layer. name is the prefix of the parameters' names, as in PyTorch ("layer1.0.conv1"), and
  // must be unique and not empty. place: the caller; a function that appends layers for its caller may pass
  // on the caller's place. Planning refuses a layer whose result nothing uses.
  Value convolution(Value x, const ConvolutionOptions& options, const std::string& name,
                    SourcePlace place = SourcePlace::current());
  // [N, ...] is flattened.
  Value linear(Value x, const LinearOptions& options, const std::string& name,
               SourcePlace place = SourcePlace::current());
  // options.frozen freezes the layer: see freeze().
  Value batch_norm(Value x, const BatchNormOptions& options, const std::string& name,
                   SourcePlace place = SourcePlace::current());
  // activation(normalised x + residual)
  Value batch_norm(Value x, Value residual, BatchNormOptions options, const std::string& name,
                   SourcePlace place = SourcePlace::current());
  Value layer_norm(Value x, const LayerNormOptions& options, const std::string& name,
                   SourcePlace place = SourcePlace::current());
  Value pooling(Value x, const PoolingOptions& options, SourcePlace place = SourcePlace::current());
  Value relu(Value x, SourcePlace place = SourcePlace::current()) {
    return activation(x, Activation::relu, place);
  }
  Value activation(Value x, Activation activation, SourcePlace place = SourcePlace::current());
  Value add(Value a, Value b, SourcePlace place = SourcePlace::current());
  // Over the channels, or the features. Inside a network: cross-entropy contains that of the last layer.
  Value softmax(Value x, SourcePlace place = SourcePlace::current());
  // [N, C, H, W] as [N, C * H * W]. linear() needs no such layer.
  Value flatten(Value x, SourcePlace place = SourcePlace::current());
  // Repeats each pixel of [N, C, H, W] in both directions: [N, C, factor * H, factor * W].
  Value upsample(Value x, std::int64_t factor, SourcePlace place = SourcePlace::current());
  // The channels of `a`, then those of `b`, which has as many pixels.
  Value concatenate(Value a, Value b, SourcePlace place = SourcePlace::current());
  // In training, drops each element with this probability, in [0, 1), and scales the others. Identity in
  // evaluation; a probability of 0 appends no layer. The name selects the layer's random numbers.
  Value dropout(Value x, double probability, const std::string& name,
                SourcePlace place = SourcePlace::current());
  // Layers between begin_block() and end_block() form a block. Only its last layer's output may be used
  // outside; other uses throw ConfigError. The inner values can be recomputed in backward instead of kept
  // (NetworkOptions::recompute). Blocks do not nest.
  void begin_block();
  void end_block();

  // Freezes layers with parameters whose names begin with the prefix, in whole components ("layer1" does not
  // match "layer10"): their parameters are not trained, and their batch norm uses its running statistics and
  // does not update them. Returns the number of matching layers.
  int freeze(std::string_view prefix);

  // Sets the value that the loss is computed from, made by linear(): [N, classes], or what OutputLoss allows.
  // With GraphInput::masks it is made by convolution(): [N, classes, H, W] of the input's height and width.
  // Call once.
  void classify(Value logits);

  const GraphInput& input_shape() const { return input_; }
  const std::vector<Layer>& layers() const { return layers_; }
  const std::vector<LayerRange>& blocks() const { return blocks_; }
  const Shape& shape(Value value) const;
  // True if training needs the value's gradient: its layer, or a layer before it, is trained.
  bool wants_gradient(Value value) const;
  // [rows(), classes], or [rows(), 1].
  Value logits() const { return logits_; }
  // The samples of the loss: images, or with GraphInput::masks their pixels.
  std::int64_t rows() const { return input_.batch * (input_.masks ? input_.height * input_.width : 1); }
  // The layer that computes the logits, the only one whose parameter shapes depend on the number of classes.
  // Call after classify().
  const Layer& head() const;

 private:
  Value append(Layer layer, const Shape& result);
  bool hidden(Value value) const;  // inside a block that has ended
  bool trains(const Layer& layer) const;
  Value checked_mask_logits(Value logits);

  GraphInput input_;
  std::vector<Layer> layers_;
  std::vector<LayerRange> blocks_;
  bool in_block_ = false;
  // By value:
  std::vector<Shape> shapes_;
  std::vector<bool> wants_gradient_;
  Value logits_;
};

// Opens a block and closes it on destruction.
class BlockScope {
 public:
  explicit BlockScope(Graph& graph) : graph_(graph) { graph_.begin_block(); }
  ~BlockScope() { graph_.end_block(); }
  BlockScope(const BlockScope&) = delete;
  BlockScope& operator=(const BlockScope&) = delete;

 private:
  Graph& graph_;
};

}  // namespace lockstep
