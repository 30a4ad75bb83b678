// SPDX-License-Identifier: Apache-2.0
//
// CUDA implementation of the operations of kernels/sparse.h.
#pragma once

#include "core/stream.h"
#include "kernels/sparse.h"

namespace lockstep {

void cuda_sparse_clip(Stream& stream, const SparseClip& arguments);
void cuda_sparse_threshold(Stream& stream, const SparseThreshold& arguments);
void cuda_sparse_select(Stream& stream, const SparseSelection& arguments);
void cuda_sparse_sum(Stream& stream, const SparseSum& arguments);

}  // namespace lockstep
