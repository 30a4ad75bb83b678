// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/linear_plan.h"

#include <cstdint>

namespace lockstep {
namespace {

cudaDataType_t to_cuda(DType type) {
  switch (type) {
    case DType::f32:
      return CUDA_R_32F;
    case DType::f16:
      return CUDA_R_16F;
    case DType::bf16:
      return CUDA_R_16BF;
    default:
      throw ConfigError(fmt::format("linear: the type is {}, expected fp32, fp16 or bf16", name_of(type)));
  }
}

template <typename T>
void set(const MatmulDescriptor& matmul, cublasLtMatmulDescAttributes_t name, const T& value) {
  CUBLAS_CHECK(cublasLtMatmulDescSetAttribute(matmul.get(), name, &value, sizeof(value)));
}
template <typename T>
void set(const MatmulPreference& preference, cublasLtMatmulPreferenceAttributes_t name, const T& value) {
  CUBLAS_CHECK(cublasLtMatmulPreferenceSetAttribute(preference.get(), name, &value, sizeof(value)));
}

// cuBLASLt is column-major: a row-major [r, c] matrix is its c x r matrix. So it computes the transposed
// products D = A * B, where A or B is transposed as the direction requires:
//   forward           y^T = w   * x^T    (w is in x out, so it is transposed)
//   backward data     x^T = w^T * y^T
//   backward weights  w^T = x^T * y      (y is out x batch, so it is transposed)
struct Matmul {
  MatmulDescriptor descriptor;
  MatrixLayout a, b, d;
};

MatrixLayout layout(DType type, std::int64_t rows, std::int64_t columns) {
  cublasLtMatrixLayout_t layout = nullptr;
  CUBLAS_CHECK(cublasLtMatrixLayoutCreate(&layout, to_cuda(type), static_cast<std::uint64_t>(columns),
                                          static_cast<std::uint64_t>(rows), columns));
  return MatrixLayout(layout);
}

Matmul matmul_of(const LinearProblem& problem) {
  const LinearShape& s = problem.shape;
  const bool tf32 = problem.dtype == DType::f32 && s.tf32;
  cublasLtMatmulDesc_t descriptor = nullptr;
  CUBLAS_CHECK(cublasLtMatmulDescCreate(&descriptor, tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F,
                                        CUDA_R_32F));
  Matmul matmul{.descriptor = MatmulDescriptor(descriptor)};
  MatrixLayout x = layout(problem.dtype, s.batch, s.in_features);
  MatrixLayout w = layout(problem.dtype, s.out_features, s.in_features);
  MatrixLayout y = layout(problem.dtype, s.batch, s.out_features);
  switch (problem.direction) {
    case AffineDirection::forward:
      set(matmul.descriptor, CUBLASLT_MATMUL_DESC_TRANSA, CUBLAS_OP_T);
      matmul.a = std::move(w), matmul.b = std::move(x), matmul.d = std::move(y);
      break;
    case AffineDirection::backward_data:
      matmul.a = std::move(w), matmul.b = std::move(y), matmul.d = std::move(x);
      break;
    case AffineDirection::backward_weights:
      set(matmul.descriptor, CUBLASLT_MATMUL_DESC_TRANSB, CUBLAS_OP_T);
      matmul.a = std::move(x), matmul.b = std::move(y), matmul.d = std::move(w);
      break;
  }
  return matmul;
}

MatmulPreference preference_of(const PlanLimits& limits) {
  cublasLtMatmulPreference_t created = nullptr;
  CUBLAS_CHECK(cublasLtMatmulPreferenceCreate(&created));
  MatmulPreference preference(created);
  set(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
      static_cast<std::uint64_t>(limits.workspace_bytes));
  // Split sums are kept in fp32 and added in a separate, deterministic step.
  set(preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
      static_cast<std::uint32_t>(CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE));
  for (const auto name :
       {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES}) {
    set(preference, name, static_cast<std::uint32_t>(kPlanAlignment));
  }
  return preference;
}

std::string tag_of(const cublasLtMatmulAlgo_t& algorithm) {
  const auto number = [&]<typename T>(cublasLtMatmulAlgoConfigAttributes_t name, T value) {
    CUBLAS_CHECK(cublasLtMatmulAlgoConfigGetAttribute(&algorithm, name, &value, sizeof(value), nullptr));
    return value;
  };
  return fmt::format("alg{}_tile{}_stages{}_splitk{}_reduction{}_swizzle{}_custom{}_inner{}_cluster{}",
                     number(CUBLASLT_ALGO_CONFIG_ID, std::int32_t{}),
                     number(CUBLASLT_ALGO_CONFIG_TILE_ID, std::uint32_t{}),
                     number(CUBLASLT_ALGO_CONFIG_STAGES_ID, std::uint32_t{}),
                     number(CUBLASLT_ALGO_CONFIG_SPLITK_NUM, std::int32_t{}),
                     number(CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME, std::uint32_t{}),
                     number(CUBLASLT_ALGO_CONFIG_CTA_SWIZZLING, std::uint32_t{}),
                     number(CUBLASLT_ALGO_CONFIG_CUSTOM_OPTION, std::uint32_t{}),
                     number(CUBLASLT_ALGO_CONFIG_INNER_SHAPE_ID, std::uint16_t{}),
                     number(CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID, std::uint16_t{}));
}

}  // namespace

std::string describe(const LinearProblem& problem) {
  const LinearShape& s = problem.shape;
  return fmt::format("linear {} {}, {} x {} to {} features", name_of(problem.direction),
                     name_of_precision(problem.dtype, s.tf32), s.batch, s.in_features, s.out_features);
}

LinearPlan::LinearPlan(const LinearProblem& problem, const cublasLtMatmulHeuristicResult_t& proposal)
    : direction_(problem.direction),
      algorithm_(proposal.algo),
      workspace_bytes_(proposal.workspaceSize),
      tag_(tag_of(proposal.algo)) {
  Matmul matmul = matmul_of(problem);
  matmul_ = std::move(matmul.descriptor);
  a_ = std::move(matmul.a), b_ = std::move(matmul.b), d_ = std::move(matmul.d);
}

void LinearPlan::execute(cublasLtHandle_t handle, cudaStream_t stream, const AffineOperands& o) {
  struct Order {
    const void *a, *b, *d;
  };
  const Order order = [&]() -> Order {
    switch (direction_) {
      case AffineDirection::forward:
        return {o.w, o.x, o.y};
      case AffineDirection::backward_data:
        return {o.w, o.y, o.x};
      case AffineDirection::backward_weights:
        break;
    }
    return {o.x, o.y, o.w};
  }();
  const float alpha = 1, beta = o.write == Write::accumulate ? 1 : 0;
  CUBLAS_CHECK(cublasLtMatmul(handle, matmul_.get(), &alpha, order.a, a_.get(), order.b, b_.get(), &beta,
                              order.d, d_.get(), const_cast<void*>(order.d), d_.get(), &algorithm_, o.scratch,
                              workspace_bytes_, stream));
}

std::vector<LinearPlan> plan_linear(const LinearProblem& problem, cublasLtHandle_t handle,
                                    const PlanLimits& limits) {
  CHECK(limits.plans > 0);
  const Matmul matmul = matmul_of(problem);
  const MatmulPreference preference = preference_of(limits);
  std::vector<cublasLtMatmulHeuristicResult_t> proposals(limits.plans);
  int found = 0;
  const cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(
      handle, matmul.descriptor.get(), matmul.a.get(), matmul.b.get(), matmul.d.get(), matmul.d.get(),
      preference.get(), static_cast<int>(limits.plans), proposals.data(), &found);
  if (status != CUBLAS_STATUS_NOT_SUPPORTED) {
    detail::check_cublas(status, "cublasLtMatmulAlgoGetHeuristic", __FILE__, __LINE__);
  }
  std::vector<LinearPlan> plans;
  for (int i = 0; i < found; ++i) {
    if (proposals[i].state == CUBLAS_STATUS_SUCCESS) plans.push_back(LinearPlan(problem, proposals[i]));
  }
  if (plans.empty()) {
    throw ConfigError(
        fmt::format("{}: cuBLASLt {} has no algorithm for it on this device with {} MiB of workspace; "
                    "use another precision",
                    describe(problem), cublasLtGetVersion(), limits.workspace_bytes >> 20));
  }
  return plans;
}

}  // namespace lockstep
