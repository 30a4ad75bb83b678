// SPDX-License-Identifier: Apache-2.0
#include "tests/cuda_emulator/libraries/cudnn_execute.h"

#include <algorithm>
#include <atomic>

#include "tests/cuda_emulator/libraries/cudnn_engines.h"
#include "tests/cuda_emulator/libraries/operands.h"
#include "tests/cuda_emulator/libraries/rearrange.h"
#include "tests/cuda_emulator/runtime/runtime.h"

namespace lockstep::emulator::cudnn {
namespace {

constexpr std::size_t kWorkspaceAlignment = 256;

std::int64_t count_of(const Floats& values) { return static_cast<std::int64_t>(values.size()); }

// Passes the windows of some pixels through the workspace.
class WindowsInWorkspace final : public WindowStore {
 public:
  explicit WindowsInWorkspace(const Workspace& workspace) : workspace_(workspace) {}
  void keep(float* windows, std::int64_t count) override {
    workspace_.write(0, windows, count);
    workspace_.read(0, count, windows);
  }

 private:
  const Workspace& workspace_;
};

// One run of a plan. It holds tensors as floats in channels-last order.
class Run {
 public:
  explicit Run(const Execution& execution)
      : execution_(execution),
        configuration_(*execution.plan->configuration),
        algorithm_(algorithm_of(configuration_)),
        workspace_(execution.workspace, execution.plan->workspace_bytes) {}

  void all() {
    for (const Operation& operation : configuration_.graph->operations) run(operation);
  }

 private:
  void run(const Operation& operation) {
    switch (operation.kind) {
      case OperationKind::convolution:
        return finish(*operation.outputs[0], convolution(operation));
      case OperationKind::pointwise:
        return finish(*operation.outputs[0], pointwise(operation));
      case OperationKind::statistics:
        return statistics(operation);
      case OperationKind::reduction: {
        const Tensor &from = *operation.inputs[0], &to = *operation.outputs[0];
        Floats sums(static_cast<std::size_t>(to.elements()));
        reduce(from.sizes, values(from).data(), to.sizes, sums.data());
        return finish(to, std::move(sums));
      }
    }
  }

  const Floats& values(const Tensor& tensor) {
    const auto [found, inserted] = values_.try_emplace(tensor.id);
    if (inserted) found->second = load(tensor);
    return found->second;
  }

  Floats load(const Tensor& tensor) const {
    Floats memory = read_elements(execution_.memory.at(tensor.id), tensor.type, tensor.elements());
    if (is_channels_last(tensor.sizes, tensor.strides)) return memory;
    Floats ordered(memory.size());
    gather(tensor.sizes, tensor.strides, memory.data(), ordered.data());
    return ordered;
  }

  // Rounds to the tensor's type, since later operations must not see more precision.
  void finish(const Tensor& tensor, Floats result) {
    round_to(tensor.type, result.data(), count_of(result));
    if (!tensor.is_virtual) {
      void* memory = execution_.memory.at(tensor.id);
      if (is_channels_last(tensor.sizes, tensor.strides)) {
        write_elements(result, tensor.type, memory);
      } else {
        Floats ordered(result.size());
        scatter(tensor.sizes, tensor.strides, result.data(), ordered.data());
        write_elements(ordered, tensor.type, memory);
      }
    }
    values_[tensor.id] = std::move(result);
  }

  // An operand of a convolution, rounded as the engine rounds it.
  Floats operand(const Tensor& tensor) {
    Floats rounded = values(tensor);
    if (algorithm_.halves) round_to(Element::f16, rounded.data(), count_of(rounded));
    if (algorithm_.tensor_cores && tensor.type == Element::f32)
      round_to_tf32(rounded.data(), count_of(rounded));
    return rounded;
  }

