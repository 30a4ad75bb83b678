// SPDX-License-Identifier: Apache-2.0
#include "comm/communicator_gather.h"

namespace lockstep {

CommunicatorGather::CommunicatorGather(Communicator& communicator)
    : communicator_(communicator),
      ready_(communicator.stream().device()),
      gathered_(communicator.stream().device()) {}

void CommunicatorGather::gather(Stream& stream, const void* mine, void* all, std::size_t bytes) {
  const Collective gather{.kind = CollectiveKind::all_gather,
                          .dtype = DType::u8,
                          .send = mine,
                          .recv = all,
                          .count = bytes,
                          .purpose = {.layer = layer_}};
  if (stream.runs_on_host() &&
      stream.use() == StreamUse::compute) {  // the calling thread has run all earlier work of this stream
    communicator_.complete(gather);
    return;
  }
  stream.record(ready_);
  communicator_.stream().wait(ready_);
  communicator_.enqueue(gather);
  communicator_.stream().record(gathered_);
  stream.wait(gathered_);
}

}  // namespace lockstep
