// SPDX-License-Identifier: Apache-2.0
#include "core/stream.h"

#include "core/backend_factories.h"
#include "core/error.h"

namespace lockstep {

Event::Event(Device device)
    : backend_(device.kind == DeviceKind::cpu ? detail::make_cpu_event() : detail::make_cuda_event(device)) {}

TimedEvent::TimedEvent(Device device) {
  CHECK(device.kind == DeviceKind::cuda, "{} has no timed events, only a GPU has", to_string(device));
  backend_ = detail::make_cuda_timed_event(device);
}

Stream::Stream(Device device, StreamUse use)
    : device_(device),
      use_(use),
      backend_(device.kind == DeviceKind::cpu ? detail::make_cpu_stream(use)
                                              : detail::make_cuda_stream(device, use)) {}

bool Stream::runs_on_host() const { return device_.kind == DeviceKind::cpu; }

}  // namespace lockstep