  Floats convolution(const Operation& operation) {
    Floats first = operand(*operation.inputs[0]), second = operand(*operation.inputs[1]);
    WindowsInWorkspace windows(workspace_);
    Convolution c{.sizes = operation.sizes,
                  .direction = operation.direction,
                  .x = first.data(),
                  .w = second.data(),
                  .y = nullptr,
                  .first = 0,
                  .last = depth_of(operation.sizes, operation.direction),
                  .block = algorithm_.block,
                  .store = algorithm_.windows_in_workspace ? &windows : nullptr};
    if (c.direction == Direction::backward_data) c.x = nullptr, c.w = first.data(), c.y = second.data();
    if (c.direction == Direction::backward_filter) c.w = nullptr, c.y = second.data();
    float*& target = c.direction == Direction::forward         ? c.y
                     : c.direction == Direction::backward_data ? c.x
                                                               : c.w;
    const Tensor& output = *operation.outputs[0];
    Floats result;
    if (algorithm_.split > 1) {
      result = sum_of_parts(workspace_, algorithm_.split, output.elements(),
                            [&](std::int64_t part, float* values) {
                              Convolution share = c;
                              const std::int64_t which = (part + turn()) % algorithm_.split;
                              share.first = c.last * which / algorithm_.split;
                              share.last = c.last * (which + 1) / algorithm_.split;
                              float*& own = c.direction == Direction::forward         ? share.y
                                            : c.direction == Direction::backward_data ? share.x
                                                                                      : share.w;
                              own = values;
                              convolve(share);
                            });
    } else {
      result.resize(static_cast<std::size_t>(output.elements()));
      target = result.data();
      convolve(c);
    }
    const Floats before = operation.beta == 0 ? Floats() : load(output);
    blend(operation.alpha, operation.beta, before.data(), count_of(result), result.data());
    return result;
  }

  // The part that is summed first: always the same, except for engines that sum in any order.
  std::int64_t turn() {
    if (!algorithm_.any_order) return 0;
    if (!turn_) {
      static std::atomic<std::int64_t> runs{0};
      turn_ = runs.fetch_add(1, std::memory_order_relaxed) % algorithm_.split;
    }
    return *turn_;
  }

  Floats expanded(const Tensor& tensor, const Sizes& sizes) {
    if (tensor.sizes == sizes) return values(tensor);
    Floats all(static_cast<std::size_t>(sizes[0] * sizes[1] * sizes[2] * sizes[3]));
    broadcast(tensor.sizes, values(tensor).data(), sizes, all.data());
    return all;
  }

  Floats pointwise(const Operation& operation) {
    const PointwiseSettings& settings = operation.pointwise;
    const Sizes& sizes = operation.outputs[0]->sizes;
    Floats result = expanded(*operation.inputs[0], sizes);
    const Clip clip{settings.lowest, settings.highest, settings.slope_below};
    const auto with_second = [&](Arithmetic arithmetic) {
      const Floats second = expanded(*operation.inputs[1], sizes);
      combine(arithmetic, operation.alpha, second.data(), operation.beta, count_of(result), result.data());
    };
    switch (settings.mode) {
      case CUDNN_POINTWISE_ADD:
        with_second(Arithmetic::add);
        return result;
      case CUDNN_POINTWISE_MUL:
        with_second(Arithmetic::multiply);
        return result;
      case CUDNN_POINTWISE_SUB:
        with_second(Arithmetic::subtract);
        return result;
      case CUDNN_POINTWISE_RELU_BWD:
        relu_gradient(clip, expanded(*operation.inputs[1], sizes).data(), count_of(result), result.data());
        break;
      case CUDNN_POINTWISE_RELU_FWD:
        relu(clip, count_of(result), result.data());
        break;
      default:  // identity
        break;
    }
    blend(operation.alpha, 0, nullptr, count_of(result), result.data());
    return result;
  }

  void statistics(const Operation& operation) {
    const Tensor& x = *operation.inputs[0];
    const Floats& from = values(x);
    const std::int64_t channels = x.sizes[1], pixels = x.elements() / channels;
    const Floats sums =
        sum_of_parts(workspace_, kStatisticsParts, 2 * channels, [&](std::int64_t part, float* part_sums) {
          const std::int64_t first = pixels * part / kStatisticsParts,
                             last = pixels * (part + 1) / kStatisticsParts;
          emulator::statistics(from.data() + first * channels, last - first, channels, part_sums);
        });
    finish(*operation.outputs[0], Floats(sums.begin(), sums.begin() + channels));
    finish(*operation.outputs[1], Floats(sums.begin() + channels, sums.end()));
  }

