// SPDX-License-Identifier: Apache-2.0
//
// What finalizing checks, and makes of a descriptor's attributes.
#include <algorithm>
#include <cmath>
#include <deque>
#include <mutex>
#include <set>

#include "tests/cuda_emulator/libraries/cudnn_descriptor.h"
#include "tests/cuda_emulator/libraries/cudnn_device.h"
#include "tests/cuda_emulator/libraries/cudnn_engines.h"
#include "tests/cuda_emulator/thread_sanitizer.h"

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
    refuse_unemulated(CUDNN_STATUS_NOT_SUPPORTED_DATA_TYPE, "computing in another precision than fp32");
  }
}

// Whether the elements lie side by side, in any order of the dimensions.
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

Body make_tensor(const Descriptor& d) {
  if (d.one_or(CUDNN_ATTR_TENSOR_IS_BY_VALUE, false) ||
      d.one_or(CUDNN_ATTR_TENSOR_VECTOR_COUNT, std::int64_t{1}) != 1 ||
      d.one_or(CUDNN_ATTR_TENSOR_REORDERING_MODE, 0) != 0) {
    refuse_unemulated(CUDNN_STATUS_NOT_SUPPORTED, "tensors by value, vectorized or reordered");
  }
  const auto sizes = d.all<std::int64_t>(CUDNN_ATTR_TENSOR_DIMENSIONS);
  const auto strides = d.all<std::int64_t>(CUDNN_ATTR_TENSOR_STRIDES);
  require(sizes.size() == strides.size(), CUDNN_STATUS_BAD_PARAM,
          "a tensor has other numbers of sizes and strides");
  if (sizes.size() != 4)
    refuse_unemulated(CUDNN_STATUS_NOT_SUPPORTED_SHAPE, "tensors of other than four dimensions");
  Tensor tensor{.id = d.one<std::int64_t>(CUDNN_ATTR_TENSOR_UNIQUE_ID),
                .type = element_of(d.one<cudnnDataType_t>(CUDNN_ATTR_TENSOR_DATA_TYPE)),
                .alignment = d.one<std::int64_t>(CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT),
                .is_virtual = d.one_or(CUDNN_ATTR_TENSOR_IS_VIRTUAL, false)};
  std::ranges::copy(sizes, tensor.sizes.begin());
  std::ranges::copy(strides, tensor.strides.begin());
  require(std::ranges::all_of(sizes, [](auto size) { return size > 0; }), CUDNN_STATUS_BAD_PARAM,
          "a size below one");
  require(std::ranges::all_of(strides, [](auto stride) { return stride > 0; }), CUDNN_STATUS_BAD_PARAM,
          "a stride below one");
  const auto size = static_cast<std::int64_t>(size_of(tensor.type));
  require(tensor.alignment > 0 && tensor.alignment % size == 0, CUDNN_STATUS_BAD_PARAM,
          "a tensor's alignment is no multiple of its elements' size");
  if (!is_packed(tensor)) {
    refuse_unemulated(CUDNN_STATUS_NOT_SUPPORTED_LAYOUT, "tensors whose elements do not lie side by side");
  }
  return std::make_shared<const Tensor>(tensor);
}

std::array<std::int64_t, 2> two(const Descriptor& d, cudnnBackendAttributeName_t name, std::int64_t least) {
  const auto values = d.all<std::int64_t>(name);
  require(values.size() == 2, CUDNN_STATUS_BAD_PARAM, "not one value for each of two spatial dimensions");
  require(values[0] >= least && values[1] >= least, CUDNN_STATUS_BAD_PARAM,
          "a padding below zero, or a stride or a dilation below one");
  return {values[0], values[1]};
}

