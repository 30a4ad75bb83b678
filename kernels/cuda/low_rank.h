// SPDX-License-Identifier: Apache-2.0
//
// CUDA implementation of the operations of kernels/low_rank.h. Matrices must be row-major.
#pragma once

#include "core/stream.h"
#include "kernels/low_rank.h"

namespace lockstep {

void cuda_low_rank_rows(Stream& stream, const LowRankRows& arguments);
void cuda_low_rank_orthogonalize(Stream& stream, const LowRankOrthogonalize& arguments);
void cuda_low_rank_columns(Stream& stream, const LowRankColumns& arguments);
void cuda_low_rank_decode(Stream& stream, const LowRankDecode& arguments);
void cuda_low_rank_revive(Stream& stream, const LowRankRevive& arguments);

}  // namespace lockstep
