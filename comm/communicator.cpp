// SPDX-License-Identifier: Apache-2.0
#include "comm/communicator.h"

namespace lockstep {

int first_rank_where(Communicator& host, bool found) {
  const std::int32_t size = host.size();
  std::int32_t from_the_end = found ? size - host.rank() : 0;  // of the lowest rank the most
  host.all_reduce(&from_the_end, 1, DType::i32, ReduceOp::max);
  host.stream().synchronize();
  return from_the_end == 0 ? -1 : size - from_the_end;
}

}  // namespace lockstep
