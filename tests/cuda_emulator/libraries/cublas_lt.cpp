// SPDX-License-Identifier: Apache-2.0
//
// cuBLASLt's functions for emulated devices; those for descriptors are in cublas_descriptors.cpp. Emulated:
// column-major products of fp32, fp16 and bf16 matrices, summed in fp32 (also with operands rounded to tf32),
// batches, and the epilogues that add a bias, apply ReLU or GELU, or sum a bias gradient. An invalid call
// fails immediately and prints the reason on stderr.
#include <cstdio>
#include <cstring>
#include <memory>

#include <cublasLt.h>

#include "tests/cuda_emulator/libraries/cublas_algorithms.h"
#include "tests/cuda_emulator/libraries/cublas_answer.h"
#include "tests/cuda_emulator/libraries/operands.h"
#include "tests/cuda_emulator/runtime/runtime.h"

struct cublasLtContext {
  int device;
  lockstep::emulator::LibraryMemory memory{device};
};

namespace lockstep::emulator::cublas {

cublasStatus_t refused(const char* function, cublasStatus_t status, const char* why) {
  std::fprintf(stderr, "emulated cuBLASLt: %s: %s (%s)\n", function, why, cublasLtGetStatusName(status));
  return status;
}

namespace {

constexpr int kMajor = 13, kMinor = 1, kPatch = 0;
constexpr std::size_t kWorkspaceAlignment = 256;
constexpr double kHandleMemory = 1.0 / 16;  // share of a context's memory

bool is_alignment(std::uint32_t bytes) { return bytes > 0 && (bytes & (bytes - 1)) == 0; }

// The reason that an algorithm cannot be used, or null if it can.
const char* obstacle(const Algorithm& algorithm, const Problem& problem,
                     const cublasLtMatmulPreferenceOpaque_t& p) {
  if (algorithm.workspace_bytes(problem) > p.most_workspace_bytes) return "workspace too large";
  if (algorithm.split > problem.k) return "more parts than terms in a sum";
  if (algorithm.reduction != 0 && (algorithm.reduction & p.reduction_schemes) == 0)
    return "reduction scheme not allowed";
  if (p.alignment_a < algorithm.operand_alignment || p.alignment_b < algorithm.operand_alignment)
    return "alignment too small";
  return nullptr;
}

std::vector<cublasLtMatmulHeuristicResult_t> proposals(const Problem& problem,
                                                       const cublasLtMatmulPreferenceOpaque_t& p) {
  for (const std::uint32_t bytes : {p.alignment_a, p.alignment_b, p.alignment_c, p.alignment_d}) {
    require(is_alignment(bytes), "an alignment is not a power of two");
  }
  require(p.search_mode == 0, "not emulated: a search for one algorithm's configurations",
          CUBLAS_STATUS_NOT_SUPPORTED);
  std::vector<cublasLtMatmulHeuristicResult_t> results;
  for (const Algorithm& algorithm : algorithms()) {
    const Proposal proposal{.algorithm = algorithm,
                            .problem = problem.fingerprint(),
                            .alignments = {p.alignment_a, p.alignment_b, p.alignment_c, p.alignment_d}};
    cublasLtMatmulHeuristicResult_t result{};
    result.state = CUBLAS_STATUS_NOT_SUPPORTED;
    if (obstacle(algorithm, problem, p) == nullptr) {
      result = {.algo = proposal.pack(),
                .workspaceSize = algorithm.workspace_bytes(problem),
                .state = CUBLAS_STATUS_SUCCESS,
                .wavesCount = 1,
                .reserved = {}};
    }
    results.push_back(result);
  }
  return results;
}

void check_memory(const Extent& extent, std::size_t alignment, int device, const char* what) {
  if (extent.bytes == 0) return;
  const auto fail = [&](const char* why) {
    throw Refusal(CUBLAS_STATUS_INVALID_VALUE, std::string(what) + " " + why);
  };
  if (extent.data == nullptr) fail("is null");
  if (!is_aligned(extent.data, alignment)) fail("does not have the alignment given to the heuristic");
  if (!is_device_memory(extent.data, extent.bytes, device))
    fail("is not completely in memory of the stream's device");
}

void check_apart(const Extent& written, const Extent& other, const char* what) {
  if (written.bytes > 0 && other.bytes > 0 && overlap(written, other)) {
    throw Refusal(CUBLAS_STATUS_INVALID_VALUE, std::string("overlap: ") + what);
  }
}

void check_operands(const Call& call, const Alignments& promised, const Extent& workspace, int device) {
  const Problem& p = call.problem;
  const Extent a{call.a, p.a.bytes(p.batch)}, b{call.b, p.b.bytes(p.batch)}, d{call.d, p.d.bytes(p.batch)};
  const Extent c{call.c, call.beta == 0 ? 0 : p.c.bytes(p.batch)};
  const std::int64_t biases = (p.batch - 1) * p.bias_batch_stride + p.bias_elements();
  const bool has_bias = p.reads_bias() || p.writes_bias();
  const Extent bias{call.bias, has_bias ? static_cast<std::size_t>(biases) * size_of(p.d.type) : 0};
  check_memory(a, promised.a, device, "A");
  check_memory(b, promised.b, device, "B");
  check_memory(c, promised.c, device, "C");
  check_memory(d, promised.d, device, "D");
  check_memory(bias, size_of(p.d.type), device, "the bias");
  check_memory(workspace, kWorkspaceAlignment, device, "the workspace");
  check_apart(d, a, "D and A"), check_apart(d, b, "D and B"), check_apart(d, bias, "D and the bias");
  for (const Extent& other : {a, b, c, d, bias})
    check_apart(workspace, other, "the workspace and an operand");
  if (c.bytes > 0 && c.data == d.data) {
    require(p.c == p.d, "C and D are the same memory with different layouts");
  } else {
    check_apart(d, c, "D and C");
  }
}

// The given algorithm, or the first one that the pointers and the workspace allow.
Proposal chosen(const cublasLtMatmulAlgo_t* given, const Problem& problem, std::size_t workspace_bytes) {
  if (given != nullptr) {
    const std::optional<Proposal> proposal = Proposal::unpack(*given);
    require(proposal.has_value(), "the algorithm was not filled in by a heuristic");
    require(proposal->problem == problem.fingerprint(), "the algorithm was proposed for another problem");
    return *proposal;
  }
  const auto size = static_cast<std::uint32_t>(size_of(problem.a.type));
  const auto result_size = static_cast<std::uint32_t>(size_of(problem.d.type));
  const cublasLtMatmulPreferenceOpaque_t preference{.most_workspace_bytes = workspace_bytes,
                                                    .alignment_a = size,
                                                    .alignment_b = size,
                                                    .alignment_c = result_size,
                                                    .alignment_d = result_size};
  for (const auto& result : proposals(problem, preference)) {
    if (result.state == CUBLAS_STATUS_SUCCESS) return *Proposal::unpack(result.algo);
  }
  throw Refusal(CUBLAS_STATUS_NOT_SUPPORTED, "no algorithm supports the problem with this workspace");
}

int current_device() {
  int device = 0;
  require(cudaGetDevice(&device) == cudaSuccess, "there is no device", CUBLAS_STATUS_NOT_INITIALIZED);
  return device;
}

void require_handle(cublasLtHandle_t handle) {
  require(handle != nullptr, "the handle is null", CUBLAS_STATUS_NOT_INITIALIZED);
}

}  // namespace
}  // namespace lockstep::emulator::cublas

