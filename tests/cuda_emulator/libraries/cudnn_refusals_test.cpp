// SPDX-License-Identifier: Apache-2.0
//
// The calls that the emulated cuDNN refuses.
#include <functional>
#include <string>

#include <cudnn_graph.h>
#include <gtest/gtest.h>

#include "tests/cuda_emulator/libraries/cudnn_test_descriptors.h"
#include "tests/cuda_emulator/libraries/device_array.h"

namespace lockstep {
namespace {

const ConvolutionShape kShape{.batch = 2,
                              .in_channels = 8,
                              .in_height = 6,
                              .in_width = 5,
                              .out_channels = 12,
                              .kernel = 3,
                              .padding = 1};

using Integers = std::vector<std::int64_t>;

TEST(CudnnRefuses, InvalidAttributes) {
  CudnnObject tensor(CUDNN_BACKEND_TENSOR_DESCRIPTOR);
  EXPECT_EQ(tensor.try_set(CUDNN_ATTR_CONVOLUTION_CONV_MODE, CUDNN_TYPE_CONVOLUTION_MODE, std::vector{0}),
            CUDNN_STATUS_BAD_PARAM);
  EXPECT_NE(CudnnObject::last_error().find("attribute 101"), std::string::npos);
  EXPECT_EQ(CudnnObject::last_error(), "") << "the last error is reported only once";
  EXPECT_EQ(tensor.try_set(CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_INT64, Integers{0}),
            CUDNN_STATUS_BAD_PARAM_ATTRIBUTE_TYPE);
  EXPECT_EQ(tensor.try_set(CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, std::vector{0, 0}),
            CUDNN_STATUS_BAD_PARAM);
  EXPECT_EQ(tensor.try_set(CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, Integers{}),
            CUDNN_STATUS_BAD_PARAM);
  EXPECT_EQ(tensor.try_set(CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, Integers(9)),
            CUDNN_STATUS_BAD_PARAM);
  EXPECT_EQ(
      cudnnBackendSetAttribute(tensor.get(), CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, 1, nullptr),
      CUDNN_STATUS_BAD_PARAM_NULL_POINTER);
  CudnnObject engine(CUDNN_BACKEND_ENGINE_DESCRIPTOR);
  EXPECT_EQ(engine.try_set(CUDNN_ATTR_ENGINE_NUMERICAL_NOTE, CUDNN_TYPE_NUMERICAL_NOTE, std::vector{0}),
            CUDNN_STATUS_BAD_PARAM)
      << "read-only attribute";
}

TEST(CudnnRefuses, InvalidDescriptors) {
  cudnnBackendDescriptor_t descriptor = nullptr;
  EXPECT_EQ(cudnnBackendCreateDescriptor(CUDNN_BACKEND_MATMUL_DESCRIPTOR, &descriptor),
            CUDNN_STATUS_NOT_SUPPORTED);
  EXPECT_EQ(cudnnBackendCreateDescriptor(CUDNN_BACKEND_TENSOR_DESCRIPTOR, nullptr),
            CUDNN_STATUS_BAD_PARAM_NULL_POINTER);
  EXPECT_EQ(cudnnBackendFinalize(nullptr), CUDNN_STATUS_BAD_PARAM_NULL_POINTER);
  ASSERT_EQ(cudnnBackendCreateDescriptor(CUDNN_BACKEND_TENSOR_DESCRIPTOR, &descriptor), CUDNN_STATUS_SUCCESS);
  EXPECT_EQ(cudnnBackendDestroyDescriptor(descriptor), CUDNN_STATUS_SUCCESS);
  EXPECT_EQ(cudnnBackendFinalize(descriptor), CUDNN_STATUS_BAD_PARAM) << "destroyed";
  EXPECT_EQ(cudnnBackendDestroyDescriptor(descriptor), CUDNN_STATUS_BAD_PARAM);
}

TEST(CudnnRefuses, ChangesOfFinalizedAndReadsOfUnfinalizedDescriptors) {
  CudnnObject open = open_tensor(1, {2, 3, 4, 5});
  std::int64_t value = 0, count = 0;
  EXPECT_EQ(
      cudnnBackendGetAttribute(open.get(), CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, 1, &count, &value),
      CUDNN_STATUS_NOT_INITIALIZED);
  CudnnObject done = std::move(open).finalized();
  EXPECT_EQ(done.try_set(CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, Integers{2}), CUDNN_STATUS_BAD_PARAM);
  EXPECT_EQ(done.finalize(), CUDNN_STATUS_BAD_PARAM);
  EXPECT_EQ(
      cudnnBackendGetAttribute(done.get(), CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_FLOAT, 1, &count, &value),
      CUDNN_STATUS_BAD_PARAM_ATTRIBUTE_TYPE);
  EXPECT_EQ(done.get<std::int64_t>(CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, 8),
            (Integers{2, 3, 4, 5}));
  EXPECT_EQ(done.get<std::int64_t>(CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, 2), (Integers{2, 3}));
}

TEST(CudnnRefuses, IncompleteOrInvalidTensors) {
  CudnnObject empty(CUDNN_BACKEND_TENSOR_DESCRIPTOR);
  EXPECT_EQ(empty.finalize(), CUDNN_STATUS_BAD_PARAM);
  const auto changed = [](cudnnBackendAttributeName_t name, const Integers& values) {
    CudnnObject tensor = open_tensor(1, {2, 3, 4, 5});
    tensor.set(name, CUDNN_TYPE_INT64, values);
    return tensor.finalize();
  };
  EXPECT_EQ(changed(CUDNN_ATTR_TENSOR_DIMENSIONS, {2, 3, 4}), CUDNN_STATUS_BAD_PARAM);
  EXPECT_EQ(changed(CUDNN_ATTR_TENSOR_DIMENSIONS, {2, 0, 4, 5}), CUDNN_STATUS_BAD_PARAM);
  EXPECT_EQ(changed(CUDNN_ATTR_TENSOR_STRIDES, {60, -1, 15, 3}), CUDNN_STATUS_BAD_PARAM);
  EXPECT_EQ(changed(CUDNN_ATTR_TENSOR_STRIDES, {64, 1, 15, 3}), CUDNN_STATUS_NOT_SUPPORTED_LAYOUT);
  EXPECT_EQ(changed(CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, {3}), CUDNN_STATUS_BAD_PARAM);
  EXPECT_EQ(changed(CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, {0}), CUDNN_STATUS_BAD_PARAM);
  CudnnObject wide = open_tensor(1, {2, 3, 4, 5}, {.type = CUDNN_DATA_DOUBLE});
  EXPECT_EQ(wide.finalize(), CUDNN_STATUS_NOT_SUPPORTED_DATA_TYPE);
}

TEST(CudnnRefuses, InvalidConvolutions) {
  const auto changed = [&](cudnnBackendAttributeName_t name, const Integers& values) {
    CudnnObject convolution(CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR);
    convolution.set(CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS, CUDNN_TYPE_INT64, Integers{2})
        .set(CUDNN_ATTR_CONVOLUTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, std::vector{CUDNN_DATA_FLOAT})
        .set(CUDNN_ATTR_CONVOLUTION_CONV_MODE, CUDNN_TYPE_CONVOLUTION_MODE,
             std::vector{CUDNN_CROSS_CORRELATION})
        .set(CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, CUDNN_TYPE_INT64, Integers{1, 1})
        .set(CUDNN_ATTR_CONVOLUTION_POST_PADDINGS, CUDNN_TYPE_INT64, Integers{1, 1})
        .set(CUDNN_ATTR_CONVOLUTION_DILATIONS, CUDNN_TYPE_INT64, Integers{1, 1});
    EXPECT_EQ(cudnnBackendFinalize(convolution.get()), CUDNN_STATUS_BAD_PARAM) << "without strides";
    convolution.set(CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, CUDNN_TYPE_INT64, Integers{1, 1});
    convolution.set(name, CUDNN_TYPE_INT64, values);
    return convolution.finalize();
  };
  EXPECT_EQ(changed(CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, {0, 1}), CUDNN_STATUS_BAD_PARAM);
  EXPECT_EQ(changed(CUDNN_ATTR_CONVOLUTION_DILATIONS, {1, 0}), CUDNN_STATUS_BAD_PARAM);
  EXPECT_EQ(changed(CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, {-1, 0}), CUDNN_STATUS_BAD_PARAM);
  EXPECT_EQ(changed(CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, {1}), CUDNN_STATUS_BAD_PARAM);
  EXPECT_EQ(changed(CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS, {3}), CUDNN_STATUS_NOT_SUPPORTED);
}

TEST(CudnnRefuses, OperationsWhoseTensorsDisagree) {
  const auto with = [](const FourSizes& x, const FourSizes& w, const FourSizes& y) {
    return open_convolution(0, settings(kShape), tensor(kXId, x), tensor(kWId, w), tensor(kYId, y))
        .finalize();
  };
  EXPECT_EQ(with({2, 8, 6, 5}, {12, 8, 3, 3}, {2, 12, 6, 5}), CUDNN_STATUS_SUCCESS);
  EXPECT_EQ(with({2, 8, 6, 5}, {12, 4, 3, 3}, {2, 12, 6, 5}), CUDNN_STATUS_SUCCESS) << "two groups";
  EXPECT_EQ(with({2, 8, 6, 5}, {12, 8, 3, 3}, {2, 12, 6, 4}), CUDNN_STATUS_BAD_PARAM);
  EXPECT_EQ(with({2, 8, 6, 5}, {12, 8, 3, 3}, {1, 12, 6, 5}), CUDNN_STATUS_BAD_PARAM);
  EXPECT_EQ(with({2, 8, 6, 5}, {12, 8, 3, 3}, {2, 11, 6, 5}), CUDNN_STATUS_BAD_PARAM);
  EXPECT_EQ(with({2, 8, 6, 5}, {12, 3, 3, 3}, {2, 12, 6, 5}), CUDNN_STATUS_BAD_PARAM);
  EXPECT_EQ(with({2, 8, 6, 5}, {13, 4, 3, 3}, {2, 13, 6, 5}), CUDNN_STATUS_BAD_PARAM)
      << "6.5 output channels per group";
}

TEST(CudnnRefuses, OperationsWithMissingOrUnfinalizedParts) {
  CudnnObject operation(CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR);
  const CudnnObject of = settings(kShape), open = open_tensor(kXId, x_sizes(kShape));
  EXPECT_EQ(operation.try_set(CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X, {&open}),
            CUDNN_STATUS_BAD_PARAM_NOT_FINALIZED);
  EXPECT_EQ(operation.try_set(CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X, {&of}),
            CUDNN_STATUS_BAD_PARAM_DESCRIPTOR_TYPE);
  operation.set(CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC, {&of});
  EXPECT_EQ(operation.finalize(), CUDNN_STATUS_BAD_PARAM);
}

class CudnnGraphs : public testing::Test {
 protected:
  OnDevice device;
};

TEST_F(CudnnGraphs, HaveOneTensorPerIdAndUseEveryVirtualTensor) {
  const CudnnObject x = tensor(kXId, x_sizes(kShape)), w = tensor(kWId, w_sizes(kShape)),
                    y = tensor(kYId, y_sizes(kShape));
  const CudnnObject twin = tensor(kXId, w_sizes(kShape)),
                    nowhere = tensor(kYId, y_sizes(kShape), {.is_virtual = true});
  const auto with = [&](const CudnnObject& of_w, const CudnnObject& of_y, float beta = 0) {
    const CudnnObject operation = open_convolution(0, settings(kShape), x, of_w, of_y, 1, beta).finalized();
    return open_graph({&operation}, device.handle).finalize();
  };
  EXPECT_EQ(with(w, y), CUDNN_STATUS_SUCCESS);
  EXPECT_EQ(with(twin, y), CUDNN_STATUS_BAD_PARAM_DUPLICATED_ENTRIES);
  EXPECT_EQ(with(w, nowhere), CUDNN_STATUS_BAD_PARAM);
  EXPECT_EQ(with(w, nowhere, 1), CUDNN_STATUS_BAD_PARAM);
  CudnnObject empty(CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
  EXPECT_EQ(empty.finalize(), CUDNN_STATUS_BAD_PARAM);
  const CudnnObject one = convolution_operation(0, kShape), two = convolution_operation(1, kShape);
  EXPECT_NE(open_graph({&one, &two}, device.handle).finalize(), CUDNN_STATUS_SUCCESS);
}

TEST_F(CudnnGraphs, GetTheSameEngineProposalsInTheSameOrder) {
  ConvolutionShape shape = kShape;
  const auto indices = [&](cudnnBackendHeurMode_t mode) {
    const CudnnObject operation = convolution_operation(0, shape);
    const CudnnObject graph = open_graph({&operation}, device.handle).finalized();
    std::vector<std::int64_t> all;
    for (const CudnnObject& configuration : proposals(graph, mode)) all.push_back(index_of(configuration));
    return all;
  };
  EXPECT_EQ(indices(CUDNN_HEUR_MODE_A), indices(CUDNN_HEUR_MODE_A));
  EXPECT_EQ(indices(CUDNN_HEUR_MODE_A), indices(CUDNN_HEUR_MODE_B));
  EXPECT_NE(indices(CUDNN_HEUR_MODE_A), indices(CUDNN_HEUR_MODE_FALLBACK));
  EXPECT_GE(indices(CUDNN_HEUR_MODE_A).size(), 8u);
  shape.dilation = 2;
  EXPECT_EQ(indices(CUDNN_HEUR_MODE_B), indices(CUDNN_HEUR_MODE_B));
  EXPECT_NE(indices(CUDNN_HEUR_MODE_A), indices(CUDNN_HEUR_MODE_B));
}

TEST_F(CudnnGraphs, NeedADeviceForPlanning) {
  const CudnnObject operation = convolution_operation(0, kShape);
  const CudnnObject graph = open_graph({&operation}, nullptr).finalized();
  EXPECT_EQ(open_heuristics(graph, CUDNN_HEUR_MODE_A).finalize(), CUDNN_STATUS_BAD_PARAM_NULL_POINTER);
}

TEST_F(CudnnGraphs, HaveEnginesWithKnobsInTheirRange) {
  const CudnnObject operation = convolution_operation(0, kShape);
  const CudnnObject graph = open_graph({&operation}, device.handle).finalized();
  const auto engine = [&](std::int64_t index) {
    CudnnObject made(CUDNN_BACKEND_ENGINE_DESCRIPTOR);
    made.set(CUDNN_ATTR_ENGINE_OPERATION_GRAPH, {&graph})
        .set(CUDNN_ATTR_ENGINE_GLOBAL_INDEX, CUDNN_TYPE_INT64, Integers{index});
    return made;
  };
  EXPECT_EQ(engine(-1).finalize(), CUDNN_STATUS_NOT_SUPPORTED);
  EXPECT_EQ(engine(2).finalize(), CUDNN_STATUS_NOT_SUPPORTED);
  EXPECT_EQ(engine(9999).finalize(), CUDNN_STATUS_NOT_SUPPORTED);
  const CudnnObject split = engine(1).finalized();
  const auto knobs = split.get(CUDNN_ATTR_ENGINE_KNOB_INFO, CUDNN_BACKEND_KNOB_INFO_DESCRIPTOR);
  ASSERT_EQ(knobs.size(), 1u);
  const auto most =
      knobs[0].get<std::int64_t>(CUDNN_ATTR_KNOB_INFO_MAXIMUM_VALUE, CUDNN_TYPE_INT64, 1).front();
  const auto configured = [&](cudnnBackendKnobType_t knob, std::int64_t value) {
    CudnnObject choice(CUDNN_BACKEND_KNOB_CHOICE_DESCRIPTOR);
    choice.set(CUDNN_ATTR_KNOB_CHOICE_KNOB_TYPE, CUDNN_TYPE_KNOB_TYPE, std::vector{knob})
        .set(CUDNN_ATTR_KNOB_CHOICE_KNOB_VALUE, CUDNN_TYPE_INT64, Integers{value});
    const CudnnObject chosen = std::move(choice).finalized();
    CudnnObject configuration(CUDNN_BACKEND_ENGINECFG_DESCRIPTOR);
    configuration.set(CUDNN_ATTR_ENGINECFG_ENGINE, {&split})
        .set(CUDNN_ATTR_ENGINECFG_KNOB_CHOICES, {&chosen});
    return configuration.finalize();
  };
  EXPECT_EQ(configured(CUDNN_KNOB_TYPE_SPLIT_K_SLC, most), CUDNN_STATUS_SUCCESS);
  EXPECT_EQ(configured(CUDNN_KNOB_TYPE_SPLIT_K_SLC, most + 1), CUDNN_STATUS_BAD_PARAM_OUT_OF_BOUND);
  EXPECT_EQ(configured(CUDNN_KNOB_TYPE_STAGES, 2), CUDNN_STATUS_BAD_PARAM);
}

TEST_F(CudnnGraphs, MayHaveAProposedPlanRefused) {
  const CudnnObject operation = convolution_operation(0, kShape);
  const CudnnObject graph = open_graph({&operation}, device.handle).finalized();
  int refused = 0, compiled = 0;
  for (const CudnnObject& configuration : proposals(graph)) {
    const cudnnStatus_t status = open_plan(configuration, device.handle).finalize();
    if (status != CUDNN_STATUS_SUCCESS) ++refused;
    EXPECT_TRUE(status == CUDNN_STATUS_SUCCESS ||
                status == CUDNN_STATUS_NOT_SUPPORTED_SHARED_MEMORY_INSUFFICIENT);
    compiled += static_cast<int>(
        engine_of(configuration)
            .get<cudnnBackendBehaviorNote_t>(CUDNN_ATTR_ENGINE_BEHAVIOR_NOTE, CUDNN_TYPE_BEHAVIOR_NOTE)
            .size());
  }
  EXPECT_EQ(refused, 1);
  EXPECT_EQ(compiled, 1);
}

// A plan with a workspace, and the memory it runs on.
class CudnnRuns : public CudnnGraphs {
 protected:
  CudnnRuns()
      : plan(make_plan()),
        x(Values(2 * 8 * 6 * 5), DType::f32),
        w(Values(12 * 8 * 9), DType::f32),
        y(Values(2 * 12 * 6 * 5), DType::f32),
        workspace(workspace_of(plan)) {}

  CudnnObject make_plan() {
    const CudnnObject operation = convolution_operation(0, kShape);
    const CudnnObject graph = open_graph({&operation}, device.handle).finalized();
    for (const CudnnObject& configuration : proposals(graph)) {
      if (index_of(configuration) == 1) return open_plan(configuration, device.handle).finalized();
    }
    throw std::runtime_error("engine 1 was not proposed");
  }
  cudnnStatus_t run(const Integers& ids, const std::vector<void*>& pointers, void* at) {
    return device.run(plan, ids, pointers, at);
  }
  cudnnStatus_t run(void* of_x, void* of_w, void* of_y, void* at) {
    return run({kXId, kWId, kYId}, {of_x, of_w, of_y}, at);
  }

  CudnnObject plan;
  DeviceArray x, w, y, workspace;
};

TEST_F(CudnnRuns, RefuseIdsThatDoNotMatchThePlan) {
  EXPECT_EQ(run(x.data(), w.data(), y.data(), workspace.data()), CUDNN_STATUS_SUCCESS);
  EXPECT_EQ(run({kXId, kWId}, {x.data(), w.data()}, workspace.data()), CUDNN_STATUS_BAD_PARAM)
      << "one id is missing";
  EXPECT_EQ(run({kXId, kWId, 99}, {x.data(), w.data(), y.data()}, workspace.data()), CUDNN_STATUS_BAD_PARAM);
  EXPECT_EQ(run({kXId, kWId, kYId, 99}, {x.data(), w.data(), y.data(), y.data()}, workspace.data()),
            CUDNN_STATUS_BAD_PARAM);
  EXPECT_EQ(open_pack({kXId, kXId, kYId}, {x.data(), w.data(), y.data()}, nullptr).finalize(),
            CUDNN_STATUS_BAD_PARAM_DUPLICATED_ENTRIES);
  EXPECT_EQ(open_pack({kXId, kWId, kYId}, {x.data(), w.data()}, nullptr).finalize(), CUDNN_STATUS_BAD_PARAM);
}

TEST_F(CudnnRuns, RefuseInvalidTensorMemory) {
  Values host(x.bytes());
  DeviceArray large(1 << 16);
  EXPECT_EQ(run(host.data(), w.data(), y.data(), workspace.data()), CUDNN_STATUS_BAD_PARAM)
      << "in host memory";
  EXPECT_EQ(run(nullptr, w.data(), y.data(), workspace.data()), CUDNN_STATUS_BAD_PARAM_NULL_POINTER);
  EXPECT_EQ(run(large.at(4), w.data(), y.data(), workspace.data()),
            CUDNN_STATUS_BAD_PARAM_MISALIGNED_POINTER);
  EXPECT_EQ(run(large.at((1 << 16) - 1024), w.data(), y.data(), workspace.data()), CUDNN_STATUS_BAD_PARAM)
      << "beyond its allocation";
  EXPECT_EQ(run(large.at((1 << 16) - x.bytes()), w.data(), y.data(), workspace.data()), CUDNN_STATUS_SUCCESS);
}

TEST_F(CudnnRuns, RefuseAMissingSmallOrOverlappingWorkspace) {
  DeviceArray small(workspace.bytes() - 4), large(1 << 18);
  EXPECT_EQ(run(x.data(), w.data(), y.data(), nullptr), CUDNN_STATUS_BAD_PARAM_NULL_POINTER);
  EXPECT_EQ(run(x.data(), w.data(), y.data(), small.data()), CUDNN_STATUS_BAD_PARAM_SIZE_INSUFFICIENT);
  EXPECT_EQ(run(x.data(), w.data(), y.data(), large.at(16)), CUDNN_STATUS_BAD_PARAM_MISALIGNED_POINTER);
  EXPECT_EQ(run(large.at(256), w.data(), y.data(), large.data()), CUDNN_STATUS_BAD_PARAM) << "over x";
  EXPECT_EQ(run(large.at(0), w.data(), large.at(256), workspace.data()), CUDNN_STATUS_BAD_PARAM)
      << "y over x";
}

TEST_F(CudnnRuns, RefuseInvalidAndUnfinalizedDescriptors) {
  const CudnnObject pack = open_pack({kXId, kWId, kYId}, {x.data(), w.data(), y.data()}, workspace.data());
  EXPECT_EQ(cudnnBackendExecute(device.handle, plan.get(), pack.get()), CUDNN_STATUS_BAD_PARAM_NOT_FINALIZED);
  EXPECT_EQ(cudnnBackendExecute(device.handle, pack.get(), plan.get()),
            CUDNN_STATUS_BAD_PARAM_DESCRIPTOR_TYPE);
  EXPECT_EQ(cudnnBackendExecute(device.handle, nullptr, pack.get()), CUDNN_STATUS_BAD_PARAM_NULL_POINTER);
  EXPECT_EQ(cudnnBackendExecute(nullptr, plan.get(), pack.get()), CUDNN_STATUS_BAD_PARAM_NULL_POINTER);
}

// The library allocates memory in a plan's first execution.
TEST_F(CudnnRuns, FirstExecutionFailsInACapture) {
  const auto capture = [&](cudnnStatus_t status) {
    cudaGraph_t graph = nullptr;
    EXPECT_EQ(cudaStreamBeginCapture(device.stream, cudaStreamCaptureModeThreadLocal), cudaSuccess);
    EXPECT_EQ(run(x.data(), w.data(), y.data(), workspace.data()), status);
    const cudaError_t ended = cudaStreamEndCapture(device.stream, &graph);
    if (graph != nullptr) cudaGraphDestroy(graph);
    return ended;
  };
  EXPECT_EQ(capture(CUDNN_STATUS_EXECUTION_FAILED), cudaErrorStreamCaptureInvalidated);
  EXPECT_EQ(cudaGetLastError(), cudaErrorStreamCaptureInvalidated);
  EXPECT_EQ(run(x.data(), w.data(), y.data(), workspace.data()), CUDNN_STATUS_SUCCESS);
  EXPECT_EQ(capture(CUDNN_STATUS_SUCCESS), cudaSuccess) << "the plan has already run once";
}

std::size_t free_memory() {
  std::size_t available = 0, total = 0;
  EXPECT_EQ(cudaMemGetInfo(&available, &total), cudaSuccess);
  return available;
}

TEST_F(CudnnRuns, FirstExecutionTakesMemory) {
  const std::size_t before = free_memory();
  EXPECT_EQ(run(x.data(), w.data(), y.data(), workspace.data()), CUDNN_STATUS_SUCCESS);
  const std::size_t after = free_memory();
  EXPECT_LT(after, before);
  EXPECT_EQ(run(x.data(), w.data(), y.data(), workspace.data()), CUDNN_STATUS_SUCCESS);
  EXPECT_EQ(free_memory(), after);
}

TEST(Cudnn, HandleHoldsMemoryUntilItIsDestroyed) {
  cudnnHandle_t handle = nullptr;
  const std::size_t before = free_memory();
  ASSERT_EQ(cudnnCreate(&handle), CUDNN_STATUS_SUCCESS);
  EXPECT_LT(free_memory(), before);
  EXPECT_EQ(cudnnDestroy(handle), CUDNN_STATUS_SUCCESS);
  EXPECT_EQ(free_memory(), before);
}

TEST_F(CudnnRuns, RefuseAnotherDevice) {
  int devices = 0;
  ASSERT_EQ(cudaGetDeviceCount(&devices), cudaSuccess);
  ASSERT_GE(devices, 2);
  ASSERT_EQ(cudaSetDevice(1), cudaSuccess);
  {
    const OnDevice other;
    EXPECT_EQ(cudnnSetStream(other.handle, device.stream), CUDNN_STATUS_BAD_PARAM_STREAM_MISMATCH);
    EXPECT_EQ(other.run(plan, {kXId, kWId, kYId}, {x.data(), w.data(), y.data()}, workspace.data()),
              CUDNN_STATUS_NOT_SUPPORTED_ARCH_MISMATCH);
    EXPECT_EQ(run(x.data(), w.data(), y.data(), workspace.data()), CUDNN_STATUS_EXECUTION_FAILED_CUDART)
        << "the current device is not the handle's";
  }
  ASSERT_EQ(cudaSetDevice(0), cudaSuccess);
}

std::string description(const std::string& changed, const std::string& to) {
  std::string text =
      R"({"maxGridSize":[2147483647,65535,65535],"maxBlockSize":[1024,1024,64],"regsPerBlock":65536,)"
      R"("multiProcessorCount":40,"warpSize":32,"maxSharedMemoryPerBlock":49152,)"
      R"("maxSharedMemoryPerBlockOptin":65536,"reservedSharedMemoryPerBlock":1024,"maxRegistersPerSM":65536,)"
      R"("maxCtasPerSM":32,"maxThreadsPerBlock":1024,"maxThreadsPerSM":2048,"pciDeviceId":0,"isTccDriver":0,)"
      R"("supportCoopLaunch":1,"totalGlobalMem":15843721216,"smClockRateKHz":1590000,"memClockRateKHz":5001000,)"
      R"("l2CacheSize":4194304,"cudaDeviceId":0,"deviceVer":750,"driverVer":13000,"deviceName":"Tesla T4"})";
  if (changed.empty()) return text;
  return text.replace(text.find(changed), changed.size(), to);
}

CudnnObject open_device(const std::string& json) {
  CudnnObject device(CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR);
  device.set(CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION, CUDNN_TYPE_CHAR,
             std::vector(json.begin(), json.end()));
  return device;
}

TEST(CudnnDescribedDevices, NeedACompleteDescription) {
  EXPECT_EQ(open_device(description("", "")).finalize(), CUDNN_STATUS_SUCCESS);
  EXPECT_EQ(open_device("[]").finalize(), CUDNN_STATUS_BAD_PARAM);
  EXPECT_EQ(open_device("{").finalize(), CUDNN_STATUS_BAD_PARAM);
  EXPECT_EQ(open_device(description("warpSize", "warp")).finalize(), CUDNN_STATUS_BAD_PARAM);
  EXPECT_NE(CudnnObject::last_error().find("warpSize"), std::string::npos);
  EXPECT_EQ(open_device(description("\"warpSize\":32", "\"warpSize\":\"a\"")).finalize(),
            CUDNN_STATUS_BAD_PARAM);
}

TEST(CudnnDescribedDevices, SupportPlanningButNotExecution) {
  const CudnnObject target = open_device(description("", "")).finalized();
  const auto heuristics = [&](cudnnDataType_t type) {
    const CudnnObject operation = convolution_operation(0, kShape, {.tensors = {.type = type}});
    const CudnnObject graph = open_graph({&operation}, nullptr).finalized();
    CudnnObject made = open_heuristics(graph, CUDNN_HEUR_MODE_A);
    made.set(CUDNN_ATTR_ENGINEHEUR_DEVICEPROP, {&target});
    return made;
  };
  EXPECT_EQ(heuristics(CUDNN_DATA_BFLOAT16).finalize(), CUDNN_STATUS_NOT_SUPPORTED_ARCH_MISMATCH);
  const CudnnObject halves = heuristics(CUDNN_DATA_HALF).finalized();
  const auto configurations =
      halves.get(CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_BACKEND_ENGINECFG_DESCRIPTOR, 1);
  CudnnObject plan(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
  plan.set(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, {&configurations.front()});
  EXPECT_EQ(cudnnBackendFinalize(plan.get()), CUDNN_STATUS_BAD_PARAM_NULL_POINTER)
      << "neither a handle nor a device description";
  plan.set(CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP, {&target});
  ASSERT_EQ(plan.finalize(), CUDNN_STATUS_SUCCESS);
  const OnDevice device;
  const DeviceArray memory(1 << 16);
  EXPECT_EQ(device.run(plan, {kXId, kWId, kYId}, {memory.at(0), memory.at(8192), memory.at(16384)}, nullptr),
            CUDNN_STATUS_NOT_SUPPORTED_ARCH_MISMATCH);
}

TEST(Cudnn, ReportsItsVersionAndErrors) {
  int major = 0;
  EXPECT_EQ(cudnnGetProperty(MAJOR_VERSION, &major), CUDNN_STATUS_SUCCESS);
  EXPECT_EQ(major, 9);
  EXPECT_EQ(cudnnGetVersion() / 10000, 9u);
  EXPECT_STREQ(cudnnGetErrorString(CUDNN_STATUS_NOT_SUPPORTED), "CUDNN_STATUS_NOT_SUPPORTED");
  EXPECT_EQ(cudnnCreate(nullptr), CUDNN_STATUS_BAD_PARAM_NULL_POINTER);
  EXPECT_NE(CudnnObject::last_error().find("emulated cuDNN"), std::string::npos);
}

}  // namespace
}  // namespace lockstep
