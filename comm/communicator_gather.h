// SPDX-License-Identifier: Apache-2.0
//
// CommunicatorGather: gathers values of layers across ranks during a pass. It needs its own communicator:
// after a gradient bucket that waits for a late rank, the layer would wait too.
#pragma once

#include "comm/communicator.h"
#include "kernels/rank_gather.h"

namespace lockstep {

class CommunicatorGather final : public RankGather {
 public:
  // The communicator outlives this and uses the device of the streams that gather.
  explicit CommunicatorGather(Communicator& communicator);

  Communicator& communicator() { return communicator_; }

  int ranks() const override { return communicator_.size(); }
  void set_layer(std::int32_t node) override { layer_ = node; }
  void gather(Stream& stream, const void* mine, void* all, std::size_t bytes) override;

 private:
  Communicator& communicator_;
  std::int32_t layer_ = -1;
  Event ready_;
  Event gathered_;
};

}  // namespace lockstep