using namespace lockstep::emulator;
using namespace lockstep::emulator::cublas;

cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) {
  return answer(__func__, [&] {
    require(handle != nullptr, "a pointer is null");
    const int device = current_device();
    require(cudaFree(nullptr) == cudaSuccess, "the device has no context", CUBLAS_STATUS_NOT_INITIALIZED);
    auto made = std::make_unique<cublasLtContext>(device);
    require(made->memory.grow(kHandleMemory) == cudaSuccess, "out of device memory for the handle",
            CUBLAS_STATUS_ALLOC_FAILED);
    *handle = made.release();
  });
}

cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) {
  return answer(__func__, [&] {
    require_handle(handle);
    delete handle;
  });
}

const char* cublasLtGetStatusName(cublasStatus_t status) {
  switch (status) {
    case CUBLAS_STATUS_SUCCESS:
      return "CUBLAS_STATUS_SUCCESS";
    case CUBLAS_STATUS_NOT_INITIALIZED:
      return "CUBLAS_STATUS_NOT_INITIALIZED";
    case CUBLAS_STATUS_ALLOC_FAILED:
      return "CUBLAS_STATUS_ALLOC_FAILED";
    case CUBLAS_STATUS_INVALID_VALUE:
      return "CUBLAS_STATUS_INVALID_VALUE";
    case CUBLAS_STATUS_ARCH_MISMATCH:
      return "CUBLAS_STATUS_ARCH_MISMATCH";
    case CUBLAS_STATUS_MAPPING_ERROR:
      return "CUBLAS_STATUS_MAPPING_ERROR";
    case CUBLAS_STATUS_EXECUTION_FAILED:
      return "CUBLAS_STATUS_EXECUTION_FAILED";
    case CUBLAS_STATUS_INTERNAL_ERROR:
      return "CUBLAS_STATUS_INTERNAL_ERROR";
    case CUBLAS_STATUS_NOT_SUPPORTED:
      return "CUBLAS_STATUS_NOT_SUPPORTED";
    case CUBLAS_STATUS_LICENSE_ERROR:
      return "CUBLAS_STATUS_LICENSE_ERROR";
  }
  return "CUBLAS_STATUS_UNKNOWN";
}

