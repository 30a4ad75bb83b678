// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/backend.h"

namespace lockstep {

// Restores at its end the number of threads of the calling thread's CPU kernels.
class KeptThreads {
 public:
  // On CPUs a batch is divided among the threads.
  KeptThreads() : before_(static_cast<int>(backend_for({}).batch_multiple(DType::f32))) {}
  ~KeptThreads() { backend_for({}).set_threads(before_); }
  KeptThreads(const KeptThreads&) = delete;
  KeptThreads& operator=(const KeptThreads&) = delete;

 private:
  int before_;
};

}  // namespace lockstep
