// SPDX-License-Identifier: Apache-2.0
#include "launch/step_times.h"

#include <algorithm>

#include "core/error.h"

namespace lockstep {

StepTimes::Inner::Inner(Device device, std::int64_t micro_batches) : exchanged(device) {
  for (std::int64_t micro = 0; micro < micro_batches; ++micro) {
    forward.emplace_back(device);
    backward.emplace_back(device);
  }
}

StepTimes::StepTimes(Device device, std::int64_t micro_batches)
    : inner_{Inner(device, micro_batches), Inner(device, micro_batches)},
      outer_{Outer(device), Outer(device), Outer(device), Outer(device)} {}

void StepTimes::begun(Stream& stream, double host_waited_seconds) {
  CHECK(begun_ - accounted_ < 2, "step {} was not accounted for", accounted_);
  Outer& around = outer(begun_++);
  around.host_waited_seconds = host_waited_seconds;
  stream.record(around.begun);
}
void StepTimes::has_data(Stream& stream) { stream.record(outer(begun_ - 1).has_data); }
void StepTimes::forward_done(Stream& stream, std::int64_t micro_batch) {
  stream.record(inner(begun_ - 1).forward[static_cast<std::size_t>(micro_batch)]);
}
void StepTimes::backward_done(Stream& stream, std::int64_t micro_batch) {
  stream.record(inner(begun_ - 1).backward[static_cast<std::size_t>(micro_batch)]);
}
void StepTimes::exchanged(Stream& stream) { stream.record(inner(begun_ - 1).exchanged); }
void StepTimes::ended(Stream& stream) { stream.record(outer(begun_ - 1).ended); }

void StepTimes::account(StepAccount& account) {
  CHECK(accounted_ < begun_, "no step to account for");
  const std::int64_t step = accounted_++;
  Inner& within = inner(step);
  Outer& around = outer(step);
  if (step > first_) {
    const double gap = around.begun.seconds_since(outer(step - 1).ended);
    const double data = std::min(gap, around.host_waited_seconds);
    account[Phase::data_wait] += data;
    account[Phase::idle] += gap - data;
  }
  account[Phase::data_wait] += around.has_data.seconds_since(around.begun);
  TimedEvent* last = &around.has_data;
  for (std::size_t micro = 0; micro < within.forward.size(); ++micro) {
    account[Phase::forward] += within.forward[micro].seconds_since(*last);
    account[Phase::backward] += within.backward[micro].seconds_since(within.forward[micro]);
    last = &within.backward[micro];
  }
  account[Phase::exposed_communication] += within.exchanged.seconds_since(*last);
  account[Phase::optimizer] += around.ended.seconds_since(within.exchanged);
}

}  // namespace lockstep
