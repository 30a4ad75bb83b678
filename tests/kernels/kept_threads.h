// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/backend.h"

namespace lockstep {

// Its destructor restores the number of threads that the calling thread's CPU kernels use.
class KeptThreads {
 public:
  // On a CPU batch_multiple() is the number of threads.
  KeptThreads() : before_(static_cast<int>(backend_for({}).batch_multiple(DType::f32))) {}
  ~KeptThreads() { backend_for({}).set_threads(before_); }
  KeptThreads(const KeptThreads&) = delete;
  KeptThreads& operator=(const KeptThreads&) = delete;

 private:
  int before_;
};

}  // namespace lockstep
