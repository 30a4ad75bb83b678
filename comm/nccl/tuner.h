// SPDX-License-Identifier: Apache-2.0
//
// NCCL's tuner in this process. It limits the thread blocks of rings and trees that run beside compute
// (comm.ctas_beside_compute); all other collectives keep NCCL's number.
#pragma once

#include <cstddef>

namespace lockstep {

// While it lives, rings and trees that this thread enqueues get at most this number of thread blocks; 0:
// NCCL's own choice.
class CtaLimit {
 public:
  explicit CtaLimit(int most);
  ~CtaLimit();
  CtaLimit(const CtaLimit&) = delete;
  CtaLimit& operator=(const CtaLimit&) = delete;

 private:
  int before_;
};

// The thread blocks of a ring or tree of `bytes` under a limit: one for each 32 KiB, as NCCL takes with its
// protocol Simple, because its number replaces NCCL's. With LL128 NCCL itself may take more, with LL fewer.
int limited_ctas(std::size_t bytes, int most);

// True if NCCL has used the tuner for a communicator that this thread made since the last call.
bool take_tuner_use();

}  // namespace lockstep