  const Execution& execution_;
  const Configuration& configuration_;
  Algorithm algorithm_;
  Workspace workspace_;
  std::optional<std::int64_t> turn_;
  std::map<std::int64_t, Floats> values_;
};

void check_memory(const Execution& execution, int device) {
  const Graph& graph = *execution.plan->configuration->graph;
  for (const auto& [id, tensor] : graph.io) {
    const auto found = execution.memory.find(id);
    const std::string name = "tensor " + std::to_string(id);
    require(found != execution.memory.end(), CUDNN_STATUS_BAD_PARAM, name + " is not in the variant pack");
    require(found->second != nullptr, CUDNN_STATUS_BAD_PARAM_NULL_POINTER, name + " is null");
    require(is_aligned(found->second, static_cast<std::size_t>(tensor->alignment)),
            CUDNN_STATUS_BAD_PARAM_MISALIGNED_POINTER, name + " does not have its descriptor's alignment");
    require(is_device_memory(found->second, tensor->bytes(), device), CUDNN_STATUS_BAD_PARAM,
            name + " is not completely in memory of the handle's device");
  }
  require(execution.memory.size() == graph.io.size(), CUDNN_STATUS_BAD_PARAM,
          "the variant pack has a tensor that is not in the plan");
  const std::size_t bytes = execution.plan->workspace_bytes;
  if (bytes == 0) return;
  require(execution.workspace != nullptr, CUDNN_STATUS_BAD_PARAM_NULL_POINTER, "the plan needs a workspace");
  require(is_aligned(execution.workspace, kWorkspaceAlignment), CUDNN_STATUS_BAD_PARAM_MISALIGNED_POINTER,
          "the workspace is not aligned to 256 bytes");
  require(is_device_memory(execution.workspace, bytes, device), CUDNN_STATUS_BAD_PARAM_SIZE_INSUFFICIENT,
          "the plan's workspace is not completely in memory of the handle's device");
}

// An operation's result must not overlap other tensors, except that elementwise operations may work in place.
void check_overlaps(const Execution& execution) {
  const Graph& graph = *execution.plan->configuration->graph;
  const Extent workspace{execution.workspace, execution.plan->workspace_bytes};
  const auto extent = [&](const Tensor& tensor) {
    return Extent{execution.memory.at(tensor.id), tensor.bytes()};
  };
  for (const auto& [id, tensor] : graph.io) {
    require(workspace.bytes == 0 || !overlap(workspace, extent(*tensor)), CUDNN_STATUS_BAD_PARAM,
            "the workspace overlaps a tensor");
  }
  for (const Operation& operation : graph.operations) {
    for (const TensorPointer& output : operation.outputs) {
      if (output->is_virtual) continue;
      for (const auto& [id, other] : graph.io) {
        if (id == output->id) continue;
        const bool in_place = operation.kind == OperationKind::pointwise &&
                              execution.memory.at(id) == execution.memory.at(output->id) &&
                              other->sizes == output->sizes && other->type == output->type;
        require(in_place || !overlap(extent(*output), extent(*other)), CUDNN_STATUS_BAD_PARAM,
                "a result overlaps another tensor");
      }
    }
  }
}

}  // namespace

void Execution::run() const { Run(*this).all(); }

Execution make_execution(const Descriptor& plan, const Descriptor& pack, int device) {
  require(plan.type == CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR &&
              pack.type == CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR,
          CUDNN_STATUS_BAD_PARAM_DESCRIPTOR_TYPE, "the descriptors are not a plan and a variant pack");
  require(plan.finalized && pack.finalized, CUDNN_STATUS_BAD_PARAM_NOT_FINALIZED,
          "the plan or the variant pack is not finalized");
  Execution execution{.plan = std::get<const Plan*>(plan.body),
                      .memory = {},
                      .workspace = pack.one_or<void*>(CUDNN_ATTR_VARIANT_PACK_WORKSPACE, nullptr)};
  require(execution.plan->device == device, CUDNN_STATUS_NOT_SUPPORTED_ARCH_MISMATCH,
          "the plan was made for another device or for a described device");
  const auto ids = pack.all<std::int64_t>(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS);
  const auto pointers = pack.all<void*>(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS);
  for (std::size_t i = 0; i < ids.size(); ++i) execution.memory.emplace(ids[i], pointers[i]);
  check_memory(execution, device);
  check_overlaps(execution);
  check_execution(*execution.plan->configuration);
  return execution;
}

}  // namespace lockstep::emulator::cudnn
