// SPDX-License-Identifier: Apache-2.0
//
// CudaLibraries: the handles of cuDNN and cuBLASLt for one device, and the plans made with them. Must be used
// by one thread at a time and outlive the kernels that are planned with it.
#pragma once

#include <map>
#include <optional>
#include <string>

#include "core/cuda/check.h"
#include "core/stream.h"
#include "kernels/cuda/convolution_plan.h"
#include "kernels/cuda/cublas.h"
#include "kernels/cuda/cudnn_backend.h"

namespace lockstep {

class CudaLibraries {
 public:
  explicit CudaLibraries(Device device) : device_(device) {
    make_current(device);
    cudnn_ = make_cudnn_handle();
    cublas_ = make_cublas_handle();
    std::size_t free = 0, total = 0;
    CUDA_CHECK(cudaMemGetInfo(&free, &total));
    convolution_plans_.emplace(target(), PlanLimits::for_memory(total));
  }

  Device device() const { return device_; }
  CudnnTarget target() const { return CudnnTarget(cudnn_.get()); }
  // The handle, with its calls enqueued on the stream from now on.
  cudnnHandle_t cudnn(Stream& stream) const {
    CUDNN_CHECK(cudnnSetStream(cudnn_.get(), static_cast<cudaStream_t>(stream.native())));
    return cudnn_.get();
  }
  cublasLtHandle_t cublas() const { return cublas_.get(); }
  ConvolutionPlans& convolution_plans() { return *convolution_plans_; }
  // Results of trial runs (choose_product) by "PROBLEM, CANDIDATE": true if it ran without an error.
  std::map<std::string, bool>& product_trials() { return product_trials_; }

 private:
  Device device_;
  CudnnHandle cudnn_;
  CublasHandle cublas_;
  std::optional<ConvolutionPlans> convolution_plans_;
  std::map<std::string, bool> product_trials_;
};

}  // namespace lockstep
