// SPDX-License-Identifier: Apache-2.0
//
// The networks that ship with Lockstep, by name. Each appends its layers to a Graph under the parameter names
// of PyTorch and torchvision, so that weights can be exchanged in both directions.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/number_option.h"
#include "models/graph.h"
#include "models/network_state.h"
#include "models/networks/layers.h"

namespace lockstep {

// How much the first layers of an image network reduce the image.
enum class Stem {
  automatic,  // cifar for images up to 64 pixels high, imagenet above
  cifar,      // little or no reduction
  imagenet,   // as in the paper, for images of about 224x224
};
inline constexpr std::string_view kStemWords[] = {"auto", "cifar", "imagenet"};
constexpr std::span<const std::string_view> words_of(Stem) { return kStemWords; }

// A network ignores options that it does not use.
struct NetworkChoice {
  std::string name = "cnn";
  bool batch_norm = true;                    // cnn only
  Stem stem = Stem::automatic;               // resnet18 to resnet50, mobilenet_v2
  bool zero_init_residual = false;           // resnets
  bool sync_batch_norm = false;              // used in planning: NetworkOptions::batch_norm_ranks
  ResetHead reset_head = ResetHead::never;   // used in loading weights: load_state
  std::vector<std::string> freeze = {};      // used in building the graph: prefixes for Graph::freeze
  double dropout = kOwnDropout;              // not of unet and "layers", which refuse it
  static constexpr double kOwnDropout = -1;  // the value of the network's paper, or none
  OwnNumbers own = {};                       // own numbers of networks
  std::vector<LayerSpec> layers = {};        // "layers" only
  Loss loss = Loss::cross_entropy;           // used in building the graph: GraphInput::loss
};

// A row of the table of networks, selected by model.name.
struct NetworkEntry {
  std::string name;
  // Appends the layers. Throws ConfigError for an image size that the network does not support.
  std::function<void(Graph& graph, const NetworkChoice& choice)> build;
  bool shallow = false;                        // few layers: the default learning rate is twice as high
  std::span<const NumberOption> options = {};  // keys model.NAME.OPTION
};
// The networks that ship with Lockstep.
const std::vector<NetworkEntry>& network_table();

// Throws ConfigError for a name that is not in the table; the message lists all names.
const NetworkEntry& find_network(const std::vector<NetworkEntry>& table, const std::string& name);
// Appends one of the shipped networks.
void build_network(Graph& graph, const NetworkChoice& choice);

struct MlpOptions {
  double dropout = 0;
  std::int64_t width = 512;  // features of the first hidden layer; each further layer has half as many
  std::int64_t depth = 2;    // hidden layers
};
// By default two hidden layers of 512 and 256 features with ReLU, each followed by dropout.
void mlp(Graph& graph, const MlpOptions& options = {});

struct CnnOptions {
  bool batch_norm = true;   // without it the convolutions have biases
  double dropout = 0;       // of the hidden features
  std::int64_t width = 32;  // channels of the first convolution; each further one has twice as many
  std::int64_t depth = 2;   // convolutions, each of which halves the image
  std::int64_t kernel = 3;  // an odd number
  std::int64_t hidden = 128;
};
// By default two 3x3 convolutions (32, 64) with batch norm, ReLU and 2x2 max pooling, then 128 hidden
// features.
void cnn(Graph& graph, const CnnOptions& options = {});

struct ResNetOptions {
  // cifar: 3x3, stride 1, no pooling. imagenet: 7x7, stride 2, then 3x3 max pooling, stride 2.
  Stem stem = Stem::automatic;
  // Start the last batch norm of each block with gamma = 0, so that the block starts as its shortcut (Goyal
  // et al., 2017, section 5.1).
  bool zero_init_residual = false;
  double dropout = 0;  // before the classifier
};
// ResNets with torchvision's structure and names (He et al., 2015, table 1). resnet50 is version 1.5: the
// stride is in a bottleneck's 3x3 convolution.
void resnet18(Graph& graph, const ResNetOptions& options = {});
void resnet34(Graph& graph, const ResNetOptions& options = {});
void resnet50(Graph& graph, const ResNetOptions& options = {});
// ResNet for small images, 6 * blocks + 2 layers deep (He et al., 2015, section 4.2), with 1x1 convolutions
// where a shortcut changes shape. resnet20: blocks = 3. The stem is always the cifar one.
void cifar_resnet(Graph& graph, int blocks, const ResNetOptions& options = {});

// VGG-11 with batch norm (Simonyan and Zisserman, 2014, configuration A). Images of 224 to 255 pixels leave a
// 7x7 map and get the paper's classifier: two hidden layers of 4096 features with dropout (classifier.0, .3,
// .6). For smaller images, from 32 on, the last map is averaged, followed by dropout (dropout_of_small) and
// one linear layer (classifier).
void vgg11_bn(Graph& graph, double dropout = 0.5, double dropout_of_small = 0);

struct MobileNetOptions {
  // cifar: stride 1 in the first convolution and in the first block of 24 channels.
  Stem stem = Stem::automatic;
  double dropout = 0.2;  // before the classifier
};
// MobileNetV2 of width 1 (Sandler et al., 2018, table 2).
void mobilenet_v2(Graph& graph, const MobileNetOptions& options = {});

struct UnetOptions {
  std::int64_t width = 16;  // channels of the first level; each further level has twice as many
  std::int64_t depth = 3;   // levels, each of which halves the image
};
// U-Net (Ronneberger et al., 2015) with padded convolutions, batch norm and nearest-neighbour upsampling: an
// output for each class and pixel. Each level of the way up reads the concatenation of the level's last
// result on the way down and of the upsampled result of the level below.
void unet(Graph& graph, const UnetOptions& options = {});

// The convolution used with batch norm: padding of half its kernel, no bias, He's initial weights.
Value padded_convolution(Graph& graph, Value x, ConvolutionOptions options, const std::string& name,
                         SourcePlace place = SourcePlace::current());

// Replaces Stem::automatic by the stem for the graph's image size.
Stem resolved(Stem stem, const Graph& graph);

}  // namespace lockstep
