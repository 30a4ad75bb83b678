// SPDX-License-Identifier: Apache-2.0
//
// Factories of the planned kernels with a library's products, and measurements with these kernels.
#pragma once

#include <memory>

#include "kernels/backend.h"
#include "kernels/cuda/libraries.h"

namespace lockstep {

std::unique_ptr<AffineKernel> make_cuda_convolution(CudaLibraries& libraries, const ConvolutionShape& shape,
                                                    const Layout& input, KernelChoices& choices);
std::unique_ptr<AffineKernel> make_cuda_linear(CudaLibraries& libraries, const LinearShape& shape,
                                               const Layout& input, KernelChoices& choices);
Peak measure_cuda_peak(CudaLibraries& libraries);
double measure_cuda_gigaflops(CudaLibraries& libraries, DType type, bool tf32);
double measure_cuda_gigabytes_per_second(CudaLibraries& libraries);

}  // namespace lockstep