Body make_convolution(const Descriptor& d) {
  if (d.one<std::int64_t>(CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS) != 2) {
    refuse_unemulated(CUDNN_STATUS_NOT_SUPPORTED, "convolutions in other than two dimensions");
  }
  if (d.one<cudnnConvolutionMode_t>(CUDNN_ATTR_CONVOLUTION_CONV_MODE) != CUDNN_CROSS_CORRELATION) {
    refuse_unemulated(CUDNN_STATUS_NOT_SUPPORTED, "convolutions that turn the kernel");
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

// The convolution's attributes, by direction.
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
  require(in_channels % group_in == 0, CUDNN_STATUS_BAD_PARAM, "w's channels do not divide x's into groups");
  const std::int64_t groups = in_channels / group_in;
  require(out_channels % groups == 0, CUDNN_STATUS_BAD_PARAM, "the groups do not divide w's output channels");
  require(y.sizes[0] == batch, CUDNN_STATUS_BAD_PARAM, "x and y differ in batch size");
  require(y.sizes[1] == out_channels, CUDNN_STATUS_BAD_PARAM, "y has not as many channels as w makes");
  for (std::size_t i = 0; i < 2; ++i) {
    const std::int64_t padded = x.sizes[2 + i] + s.before[i] + s.after[i];
    const std::int64_t kernel = s.dilation[i] * (w.sizes[2 + i] - 1) + 1;
    require(padded >= kernel && (padded - kernel) / s.stride[i] + 1 == y.sizes[2 + i], CUDNN_STATUS_BAD_PARAM,
            "y is not as high or wide as x, w, padding, stride and dilation make it");
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

void require_broadcast(const Tensor& from, const Tensor& to) {
  for (std::size_t i = 0; i < 4; ++i) {
    require(from.sizes[i] == to.sizes[i] || from.sizes[i] == 1, CUDNN_STATUS_BAD_PARAM,
            "a tensor is neither as large as the result nor of one element in a dimension");
  }
}

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
            CUDNN_STATUS_BAD_PARAM, "statistics are fp32, one for each channel");
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

// Each after those whose results it reads.
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
                "different tensors have one id");
        if (tensors == &operation.inputs) read.insert(tensor->id);
        if (tensors == &operation.outputs) {
          require(written.insert(tensor->id).second, CUDNN_STATUS_BAD_PARAM,
                  "two operations write one tensor");
        }
      }
    }
    require(operation.kind != OperationKind::convolution || operation.beta == 0 ||
                !operation.outputs[0]->is_virtual,
            CUDNN_STATUS_BAD_PARAM, "a virtual tensor holds nothing that could be added to");
  }
  for (const auto& [id, tensor] : all) {
    require(!tensor->is_virtual || (written.contains(id) && read.contains(id)), CUDNN_STATUS_BAD_PARAM,
            "a virtual tensor is not both written and read");
    if (!tensor->is_virtual) graph.io.emplace(id, tensor);
  }
}

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
    refuse_unemulated(CUDNN_STATUS_NOT_SUPPORTED_GRAPH_PATTERN, "graphs of more than one convolution");
  }
  return std::make_shared<const Graph>(std::move(graph));
}

// The device that is planned for: as described, or the graph's handle's.
Target target_of(const Descriptor& d, cudnnBackendAttributeName_t properties, const Graph& graph) {
  if (d.has(properties)) return *d.referred_to<Target>(properties);
  require(graph.device >= 0, CUDNN_STATUS_BAD_PARAM_NULL_POINTER,
          "neither the graph has a handle nor are there properties of a device");
  return target_of_device(graph.device);
}

std::shared_ptr<Descriptor> finalized(cudnnBackendDescriptorType_t type) {
  auto descriptor = std::make_shared<Descriptor>(Descriptor{.type = type});
  descriptor->finalized = true;
  return descriptor;
}

void fill_engine(Descriptor& d, const Engine& engine) {
  d.put(CUDNN_ATTR_ENGINE_GLOBAL_INDEX, CUDNN_TYPE_INT64, std::vector{engine.index});
  d.put(CUDNN_ATTR_ENGINE_NUMERICAL_NOTE, CUDNN_TYPE_NUMERICAL_NOTE, engine.numerical_notes);
  d.put(CUDNN_ATTR_ENGINE_BEHAVIOR_NOTE, CUDNN_TYPE_BEHAVIOR_NOTE, engine.behavior_notes);
  std::vector<std::shared_ptr<Descriptor>> knobs;
  for (const Knob& knob : engine.knobs) {
    knobs.push_back(finalized(CUDNN_BACKEND_KNOB_INFO_DESCRIPTOR));
    knobs.back()->put(CUDNN_ATTR_KNOB_INFO_TYPE, CUDNN_TYPE_KNOB_TYPE, std::vector{knob.type});
    knobs.back()->put(CUDNN_ATTR_KNOB_INFO_MINIMUM_VALUE, CUDNN_TYPE_INT64, std::vector{knob.least});
    knobs.back()->put(CUDNN_ATTR_KNOB_INFO_MAXIMUM_VALUE, CUDNN_TYPE_INT64, std::vector{knob.most});
    knobs.back()->put(CUDNN_ATTR_KNOB_INFO_STRIDE, CUDNN_TYPE_INT64, std::vector{knob.step});
  }
  d.put(CUDNN_ATTR_ENGINE_KNOB_INFO, std::move(knobs));
}

