// SPDX-License-Identifier: Apache-2.0
#include "tests/cuda_emulator/libraries/cudnn_operations.h"

#include <algorithm>
#include <cmath>
#include <set>

namespace lockstep::emulator::cudnn {
namespace {

Element element_of(cudnnDataType_t type) {
  if (type == CUDNN_DATA_FLOAT) return Element::f32;
  if (type == CUDNN_DATA_HALF) return Element::f16;
  if (type == CUDNN_DATA_BFLOAT16) return Element::bf16;
  refuse_unemulated(CUDNN_STATUS_NOT_SUPPORTED_DATA_TYPE, "tensors other than fp32, fp16 and bf16");
}

void require_fp32(const Descriptor& d, cudnnBackendAttributeName_t name) {
  if (d.one<cudnnDataType_t>(name) != CUDNN_DATA_FLOAT) {
    refuse_unemulated(CUDNN_STATUS_NOT_SUPPORTED_DATA_TYPE, "compute types other than fp32");
  }
}

// True if the elements are contiguous, in any order of the dimensions.
bool is_packed(const Tensor& t) {
  std::array<std::size_t, 4> order = {0, 1, 2, 3};
  std::ranges::sort(order, {}, [&](std::size_t i) { return std::pair(t.strides[i], t.sizes[i]); });
  std::int64_t expected = 1;
  for (const std::size_t i : order) {
    if (t.sizes[i] == 1) continue;
    if (t.strides[i] != expected) return false;
    expected *= t.sizes[i];
  }
  return true;
}

}  // namespace

Body make_tensor(const Descriptor& d) {
  if (d.one_or(CUDNN_ATTR_TENSOR_IS_BY_VALUE, false) ||
      d.one_or(CUDNN_ATTR_TENSOR_VECTOR_COUNT, std::int64_t{1}) != 1 ||
      d.one_or(CUDNN_ATTR_TENSOR_REORDERING_MODE, 0) != 0) {
    refuse_unemulated(CUDNN_STATUS_NOT_SUPPORTED, "tensors by value, vectorized or reordered");
  }
  const auto sizes = d.all<std::int64_t>(CUDNN_ATTR_TENSOR_DIMENSIONS);
  const auto strides = d.all<std::int64_t>(CUDNN_ATTR_TENSOR_STRIDES);
  require(sizes.size() == strides.size(), CUDNN_STATUS_BAD_PARAM,
          "a tensor's numbers of sizes and strides differ");
  if (sizes.size() != 4)
    refuse_unemulated(CUDNN_STATUS_NOT_SUPPORTED_SHAPE, "tensors of other than four dimensions");
  Tensor tensor{.id = d.one<std::int64_t>(CUDNN_ATTR_TENSOR_UNIQUE_ID),
                .type = element_of(d.one<cudnnDataType_t>(CUDNN_ATTR_TENSOR_DATA_TYPE)),
                .alignment = d.one<std::int64_t>(CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT),
                .is_virtual = d.one_or(CUDNN_ATTR_TENSOR_IS_VIRTUAL, false)};
  std::ranges::copy(sizes, tensor.sizes.begin());
  std::ranges::copy(strides, tensor.strides.begin());
  require(std::ranges::all_of(sizes, [](auto size) { return size > 0; }), CUDNN_STATUS_BAD_PARAM,
          "a size is less than one");
  require(std::ranges::all_of(strides, [](auto stride) { return stride > 0; }), CUDNN_STATUS_BAD_PARAM,
          "a stride is less than one");
  const auto size = static_cast<std::int64_t>(size_of(tensor.type));
  require(tensor.alignment > 0 && tensor.alignment % size == 0, CUDNN_STATUS_BAD_PARAM,
          "a tensor's alignment is not a multiple of the element size");
  if (!is_packed(tensor)) {
    refuse_unemulated(CUDNN_STATUS_NOT_SUPPORTED_LAYOUT, "tensors whose elements are not contiguous");
  }
  return std::make_shared<const Tensor>(tensor);
}

namespace {

std::array<std::int64_t, 2> two(const Descriptor& d, cudnnBackendAttributeName_t name, std::int64_t least) {
  const auto values = d.all<std::int64_t>(name);
  require(values.size() == 2, CUDNN_STATUS_BAD_PARAM,
          "not exactly one value for each of two spatial dimensions");
  require(values[0] >= least && values[1] >= least, CUDNN_STATUS_BAD_PARAM,
          "a padding is negative, or a stride or dilation is less than one");
  return {values[0], values[1]};
}

}  // namespace

Body make_convolution(const Descriptor& d) {
  if (d.one<std::int64_t>(CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS) != 2) {
    refuse_unemulated(CUDNN_STATUS_NOT_SUPPORTED, "convolutions in other than two dimensions");
  }
  if (d.one<cudnnConvolutionMode_t>(CUDNN_ATTR_CONVOLUTION_CONV_MODE) != CUDNN_CROSS_CORRELATION) {
    refuse_unemulated(CUDNN_STATUS_NOT_SUPPORTED, "convolutions with a flipped kernel");
  }
  require_fp32(d, CUDNN_ATTR_CONVOLUTION_COMP_TYPE);
  return std::make_shared<const ConvolutionSettings>(
      ConvolutionSettings{.before = two(d, CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, 0),
                          .after = two(d, CUDNN_ATTR_CONVOLUTION_POST_PADDINGS, 0),
                          .stride = two(d, CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, 1),
                          .dilation = two(d, CUDNN_ATTR_CONVOLUTION_DILATIONS, 1)});
}

Body make_pointwise(const Descriptor& d) {
  constexpr std::array kModes = {CUDNN_POINTWISE_ADD,      CUDNN_POINTWISE_MUL,
                                 CUDNN_POINTWISE_SUB,      CUDNN_POINTWISE_IDENTITY,
                                 CUDNN_POINTWISE_RELU_FWD, CUDNN_POINTWISE_RELU_BWD};
  const auto mode = d.one<cudnnPointwiseMode_t>(CUDNN_ATTR_POINTWISE_MODE);
  if (std::ranges::count(kModes, mode) == 0) {
    refuse_unemulated(CUDNN_STATUS_NOT_SUPPORTED, "pointwise mode " + std::to_string(mode));
  }
  require_fp32(d, CUDNN_ATTR_POINTWISE_MATH_PREC);
  const auto number = [&](cudnnBackendAttributeName_t name, double otherwise) {
    return static_cast<float>(d.number_or(name, otherwise));
  };
  return std::make_shared<const PointwiseSettings>(
      PointwiseSettings{.mode = mode,
                        .lowest = number(CUDNN_ATTR_POINTWISE_RELU_LOWER_CLIP, 0),
                        .highest = number(CUDNN_ATTR_POINTWISE_RELU_UPPER_CLIP, HUGE_VAL),
                        .slope_below = number(CUDNN_ATTR_POINTWISE_RELU_LOWER_CLIP_SLOPE, 0)});
}

namespace {

// The names of the convolution's attributes, by direction.
struct ConvolutionNames {
  Direction direction;
  cudnnBackendAttributeName_t settings, x, w, y, alpha, beta;
};
ConvolutionNames convolution_names(cudnnBackendDescriptorType_t type) {
  if (type == CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR) {
    return {Direction::forward,
            CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC,
            CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X,
            CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W,
            CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y,
            CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA,
            CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_BETA};
  }
  if (type == CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR) {
    return {Direction::backward_data,
            CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_CONV_DESC,
            CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DX,
            CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_W,
            CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DY,
            CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_ALPHA,
            CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_BETA};
  }
  return {Direction::backward_filter,
          CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_CONV_DESC,
          CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_X,
          CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DW,
          CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DY,
          CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_ALPHA,
          CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_BETA};
}

ConvolutionSizes convolution_sizes(const ConvolutionSettings& s, const Tensor& x, const Tensor& w,
                                   const Tensor& y) {
  const auto& [batch, in_channels, height, width] = x.sizes;
  const auto& [out_channels, group_in, kernel_height, kernel_width] = w.sizes;
  require(in_channels % group_in == 0, CUDNN_STATUS_BAD_PARAM,
          "x's channels are not a multiple of w's channels");
  const std::int64_t groups = in_channels / group_in;
  require(out_channels % groups == 0, CUDNN_STATUS_BAD_PARAM,
          "w's output channels are not a multiple of the groups");
  require(y.sizes[0] == batch, CUDNN_STATUS_BAD_PARAM, "x and y differ in batch size");
  require(y.sizes[1] == out_channels, CUDNN_STATUS_BAD_PARAM,
          "y's channels and w's output channels differ in number");
  for (std::size_t i = 0; i < 2; ++i) {
    const std::int64_t padded = x.sizes[2 + i] + s.before[i] + s.after[i];
    const std::int64_t kernel = s.dilation[i] * (w.sizes[2 + i] - 1) + 1;
    require(padded >= kernel && (padded - kernel) / s.stride[i] + 1 == y.sizes[2 + i], CUDNN_STATUS_BAD_PARAM,
            "y's height or width does not match x, w, padding, stride and dilation");
  }
  return {.batch = batch,
          .groups = groups,
          .in_channels = in_channels,
          .out_channels = out_channels,
          .height = height,
          .width = width,
          .out_height = y.sizes[2],
          .out_width = y.sizes[3],
          .kernel_height = kernel_height,
          .kernel_width = kernel_width,
          .padding_top = s.before[0],
          .padding_left = s.before[1],
          .stride_down = s.stride[0],
          .stride_right = s.stride[1],
          .dilation_down = s.dilation[0],
          .dilation_right = s.dilation[1]};
}

}  // namespace

Body make_convolution_operation(const Descriptor& d) {
  const ConvolutionNames names = convolution_names(d.type);
  const auto x = d.referred_to<Tensor>(names.x), w = d.referred_to<Tensor>(names.w),
             y = d.referred_to<Tensor>(names.y);
  Operation operation{
      .kind = OperationKind::convolution,
      .alpha = static_cast<float>(d.number_or(names.alpha, 1)),
      .beta = static_cast<float>(d.number_or(names.beta, 0)),
      .direction = names.direction,
      .sizes = convolution_sizes(*d.referred_to<ConvolutionSettings>(names.settings), *x, *w, *y)};
  switch (names.direction) {
    case Direction::forward:
      operation.inputs = {x, w}, operation.outputs = {y};
      break;
    case Direction::backward_data:
      operation.inputs = {w, y}, operation.outputs = {x};
      break;
    case Direction::backward_filter:
      operation.inputs = {x, y}, operation.outputs = {w};
      break;
  }
  return std::make_shared<const Operation>(std::move(operation));
}

namespace {

void require_broadcast(const Tensor& from, const Tensor& to) {
  for (std::size_t i = 0; i < 4; ++i) {
    require(from.sizes[i] == to.sizes[i] || from.sizes[i] == 1, CUDNN_STATUS_BAD_PARAM,
            "a tensor's size in a dimension is neither one nor the result's size");
  }
}

}  // namespace

Body make_pointwise_operation(const Descriptor& d) {
  const auto settings = d.referred_to<PointwiseSettings>(CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR);
  const auto tensor = [&](cudnnBackendAttributeName_t name) { return d.referred_to<Tensor>(name); };
  Operation operation{.kind = OperationKind::pointwise,
                      .alpha = static_cast<float>(d.number_or(CUDNN_ATTR_OPERATION_POINTWISE_ALPHA1, 1)),
                      .beta = static_cast<float>(d.number_or(CUDNN_ATTR_OPERATION_POINTWISE_ALPHA2, 1)),
                      .pointwise = *settings};
  if (settings->mode == CUDNN_POINTWISE_RELU_BWD) {
    operation.inputs = {tensor(CUDNN_ATTR_OPERATION_POINTWISE_DYDESC),
                        tensor(CUDNN_ATTR_OPERATION_POINTWISE_XDESC)};
    operation.outputs = {tensor(CUDNN_ATTR_OPERATION_POINTWISE_DXDESC)};
  } else {
    operation.inputs = {tensor(CUDNN_ATTR_OPERATION_POINTWISE_XDESC)};
    if (settings->is_binary()) operation.inputs.push_back(tensor(CUDNN_ATTR_OPERATION_POINTWISE_BDESC));
    operation.outputs = {tensor(CUDNN_ATTR_OPERATION_POINTWISE_YDESC)};
  }
  for (const TensorPointer& input : operation.inputs) require_broadcast(*input, *operation.outputs[0]);
  return std::make_shared<const Operation>(std::move(operation));
}

Body make_statistics_operation(const Descriptor& d) {
  require(d.one<cudnnGenStatsMode_t>(CUDNN_ATTR_OPERATION_GENSTATS_MODE) == CUDNN_GENSTATS_SUM_SQSUM,
          CUDNN_STATUS_BAD_PARAM, "statistics other than sums and sums of squares");
  require_fp32(d, CUDNN_ATTR_OPERATION_GENSTATS_MATH_PREC);
  const auto x = d.referred_to<Tensor>(CUDNN_ATTR_OPERATION_GENSTATS_XDESC);
  const auto sums = d.referred_to<Tensor>(CUDNN_ATTR_OPERATION_GENSTATS_SUMDESC);
  const auto squares = d.referred_to<Tensor>(CUDNN_ATTR_OPERATION_GENSTATS_SQSUMDESC);
  for (const TensorPointer& output : {sums, squares}) {
    require(output->sizes == Sizes{1, x->sizes[1], 1, 1} && output->type == Element::f32,
            CUDNN_STATUS_BAD_PARAM, "statistics must be fp32 with one element per channel");
  }
  return std::make_shared<const Operation>(
      Operation{.kind = OperationKind::statistics, .inputs = {x}, .outputs = {sums, squares}});
}

Body make_reduction_operation(const Descriptor& d) {
  const Descriptor& reduction = *d.referred(CUDNN_ATTR_OPERATION_REDUCTION_DESC).front();
  if (reduction.one<cudnnReduceTensorOp_t>(CUDNN_ATTR_REDUCTION_OPERATOR) != CUDNN_REDUCE_TENSOR_ADD) {
    refuse_unemulated(CUDNN_STATUS_NOT_SUPPORTED, "reductions other than sums");
  }
  require_fp32(reduction, CUDNN_ATTR_REDUCTION_COMP_TYPE);
  const auto x = d.referred_to<Tensor>(CUDNN_ATTR_OPERATION_REDUCTION_XDESC);
  const auto y = d.referred_to<Tensor>(CUDNN_ATTR_OPERATION_REDUCTION_YDESC);
  require_broadcast(*y, *x);
  return std::make_shared<const Operation>(
      Operation{.kind = OperationKind::reduction, .inputs = {x}, .outputs = {y}});
}

namespace {

// Sorts operations so that each comes after the operations whose results it reads.
std::vector<Operation> sorted(const std::vector<Operation>& operations) {
  const auto writes = [](const Operation& operation, std::int64_t id) {
    return std::ranges::any_of(operation.outputs, [&](const TensorPointer& t) { return t->id == id; });
  };
  std::vector<Operation> done, open = operations;
  while (!open.empty()) {
    const auto ready = std::ranges::find_if(open, [&](const Operation& candidate) {
      return std::ranges::none_of(candidate.inputs, [&](const TensorPointer& input) {
        return std::ranges::any_of(open, [&](const Operation& other) { return writes(other, input->id); });
      });
    });
    require(ready != open.end(), CUDNN_STATUS_BAD_PARAM, "the graph has a cycle");
    done.push_back(*ready);
    open.erase(ready);
  }
  return done;
}

void check_tensors(Graph& graph) {
  std::map<std::int64_t, TensorPointer> all;
  std::set<std::int64_t> written, read;
  for (const Operation& operation : graph.operations) {
    for (const auto* tensors : {&operation.inputs, &operation.outputs}) {
      for (const TensorPointer& tensor : *tensors) {
        const auto [found, inserted] = all.try_emplace(tensor->id, tensor);
        require(inserted || *found->second == *tensor, CUDNN_STATUS_BAD_PARAM_DUPLICATED_ENTRIES,
                "different tensors have the same id");
        if (tensors == &operation.inputs) read.insert(tensor->id);
        if (tensors == &operation.outputs) {
          require(written.insert(tensor->id).second, CUDNN_STATUS_BAD_PARAM,
                  "two operations write the same tensor");
        }
      }
    }
    require(operation.kind != OperationKind::convolution || operation.beta == 0 ||
                !operation.outputs[0]->is_virtual,
            CUDNN_STATUS_BAD_PARAM, "a virtual tensor has no previous values to add to");
  }
  for (const auto& [id, tensor] : all) {
    require(!tensor->is_virtual || (written.contains(id) && read.contains(id)), CUDNN_STATUS_BAD_PARAM,
            "a virtual tensor is not both written and read in the graph");
    if (!tensor->is_virtual) graph.io.emplace(id, tensor);
  }
}

}  // namespace

Body make_graph(const Descriptor& d) {
  Graph graph;
  for (const auto& operation : d.referred(CUDNN_ATTR_OPERATIONGRAPH_OPS)) {
    graph.operations.push_back(*operation->as<Operation>());
  }
  require(!graph.operations.empty(), CUDNN_STATUS_BAD_PARAM, "a graph has no operations");
  if (d.has(CUDNN_ATTR_OPERATIONGRAPH_HANDLE)) {
    const auto handle = d.one<cudnnHandle_t>(CUDNN_ATTR_OPERATIONGRAPH_HANDLE);
    require(handle != nullptr, CUDNN_STATUS_BAD_PARAM_NULL_POINTER, "the graph's handle is null");
    graph.device = handle->device;
  }
  check_tensors(graph);
  graph.operations = sorted(graph.operations);
  const auto convolutions =
      std::ranges::count(graph.operations, OperationKind::convolution, &Operation::kind);
  if (convolutions > 1) {
    refuse_unemulated(CUDNN_STATUS_NOT_SUPPORTED_GRAPH_PATTERN, "graphs with more than one convolution");
  }
  return std::make_shared<const Graph>(std::move(graph));
}

bool PointwiseSettings::is_binary() const {
  return mode == CUDNN_POINTWISE_ADD || mode == CUDNN_POINTWISE_MUL || mode == CUDNN_POINTWISE_SUB;
}

const Operation* Graph::convolution() const {
  const auto found = std::ranges::find(operations, OperationKind::convolution, &Operation::kind);
  return found == operations.end() ? nullptr : &*found;
}

}  // namespace lockstep::emulator::cudnn
