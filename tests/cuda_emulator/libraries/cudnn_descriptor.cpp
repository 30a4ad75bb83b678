// SPDX-License-Identifier: Apache-2.0
#include "tests/cuda_emulator/libraries/cudnn_descriptor.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <mutex>

#include "tests/cuda_emulator/thread_sanitizer.h"

namespace lockstep::emulator::cudnn {
namespace {

enum class Access { required, optional, read_only };

// The API's rule for one attribute of one descriptor type.
struct Rule {
  cudnnBackendDescriptorType_t descriptor;
  cudnnBackendAttributeName_t name;
  cudnnBackendAttributeType_t type;
  Access access = Access::required;
  std::int64_t most = 1;  // maximum number of elements
  std::vector<cudnnBackendDescriptorType_t> referred = {};
};

constexpr std::int64_t kMostOperations = 64, kMostTensors = 256, kMostText = 1 << 16;

using Rules = std::vector<Rule>;

void add_convolution(Rules& rules, cudnnBackendDescriptorType_t type, cudnnBackendAttributeName_t convolution,
                     std::array<cudnnBackendAttributeName_t, 3> tensors,
                     std::array<cudnnBackendAttributeName_t, 2> factors) {
  rules.push_back({type,
                   convolution,
                   CUDNN_TYPE_BACKEND_DESCRIPTOR,
                   Access::required,
                   1,
                   {CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR}});
  for (const auto name : tensors) {
    rules.push_back(
        {type, name, CUDNN_TYPE_BACKEND_DESCRIPTOR, Access::required, 1, {CUDNN_BACKEND_TENSOR_DESCRIPTOR}});
  }
  for (const auto name : factors) rules.push_back({type, name, CUDNN_TYPE_FLOAT, Access::optional});
}

void add_tensors_and_settings(Rules& rules) {
  constexpr auto kTensor = CUDNN_BACKEND_TENSOR_DESCRIPTOR;
  constexpr auto kConvolution = CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR;
  constexpr auto kPointwise = CUDNN_BACKEND_POINTWISE_DESCRIPTOR;
  constexpr auto kInt64 = CUDNN_TYPE_INT64;
  constexpr auto kRequired = Access::required, kOptional = Access::optional;
  const Rules more = {
      {kTensor, CUDNN_ATTR_TENSOR_UNIQUE_ID, kInt64},
      {kTensor, CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE},
      {kTensor, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, kInt64},
      {kTensor, CUDNN_ATTR_TENSOR_DIMENSIONS, kInt64, kRequired, CUDNN_DIM_MAX},
      {kTensor, CUDNN_ATTR_TENSOR_STRIDES, kInt64, kRequired, CUDNN_DIM_MAX},
      {kTensor, CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, kOptional},
      {kTensor, CUDNN_ATTR_TENSOR_IS_BY_VALUE, CUDNN_TYPE_BOOLEAN, kOptional},
      {kTensor, CUDNN_ATTR_TENSOR_VECTOR_COUNT, kInt64, kOptional},
      {kTensor, CUDNN_ATTR_TENSOR_VECTORIZED_DIMENSION, kInt64, kOptional},
      {kTensor, CUDNN_ATTR_TENSOR_REORDERING_MODE, CUDNN_TYPE_TENSOR_REORDERING_MODE, kOptional},
      {kConvolution, CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS, kInt64},
      {kConvolution, CUDNN_ATTR_CONVOLUTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE},
      {kConvolution, CUDNN_ATTR_CONVOLUTION_CONV_MODE, CUDNN_TYPE_CONVOLUTION_MODE},
      {kConvolution, CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, kInt64, kRequired, CUDNN_DIM_MAX},
      {kConvolution, CUDNN_ATTR_CONVOLUTION_POST_PADDINGS, kInt64, kRequired, CUDNN_DIM_MAX},
      {kConvolution, CUDNN_ATTR_CONVOLUTION_DILATIONS, kInt64, kRequired, CUDNN_DIM_MAX},
      {kConvolution, CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, kInt64, kRequired, CUDNN_DIM_MAX},
      {kPointwise, CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE},
      {kPointwise, CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_TYPE_DATA_TYPE},
      {kPointwise, CUDNN_ATTR_POINTWISE_NAN_PROPAGATION, CUDNN_TYPE_NAN_PROPOGATION, kOptional},
      {kPointwise, CUDNN_ATTR_POINTWISE_RELU_LOWER_CLIP, CUDNN_TYPE_FLOAT, kOptional},
      {kPointwise, CUDNN_ATTR_POINTWISE_RELU_UPPER_CLIP, CUDNN_TYPE_FLOAT, kOptional},
      {kPointwise, CUDNN_ATTR_POINTWISE_RELU_LOWER_CLIP_SLOPE, CUDNN_TYPE_FLOAT, kOptional},
      {CUDNN_BACKEND_REDUCTION_DESCRIPTOR, CUDNN_ATTR_REDUCTION_OPERATOR, CUDNN_TYPE_REDUCTION_OPERATOR_TYPE},
      {CUDNN_BACKEND_REDUCTION_DESCRIPTOR, CUDNN_ATTR_REDUCTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE},
  };
  rules.insert(rules.end(), more.begin(), more.end());
}

void add_operations(Rules& rules) {
  add_convolution(
      rules, CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR,
      CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC,
      {CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W,
       CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y},
      {CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_BETA});
  add_convolution(
      rules, CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR,
      CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_CONV_DESC,
      {CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DX, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_W,
       CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DY},
      {CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_ALPHA, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_BETA});
  add_convolution(
      rules, CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR,
      CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_CONV_DESC,
      {CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_X, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DW,
       CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DY},
      {CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_ALPHA, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_BETA});
  constexpr auto kPointwise = CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR;
  constexpr auto kStatistics = CUDNN_BACKEND_OPERATION_GEN_STATS_DESCRIPTOR;
  constexpr auto kReduction = CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR;
  constexpr auto kRefers = CUDNN_TYPE_BACKEND_DESCRIPTOR;
  constexpr auto kRequired = Access::required, kOptional = Access::optional;
  const std::vector tensor = {CUDNN_BACKEND_TENSOR_DESCRIPTOR};
  const Rules more = {
      {kPointwise,
       CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR,
       kRefers,
       kRequired,
       1,
       {CUDNN_BACKEND_POINTWISE_DESCRIPTOR}},
      {kPointwise, CUDNN_ATTR_OPERATION_POINTWISE_XDESC, kRefers, kOptional, 1, tensor},
      {kPointwise, CUDNN_ATTR_OPERATION_POINTWISE_BDESC, kRefers, kOptional, 1, tensor},
      {kPointwise, CUDNN_ATTR_OPERATION_POINTWISE_YDESC, kRefers, kOptional, 1, tensor},
      {kPointwise, CUDNN_ATTR_OPERATION_POINTWISE_DXDESC, kRefers, kOptional, 1, tensor},
      {kPointwise, CUDNN_ATTR_OPERATION_POINTWISE_DYDESC, kRefers, kOptional, 1, tensor},
      {kPointwise, CUDNN_ATTR_OPERATION_POINTWISE_ALPHA1, CUDNN_TYPE_FLOAT, kOptional},
      {kPointwise, CUDNN_ATTR_OPERATION_POINTWISE_ALPHA2, CUDNN_TYPE_FLOAT, kOptional},
      {kStatistics, CUDNN_ATTR_OPERATION_GENSTATS_MODE, CUDNN_TYPE_GENSTATS_MODE},
      {kStatistics, CUDNN_ATTR_OPERATION_GENSTATS_MATH_PREC, CUDNN_TYPE_DATA_TYPE},
      {kStatistics, CUDNN_ATTR_OPERATION_GENSTATS_XDESC, kRefers, kRequired, 1, tensor},
      {kStatistics, CUDNN_ATTR_OPERATION_GENSTATS_SUMDESC, kRefers, kRequired, 1, tensor},
      {kStatistics, CUDNN_ATTR_OPERATION_GENSTATS_SQSUMDESC, kRefers, kRequired, 1, tensor},
      {kReduction, CUDNN_ATTR_OPERATION_REDUCTION_XDESC, kRefers, kRequired, 1, tensor},
      {kReduction, CUDNN_ATTR_OPERATION_REDUCTION_YDESC, kRefers, kRequired, 1, tensor},
      {kReduction,
       CUDNN_ATTR_OPERATION_REDUCTION_DESC,
       kRefers,
       kRequired,
       1,
       {CUDNN_BACKEND_REDUCTION_DESCRIPTOR}},
  };
  rules.insert(rules.end(), more.begin(), more.end());
}

void add_planning(Rules& rules) {
  constexpr auto kGraph = CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR;
  constexpr auto kEngine = CUDNN_BACKEND_ENGINE_DESCRIPTOR;
  constexpr auto kConfiguration = CUDNN_BACKEND_ENGINECFG_DESCRIPTOR;
  constexpr auto kHeuristics = CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR;
  constexpr auto kPlan = CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR;
  constexpr auto kChoice = CUDNN_BACKEND_KNOB_CHOICE_DESCRIPTOR;
  constexpr auto kKnob = CUDNN_BACKEND_KNOB_INFO_DESCRIPTOR;
  constexpr auto kPack = CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR;
  constexpr auto kDevice = CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR;
  constexpr auto kRefers = CUDNN_TYPE_BACKEND_DESCRIPTOR;
  constexpr auto kInt64 = CUDNN_TYPE_INT64;
  constexpr auto kRequired = Access::required, kOptional = Access::optional, kReadOnly = Access::read_only;
  const std::vector operations = {
      CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR,
      CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR,
      CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR,
      CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR,
      CUDNN_BACKEND_OPERATION_GEN_STATS_DESCRIPTOR,
      CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR,
  };
  const Rules more = {
      {kGraph, CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, kOptional},
      {kGraph, CUDNN_ATTR_OPERATIONGRAPH_OPS, kRefers, kRequired, kMostOperations, operations},
      {kGraph, CUDNN_ATTR_OPERATIONGRAPH_ENGINE_GLOBAL_COUNT, kInt64, kReadOnly},
      {kEngine, CUDNN_ATTR_ENGINE_OPERATION_GRAPH, kRefers, kRequired, 1, {kGraph}},
      {kEngine, CUDNN_ATTR_ENGINE_GLOBAL_INDEX, kInt64},
      {kEngine, CUDNN_ATTR_ENGINE_DEVICEPROP, kRefers, kOptional, 1, {kDevice}},
      {kEngine, CUDNN_ATTR_ENGINE_NUMERICAL_NOTE, CUDNN_TYPE_NUMERICAL_NOTE, kReadOnly},
      {kEngine, CUDNN_ATTR_ENGINE_BEHAVIOR_NOTE, CUDNN_TYPE_BEHAVIOR_NOTE, kReadOnly},
      {kEngine, CUDNN_ATTR_ENGINE_KNOB_INFO, kRefers, kReadOnly, 1, {kKnob}},
      {kKnob, CUDNN_ATTR_KNOB_INFO_TYPE, CUDNN_TYPE_KNOB_TYPE, kReadOnly},
      {kKnob, CUDNN_ATTR_KNOB_INFO_MAXIMUM_VALUE, kInt64, kReadOnly},
      {kKnob, CUDNN_ATTR_KNOB_INFO_MINIMUM_VALUE, kInt64, kReadOnly},
      {kKnob, CUDNN_ATTR_KNOB_INFO_STRIDE, kInt64, kReadOnly},
      {kChoice, CUDNN_ATTR_KNOB_CHOICE_KNOB_TYPE, CUDNN_TYPE_KNOB_TYPE},
      {kChoice, CUDNN_ATTR_KNOB_CHOICE_KNOB_VALUE, kInt64},
      {kConfiguration, CUDNN_ATTR_ENGINECFG_ENGINE, kRefers, kRequired, 1, {kEngine}},
      {kConfiguration,
       CUDNN_ATTR_ENGINECFG_KNOB_CHOICES,
       kRefers,
       kOptional,
       CUDNN_KNOB_TYPE_COUNTS,
       {kChoice}},
      {kHeuristics, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, kRefers, kRequired, 1, {kGraph}},
      {kHeuristics, CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE},
      {kHeuristics, CUDNN_ATTR_ENGINEHEUR_DEVICEPROP, kRefers, kOptional, 1, {kDevice}},
      {kHeuristics, CUDNN_ATTR_ENGINEHEUR_RESULTS, kRefers, kReadOnly, 1, {kConfiguration}},
      {kPlan, CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, kOptional},
      {kPlan, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, kRefers, kRequired, 1, {kConfiguration}},
      {kPlan, CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP, kRefers, kOptional, 1, {kDevice}},
      {kPlan, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, kInt64, kReadOnly},
      {kPack, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, kInt64, kRequired, kMostTensors},
      {kPack, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, kRequired, kMostTensors},
      {kPack, CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, kOptional},
      {kDevice, CUDNN_ATTR_DEVICEPROP_DEVICE_ID, CUDNN_TYPE_INT32, kOptional},
      {kDevice, CUDNN_ATTR_DEVICEPROP_HANDLE, CUDNN_TYPE_HANDLE, kOptional},
      {kDevice, CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION, CUDNN_TYPE_CHAR, kOptional, kMostText},
  };
  rules.insert(rules.end(), more.begin(), more.end());
}

const Rules& all_rules() {
  static const Rules all = [] {
    Rules rules;
    add_tensors_and_settings(rules);
    add_operations(rules);
    add_planning(rules);
    return rules;
  }();
  return all;
}

const Rule& rule_for(const Descriptor& descriptor, cudnnBackendAttributeName_t name) {
  const auto found = std::ranges::find_if(
      all_rules(), [&](const Rule& rule) { return rule.descriptor == descriptor.type && rule.name == name; });
  require(found != all_rules().end(), CUDNN_STATUS_BAD_PARAM,
          "attribute " + std::to_string(name) + " does not belong to descriptor type " +
              std::to_string(descriptor.type) + ", or is not emulated");
  return *found;
}

bool is_type(const Rule& rule, cudnnBackendAttributeType_t type) {
  return type == rule.type || (rule.type == CUDNN_TYPE_FLOAT && type == CUDNN_TYPE_DOUBLE);
}

std::size_t element_bytes(cudnnBackendAttributeType_t type) {
  switch (type) {
    case CUDNN_TYPE_BOOLEAN:
    case CUDNN_TYPE_CHAR:
      return 1;
    case CUDNN_TYPE_INT64:
    case CUDNN_TYPE_DOUBLE:
    case CUDNN_TYPE_VOID_PTR:
    case CUDNN_TYPE_HANDLE:
    case CUDNN_TYPE_BACKEND_DESCRIPTOR:
      return 8;
    default:
      return 4;
  }
}

std::vector<std::shared_ptr<Descriptor>> referred(const Rule& rule, std::int64_t count,
                                                  const void* elements) {
  std::vector<std::shared_ptr<Descriptor>> found;
  for (std::int64_t i = 0; i < count; ++i) {
    found.push_back(find_descriptor(static_cast<const cudnnBackendDescriptor_t*>(elements)[i]));
    require(std::ranges::count(rule.referred, found.back()->type) > 0, CUDNN_STATUS_BAD_PARAM_DESCRIPTOR_TYPE,
            "the attribute refers to a descriptor of the wrong type");
    require(found.back()->finalized, CUDNN_STATUS_BAD_PARAM_NOT_FINALIZED,
            "the attribute refers to a descriptor that is not finalized");
  }
  return found;
}

// Fills in the descriptors that the caller created for the attribute's values.
void fill_in(const Rule& rule, const Attribute& attribute, std::int64_t count, void* elements) {
  for (std::int64_t i = 0; i < count; ++i) {
    Descriptor& target = *find_descriptor(static_cast<cudnnBackendDescriptor_t*>(elements)[i]);
    require(target.type == rule.referred.front(), CUDNN_STATUS_BAD_PARAM_DESCRIPTOR_TYPE,
            "a descriptor to be filled in has the wrong type");
    require(!target.finalized, CUDNN_STATUS_BAD_PARAM, "a descriptor to be filled in is already finalized");
    target = *attribute.descriptors[static_cast<std::size_t>(i)];
  }
}

// All descriptors that callers hold. ThreadSanitizer does not see its lock, so the lock does not hide a data
// race of a program that uses a descriptor from two threads.
class Registry {
 public:
  cudnnBackendDescriptor_t add(std::shared_ptr<Descriptor> descriptor) {
    const Unseen unseen;
    const std::lock_guard lock(mutex_);
    Descriptor* key = descriptor.get();
    all_[key] = std::move(descriptor);
    return key;
  }
  std::shared_ptr<Descriptor> find(cudnnBackendDescriptor_t key) {
    const Unseen unseen;
    const std::lock_guard lock(mutex_);
    const auto found = all_.find(key);
    return found == all_.end() ? nullptr : found->second;
  }
  bool remove(cudnnBackendDescriptor_t key) {
    std::shared_ptr<Descriptor> last;  // destroyed without the lock
    const Unseen unseen;
    const std::lock_guard lock(mutex_);
    const auto found = all_.find(key);
    if (found == all_.end()) return false;
    last = std::move(found->second);
    all_.erase(found);
    return true;
  }