Body make_engine(Descriptor& d) {
  const auto graph = d.referred_to<Graph>(CUDNN_ATTR_ENGINE_OPERATION_GRAPH);
  const Target target = target_of(d, CUDNN_ATTR_ENGINE_DEVICEPROP, *graph);
  const Engine& engine = engine_for(d.one<std::int64_t>(CUDNN_ATTR_ENGINE_GLOBAL_INDEX), *graph, target);
  fill_engine(d, engine);
  return std::make_shared<const Configuration>(
      Configuration{.graph = graph, .target = target, .engine = engine.index, .knobs = {}});
}

Body make_configuration(const Descriptor& d) {
  Configuration configuration = *d.referred_to<Configuration>(CUDNN_ATTR_ENGINECFG_ENGINE);
  if (d.has(CUDNN_ATTR_ENGINECFG_KNOB_CHOICES)) {
    for (const auto& choice : d.referred(CUDNN_ATTR_ENGINECFG_KNOB_CHOICES)) {
      const auto type = choice->one<cudnnBackendKnobType_t>(CUDNN_ATTR_KNOB_CHOICE_KNOB_TYPE);
      const auto value = choice->one<std::int64_t>(CUDNN_ATTR_KNOB_CHOICE_KNOB_VALUE);
      require(configuration.knobs.emplace(type, value).second, CUDNN_STATUS_BAD_PARAM_DUPLICATED_ENTRIES,
              "a knob is chosen twice");
    }
  }
  algorithm_of(configuration);
  return std::make_shared<const Configuration>(std::move(configuration));
}

// As a caller would have made it.
std::shared_ptr<Descriptor> descriptor_of(const std::shared_ptr<const Configuration>& configuration) {
  auto engine = finalized(CUDNN_BACKEND_ENGINE_DESCRIPTOR);
  fill_engine(*engine, engine_for(configuration->engine, *configuration->graph, configuration->target));
  engine->body = std::make_shared<const Configuration>(Configuration{.graph = configuration->graph,
                                                                     .target = configuration->target,
                                                                     .engine = configuration->engine,
                                                                     .knobs = {}});
  std::vector<std::shared_ptr<Descriptor>> choices;
  for (const auto& [knob, value] : configuration->knobs) {
    choices.push_back(finalized(CUDNN_BACKEND_KNOB_CHOICE_DESCRIPTOR));
    choices.back()->put(CUDNN_ATTR_KNOB_CHOICE_KNOB_TYPE, CUDNN_TYPE_KNOB_TYPE, std::vector{knob});
    choices.back()->put(CUDNN_ATTR_KNOB_CHOICE_KNOB_VALUE, CUDNN_TYPE_INT64, std::vector{value});
  }
  auto made = finalized(CUDNN_BACKEND_ENGINECFG_DESCRIPTOR);
  made->put(CUDNN_ATTR_ENGINECFG_ENGINE, {std::move(engine)});
  made->put(CUDNN_ATTR_ENGINECFG_KNOB_CHOICES, std::move(choices));
  made->body = configuration;
  return made;
}

void find_results(Descriptor& d) {
  const auto graph = d.referred_to<Graph>(CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH);
  const auto mode = d.one<cudnnBackendHeurMode_t>(CUDNN_ATTR_ENGINEHEUR_MODE);
  require(mode >= CUDNN_HEUR_MODE_INSTANT && mode < CUDNN_HEUR_MODES_COUNT, CUDNN_STATUS_BAD_PARAM,
          "no mode of heuristics");
  std::vector<std::shared_ptr<Descriptor>> results;
  for (const auto& configuration :
       propose(graph, target_of(d, CUDNN_ATTR_ENGINEHEUR_DEVICEPROP, *graph), mode)) {
    results.push_back(descriptor_of(configuration));
  }
  d.put(CUDNN_ATTR_ENGINEHEUR_RESULTS, std::move(results));
}

