// SPDX-License-Identifier: Apache-2.0
//
// Linear layers by cuBLASLt: selects the algorithms that may compute one direction, and plans it with one of
// them. Tensors are dense and row-major: x [batch, in_features], w [out_features, in_features],
// y [batch, out_features]. Products are summed in fp32, in a fixed order.
//
// Planning queries cuBLASLt's heuristics and needs a device. Running a plan allocates nothing. A plan must be
// used by one thread at a time.
#pragma once

#include <string>
#include <vector>

#include <cuda_runtime_api.h>

#include "core/tensor/dtype.h"
#include "kernels/affine.h"
#include "kernels/cuda/cublas.h"
#include "kernels/cuda/plan.h"

namespace lockstep {

struct LinearProblem {
  LinearShape shape;  // bias and activation are ignored
  AffineDirection direction = AffineDirection::forward;
  DType dtype = DType::f32;  // of all tensors: f32, f16 or bf16
};
// A line that identifies the problem.
std::string describe(const LinearProblem& problem);

class LinearPlan {
 public:
  // The algorithm's configuration, "alg66_tile20_stages5_splitk1_...". Identifies it for a problem and one
  // version of cuBLASLt.
  const std::string& tag() const { return tag_; }
  std::size_t workspace_bytes() const { return workspace_bytes_; }
  // The operands' scratch is the workspace, aligned to kWorkspaceAlignment; x, w and y are aligned to
  // kPlanAlignment. Every direction accepts Write::accumulate.
  void execute(cublasLtHandle_t handle, cudaStream_t stream, const AffineOperands& operands);

 private:
  friend std::vector<LinearPlan> plan_linear(const LinearProblem&, cublasLtHandle_t, const PlanLimits&);

  LinearPlan(const LinearProblem& problem, const cublasLtMatmulHeuristicResult_t& proposal);

  AffineDirection direction_;
  MatmulDescriptor matmul_;
  MatrixLayout a_, b_, d_;
  cublasLtMatmulAlgo_t algorithm_{};
  std::size_t workspace_bytes_ = 0;
  std::string tag_;
};

// The plans that cuBLASLt proposes for the problem on the handle's device, within the limits, best guess
// first. Throws ConfigError if there is none.
std::vector<LinearPlan> plan_linear(const LinearProblem& problem, cublasLtHandle_t handle,
                                    const PlanLimits& limits = {});

}  // namespace lockstep
