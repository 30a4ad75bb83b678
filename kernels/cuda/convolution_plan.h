// SPDX-License-Identifier: Apache-2.0
//
// Convolutions by cuDNN: which of its engines may compute one direction of a convolution, and a plan that
// does with a given engine. Tensors are dense: activations NHWC, weights KRSC with C = in_channels / groups;
// whoever wants channels padded (3 to 4, for a first layer on tensor cores) says so in the shape. Products
// are summed in fp32. Every plan gives the same bits for the same operands.
//
// Planning takes milliseconds and allocates. Running a plan enqueues its kernels on the handle's stream and
// allocates only when it is called with other addresses than the time before. A plan is used by one thread
// at a time.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/dtype.h"
#include "kernels/affine.h"
#include "kernels/cuda/cudnn_backend.h"
#include "kernels/cuda/plan.h"

namespace lockstep {

struct ConvolutionProblem {
  ConvolutionShape shape;  // without its bias and activation: these are not the plan's
  AffineDirection direction = AffineDirection::forward;
  DType dtype = DType::f32;  // of all three tensors: f32, f16 or bf16
};
// One line, different for different problems.
std::string describe(const ConvolutionProblem& problem);

// A configuration of an engine that computes the problem.
struct ConvolutionCandidate {
  // The engine's number and its knobs, "eng17_k2=14_k24=3": the same configuration for the same problem as
  // long as cuDNN's version is.
  std::string tag;
  std::shared_ptr<const CudnnDescriptor> configuration;
};

class ConvolutionPlan {
 public:
  // Empty when cuDNN refuses the candidate after all.
  static std::optional<ConvolutionPlan> build(const ConvolutionCandidate& candidate,
                                              const CudnnTarget& target);

  // The same finalized plan for another layer, which runs it on operands of its own.
  ConvolutionPlan share() const;

  const std::string& tag() const { return tag_; }
  std::size_t workspace_bytes() const { return workspace_bytes_; }
  // Only with a plan for the handle's own device. The operands' scratch is the workspace, aligned to
  // kWorkspaceAlignment; x, w and y are aligned to kPlanAlignment.
  void execute(cudnnHandle_t handle, const AffineOperands& operands);

 private:
  ConvolutionPlan(ConvolutionCandidate candidate, std::shared_ptr<const CudnnDescriptor> plan);

  std::string tag_;
  std::shared_ptr<const CudnnDescriptor> configuration_;
  std::shared_ptr<const CudnnDescriptor> plan_;
  std::size_t workspace_bytes_ = 0;
  AffineOperands operands_;
  std::optional<CudnnDescriptor> variant_pack_;  // of operands_
};

// What cuDNN proposes for the problem, the best guesses of its heuristics first, less what is not allowed:
// engines whose sums depend on the order of threads, that round operands or sums below what the problem says,
// or that are compiled at run time.
std::vector<ConvolutionCandidate> convolution_candidates(const ConvolutionProblem& problem,
                                                         const CudnnTarget& target);

// The first plans that can be built and need no more workspace than the limit. Throws ConfigError when there
// is none.
std::vector<ConvolutionPlan> plan_convolution(const ConvolutionProblem& problem, const CudnnTarget& target,
                                              const PlanLimits& limits = {});

// The plan of an earlier choice; empty when cuDNN proposes it no more, or when it needs more workspace than
// the limit.
std::optional<ConvolutionPlan> find_convolution_plan(const ConvolutionProblem& problem,
                                                     const CudnnTarget& target, std::string_view tag,
                                                     const PlanLimits& limits = {});

// Plans of one device, built once for each problem, however many layers and networks have it: cuDNN takes
// milliseconds for each plan.
class ConvolutionPlans {
 public:
  ConvolutionPlans(CudnnTarget target, const PlanLimits& limits)
      : target_(std::move(target)), limits_(limits) {}

  // As plan_convolution() and find_convolution_plan(), within the limits.
  std::vector<ConvolutionPlan> all(const ConvolutionProblem& problem);
  std::optional<ConvolutionPlan> find(const ConvolutionProblem& problem, std::string_view tag);

 private:
  struct Known {
    std::vector<ConvolutionPlan> plans;
    bool complete = false;  // all() was asked for
  };
  Known& known(const ConvolutionProblem& problem);

  CudnnTarget target_;
  PlanLimits limits_;
  std::map<std::string, Known> known_;  // by describe(problem)
};

}  // namespace lockstep
