// SPDX-License-Identifier: Apache-2.0
//
// CommunicatorGather: what layers ask of other ranks in the middle of a pass, over a communicator that
// nothing else uses: behind a bucket of gradients, which may wait for a late rank, a layer would wait, too.
#pragma once

#include "comm/communicator.h"
#include "kernels/rank_gather.h"

namespace lockstep {

class CommunicatorGather final : public RankGather {
 public:
  // The communicator outlives this, and is of the device of the streams that gather.
  explicit CommunicatorGather(Communicator& communicator);

  int ranks() const override { return communicator_.size(); }
  void gather(Stream& stream, const void* mine, void* all, std::size_t bytes) override;

 private:
  Communicator& communicator_;
  Event ready_;
  Event gathered_;
};

}  // namespace lockstep