const Plan* keep(const Plan& plan) {
  const Unseen unseen;
  static auto& mutex = *new std::mutex;
  static auto& plans = *new std::deque<Plan>;
  const std::lock_guard lock(mutex);
  return &plans.emplace_back(plan);
}

Body make_plan(Descriptor& d) {
  const auto configuration = d.referred_to<Configuration>(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG);
  Plan plan{.configuration = configuration, .device = -1, .workspace_bytes = workspace_bytes(*configuration)};
  if (d.has(CUDNN_ATTR_EXECUTION_PLAN_HANDLE)) {
    const auto handle = d.one<cudnnHandle_t>(CUDNN_ATTR_EXECUTION_PLAN_HANDLE);
    require(handle != nullptr, CUDNN_STATUS_BAD_PARAM_NULL_POINTER, "the plan's handle is null");
    plan.device = handle->device;
  } else {
    require(d.has(CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP), CUDNN_STATUS_BAD_PARAM_NULL_POINTER,
            "a plan has neither a handle nor properties of a device");
    plan.device = d.referred_to<Target>(CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP)->device;
  }
  check_plan(*configuration);
  d.put(CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, CUDNN_TYPE_INT64,
        std::vector{static_cast<std::int64_t>(plan.workspace_bytes)});
  return keep(plan);
}

void check_pack(const Descriptor& d) {
  const auto ids = d.all<std::int64_t>(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS);
  const auto pointers = d.all<void*>(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS);
  require(ids.size() == pointers.size(), CUDNN_STATUS_BAD_PARAM, "not one pointer for each id");
  require(std::set(ids.begin(), ids.end()).size() == ids.size(), CUDNN_STATUS_BAD_PARAM_DUPLICATED_ENTRIES,
          "an id is there twice");
}

Body make_body(Descriptor& d) {
  switch (d.type) {
    case CUDNN_BACKEND_TENSOR_DESCRIPTOR:
      return make_tensor(d);
    case CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR:
      return make_convolution(d);
    case CUDNN_BACKEND_POINTWISE_DESCRIPTOR:
      return make_pointwise(d);
    case CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR:
      return make_pointwise_operation(d);
    case CUDNN_BACKEND_OPERATION_GEN_STATS_DESCRIPTOR:
      return make_statistics_operation(d);
    case CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR:
      return make_reduction_operation(d);
    case CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR:
      d.put(CUDNN_ATTR_OPERATIONGRAPH_ENGINE_GLOBAL_COUNT, CUDNN_TYPE_INT64,
            std::vector{engine_global_count()});
      return make_graph(d);
    case CUDNN_BACKEND_ENGINE_DESCRIPTOR:
      return make_engine(d);
    case CUDNN_BACKEND_ENGINECFG_DESCRIPTOR:
      return make_configuration(d);
    case CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR:
      return make_plan(d);
    case CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR:
      return std::make_shared<const Target>(target_of_description(d));
    case CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR:
      find_results(d);
      return {};
    case CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR:
      check_pack(d);
      return {};
    case CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR:
    case CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR:
    case CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR:
      return make_convolution_operation(d);
    default:  // its attributes are all there is
      return {};
  }
}

}  // namespace

bool PointwiseSettings::is_binary() const {
  return mode == CUDNN_POINTWISE_ADD || mode == CUDNN_POINTWISE_MUL || mode == CUDNN_POINTWISE_SUB;
}

const Operation* Graph::convolution() const {
  const auto found = std::ranges::find(operations, OperationKind::convolution, &Operation::kind);
  return found == operations.end() ? nullptr : &*found;
}

void finalize(Descriptor& descriptor) {
  require(!descriptor.finalized, CUDNN_STATUS_BAD_PARAM, "the descriptor is finalized already");
  require_attributes(descriptor);
  descriptor.body = make_body(descriptor);
  descriptor.finalized = true;
}

}  // namespace lockstep::emulator::cudnn