const char* cublasLtGetStatusString(cublasStatus_t status) {
  return status == CUBLAS_STATUS_SUCCESS ? "emulated cuBLASLt: success"
                                         : "emulated cuBLASLt: the call failed; the reason is on stderr";
}

std::size_t cublasLtGetVersion() { return kMajor * 10000 + kMinor * 100 + kPatch; }

cublasStatus_t cublasLtGetProperty(libraryPropertyType type, int* value) {
  return answer(__func__, [&] {
    require(value != nullptr && type >= MAJOR_VERSION && type <= PATCH_LEVEL, "no such property");
    *value = type == MAJOR_VERSION ? kMajor : type == MINOR_VERSION ? kMinor : kPatch;
  });
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t handle, cublasLtMatmulDesc_t descriptor,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t preference, int requested,
                                              cublasLtMatmulHeuristicResult_t results[], int* returned) {
  return answer(__func__, [&] {
    require_handle(handle);
    require(preference != nullptr && results != nullptr && returned != nullptr, "a pointer is null");
    require(requested > 0, "the number of requested algorithms is not positive");
    *returned = 0;
    const Problem problem = problem_of(descriptor, a, b, c, d);
    bool any = false;
    for (const auto& result : proposals(problem, *preference)) {
      if (*returned == requested) break;
      results[(*returned)++] = result;
      any = any || result.state == CUBLAS_STATUS_SUCCESS;
    }
    require(any, "no algorithm satisfies the preference", CUBLAS_STATUS_NOT_SUPPORTED);
  });
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t descriptor, const void* alpha,
                              const void* a, cublasLtMatrixLayout_t a_layout, const void* b,
                              cublasLtMatrixLayout_t b_layout, const void* beta, const void* c,
                              cublasLtMatrixLayout_t c_layout, void* d, cublasLtMatrixLayout_t d_layout,
                              const cublasLtMatmulAlgo_t* algorithm, void* workspace,
                              std::size_t workspace_bytes, cudaStream_t stream) {
  return answer(__func__, [&] {
    require_handle(handle);
    require(alpha != nullptr && beta != nullptr, "alpha or beta is null");
    const Problem problem = problem_of(descriptor, a_layout, b_layout, c_layout, d_layout);
    require(current_device() == handle->device, "the current device is not the handle's device",
            CUBLAS_STATUS_EXECUTION_FAILED);
    require(device_of(stream) == handle->device, "the stream and the handle belong to different devices");
    const Proposal proposal = chosen(algorithm, problem, workspace_bytes);
    Call call{.problem = problem, .algorithm = proposal.algorithm, .alpha = 0, .beta = 0};
    std::memcpy(&call.alpha, alpha, sizeof(float));
    std::memcpy(&call.beta, beta, sizeof(float));
    call.a = a, call.b = b, call.c = c, call.d = d, call.bias = descriptor->bias, call.workspace = workspace;
    require(workspace_bytes >= proposal.algorithm.workspace_bytes(problem),
            "the workspace is smaller than the algorithm needs");
    check_operands(call, proposal.alignments, {workspace, workspace_bytes}, handle->device);
    require(enqueue(stream, "cublasLtMatmul", [call] { call.run(); }) == cudaSuccess,
            "the stream does not accept work", CUBLAS_STATUS_EXECUTION_FAILED);
  });
}
