// SPDX-License-Identifier: Apache-2.0
//
// NCCL's tuner in this process: it limits the thread blocks of collectives that run beside compute
// (comm.ctas_beside_compute), and leaves NCCL's choice to the others.
#pragma once

#include <cstddef>

namespace lockstep {

// While it lives, collectives that this thread enqueues get at most this number of thread blocks; 0: NCCL's
// own choice.
class CtaLimit {
 public:
  explicit CtaLimit(int most);
  ~CtaLimit();
  CtaLimit(const CtaLimit&) = delete;
  CtaLimit& operator=(const CtaLimit&) = delete;

 private:
  int before_;
};

// The thread blocks for a ring or tree of `bytes` under a limit: NCCL itself takes no more than one for each
// 32 KiB, and a tuner must not raise its number.
int limited_ctas(std::size_t bytes, int most);

// The number of communicators of this process for which NCCL has used the tuner.
int tuned_communicators();

}  // namespace lockstep
