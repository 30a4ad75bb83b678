// SPDX-License-Identifier: Apache-2.0
//
// Convolutions by cuDNN: selects the engines that may compute one direction of a convolution, and plans it
// with one of them. Tensors are dense: activations NHWC, weights KRSC with C = in_channels / groups. A caller
// that pads channels (3 to 4, for a first layer on tensor cores) passes the padded shape. Products are summed
// in fp32. Every plan gives the same bits for the same operands in every run.
//
// Planning takes milliseconds and allocates. Running a plan enqueues its kernels on the handle's stream; it
// allocates only if the addresses differ from those of the previous call. A plan must be used by one thread
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

#include "core/tensor/dtype.h"
#include "kernels/affine.h"
#include "kernels/cuda/cudnn_backend.h"
#include "kernels/cuda/plan.h"

namespace lockstep {

struct ConvolutionProblem {
  ConvolutionShape shape;  // bias and activation are ignored
  AffineDirection direction = AffineDirection::forward;
  DType dtype = DType::f32;  // of all three tensors: f32, f16 or bf16
};
// A line that identifies the problem.
std::string describe(const ConvolutionProblem& problem);

// A configuration of an engine that computes the problem.
struct ConvolutionCandidate {
  // The engine's number and its knobs, "eng17_k2=14_k24=3". Identifies the configuration of a problem for one
  // version of cuDNN.
  std::string tag;
  std::shared_ptr<const CudnnDescriptor> configuration;
};

class ConvolutionPlan {
 public:
  // Empty if cuDNN rejects the candidate.
  static std::optional<ConvolutionPlan> build(const ConvolutionCandidate& candidate,
                                              const CudnnTarget& target);

  // The same finalized plan for another layer, with separate operands.
  ConvolutionPlan share() const;

  const std::string& tag() const { return tag_; }
  std::size_t workspace_bytes() const { return workspace_bytes_; }
  // The plan must be for the handle's device. The operands' scratch is the workspace, aligned to
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

// The candidates that cuDNN's heuristics propose for the problem, best guess first. Excludes engines whose
// sums depend on the order of threads, engines that round operands or sums to less than the problem's
// precision, and engines that are compiled at run time.
std::vector<ConvolutionCandidate> convolution_candidates(const ConvolutionProblem& problem,
                                                         const CudnnTarget& target);

// The first plans that can be built and that need at most the limit's workspace. Throws ConfigError if there
// is none.
std::vector<ConvolutionPlan> plan_convolution(const ConvolutionProblem& problem, const CudnnTarget& target,
                                              const PlanLimits& limits = {});

// The plan of an earlier choice; empty if cuDNN no longer proposes it or if it needs more than the limit's
// workspace.
std::optional<ConvolutionPlan> find_convolution_plan(const ConvolutionProblem& problem,
                                                     const CudnnTarget& target, std::string_view tag,
                                                     const PlanLimits& limits = {});

// The plans of one device. Each problem is planned once, however many layers and networks have it, because
// cuDNN takes milliseconds per plan.
class ConvolutionPlans {
 public:
  ConvolutionPlans(CudnnTarget target, const PlanLimits& limits)
      : target_(std::move(target)), limits_(limits) {}

  // Like plan_convolution() and find_convolution_plan(), with the limits of the constructor.
  std::vector<ConvolutionPlan> all(const ConvolutionProblem& problem);
  std::optional<ConvolutionPlan> find(const ConvolutionProblem& problem, std::string_view tag);

 private:
  struct Known {
    std::vector<ConvolutionPlan> plans;
    bool complete = false;  // all() was called
  };
  Known& known(const ConvolutionProblem& problem);

  CudnnTarget target_;
  PlanLimits limits_;
  std::map<std::string, Known> known_;  // by describe(problem)
};

}  // namespace lockstep