 private:
  std::mutex mutex_;
  std::map<cudnnBackendDescriptor_t, std::shared_ptr<Descriptor>> all_;
};

Registry& registry() {
  static Registry& all = *new Registry;  // never destroyed: used until the process ends
  return all;
}

}  // namespace

void refuse_unemulated(cudnnStatus_t status, const std::string& what) {
  std::fprintf(stderr, "emulated cuDNN: not emulated: %s\n", what.c_str());
  throw Refusal(status, "not emulated: " + what);
}

const Attribute& Descriptor::set_attribute(cudnnBackendAttributeName_t name) const {
  const auto found = attributes.find(name);
  require(found != attributes.end(), CUDNN_STATUS_BAD_PARAM,
          "attribute " + std::to_string(name) + " was not set");
  return found->second;
}

double Descriptor::number_or(cudnnBackendAttributeName_t name, double otherwise) const {
  if (!has(name)) return otherwise;
  return attributes.at(name).type == CUDNN_TYPE_DOUBLE ? one<double>(name) : one<float>(name);
}

cudnnBackendDescriptor_t keep_descriptor(std::shared_ptr<Descriptor> descriptor) {
  return registry().add(std::move(descriptor));
}

std::shared_ptr<Descriptor> find_descriptor(cudnnBackendDescriptor_t descriptor) {
  require(descriptor != nullptr, CUDNN_STATUS_BAD_PARAM_NULL_POINTER, "a descriptor is null");
  std::shared_ptr<Descriptor> found = registry().find(descriptor);
  require(found != nullptr, CUDNN_STATUS_BAD_PARAM, "a descriptor does not exist or was destroyed");
  return found;
}

void forget_descriptor(cudnnBackendDescriptor_t descriptor) {
  require(descriptor != nullptr, CUDNN_STATUS_BAD_PARAM_NULL_POINTER, "a descriptor is null");
  require(registry().remove(descriptor), CUDNN_STATUS_BAD_PARAM,
          "a descriptor does not exist or was destroyed");
}

bool is_emulated(cudnnBackendDescriptorType_t type) {
  return std::ranges::any_of(all_rules(), [&](const Rule& rule) { return rule.descriptor == type; });
}

void set_attribute(Descriptor& descriptor, cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
                   std::int64_t count, const void* elements) {
  require(!descriptor.finalized, CUDNN_STATUS_BAD_PARAM, "the descriptor is finalized");
  const Rule& rule = rule_for(descriptor, name);
  require(rule.access != Access::read_only, CUDNN_STATUS_BAD_PARAM, "the attribute is read-only");
  require(is_type(rule, type), CUDNN_STATUS_BAD_PARAM_ATTRIBUTE_TYPE, "wrong type for this attribute");
  const bool empty_list = count == 0 && rule.most > 1 && type == CUDNN_TYPE_BACKEND_DESCRIPTOR;
  require(empty_list || (count >= 1 && count <= rule.most), CUDNN_STATUS_BAD_PARAM,
          "the attribute takes 1 to " + std::to_string(rule.most) + " elements");
  require(elements != nullptr || empty_list, CUDNN_STATUS_BAD_PARAM_NULL_POINTER,
          "the attribute's values are null");
  if (type == CUDNN_TYPE_BACKEND_DESCRIPTOR) {
    descriptor.put(name, referred(rule, count, elements));
    return;
  }
  const auto* bytes = static_cast<const std::byte*>(elements);
  const std::size_t size = static_cast<std::size_t>(count) * element_bytes(type);
  descriptor.attributes[name] = {type, count, {bytes, bytes + size}, {}};
}

void get_attribute(Descriptor& descriptor, cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
                   std::int64_t requested, std::int64_t* count, void* elements) {
  require(descriptor.finalized, CUDNN_STATUS_NOT_INITIALIZED, "the descriptor is not finalized");
  const Rule& rule = rule_for(descriptor, name);
  require(is_type(rule, type), CUDNN_STATUS_BAD_PARAM_ATTRIBUTE_TYPE, "wrong type for this attribute");
  require(requested >= 0, CUDNN_STATUS_BAD_PARAM, "the requested number of elements is negative");
  require(count != nullptr || requested == 1, CUDNN_STATUS_BAD_PARAM_NULL_POINTER,
          "the pointer for the number of elements is null");
  const auto found = descriptor.attributes.find(name);
  const std::int64_t held = found == descriptor.attributes.end() ? 0 : found->second.count;
  const std::int64_t given = std::min(held, requested);
  // A caller asks for the number of elements by giving no array.
  const bool only_counts = requested == 0 && elements == nullptr;
  if (count != nullptr) *count = only_counts ? held : given;
  if (given == 0) return;
  require(elements != nullptr, CUDNN_STATUS_BAD_PARAM_NULL_POINTER, "the array for the values is null");
  const Attribute& attribute = found->second;
  require(attribute.type == type, CUDNN_STATUS_BAD_PARAM_ATTRIBUTE_TYPE,
          "the attribute was set with another type");
  if (type == CUDNN_TYPE_BACKEND_DESCRIPTOR) return fill_in(rule, attribute, given, elements);
  std::memcpy(elements, attribute.bytes.data(), static_cast<std::size_t>(given) * element_bytes(type));
}

void require_attributes(const Descriptor& descriptor) {
  for (const Rule& rule : all_rules()) {
    if (rule.descriptor != descriptor.type || rule.access != Access::required) continue;
    require(descriptor.has(rule.name), CUDNN_STATUS_BAD_PARAM,
            "attribute " + std::to_string(rule.name) + " was not set");
  }
}

}  // namespace lockstep::emulator::cudnn
