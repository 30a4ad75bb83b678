// SPDX-License-Identifier: Apache-2.0
//
// NotFiniteSearch: finds where values stopped being finite. Rerun a pass with this as its observer: it checks
// each layer's results and keeps the first that is not finite, which is the origin.
#pragma once

#include <span>
#include <string>

#include "comm/communicator.h"
#include "core/stream.h"
#include "core/tensor/buffer.h"
#include "models/network.h"

namespace lockstep {

class NotFiniteSearch final : public LayerObserver {
 public:
  // Both outlive this. The stream is the one of the passes.
  NotFiniteSearch(Network& network, Stream& stream);

  // Call in this order. Checks the parameters and the evaluation statistics; waits for the stream.
  void check_state();
  // Called by each forward and backward pass.
  void layer_ran(std::size_t node, Direction direction, std::int64_t begin_ns, std::int64_t end_ns) override;
  // Call between the two passes.
  void check_loss(double loss);

  // "parameter conv1.weight", "statistic bn1.running_var", "the activations of conv2", "the loss", "the
  // gradient of fc.weight", "the gradient of the activations before conv2"; empty: all was finite.
  const std::string& found() const { return found_; }

 private:
  bool is_finite(const FlatRange& range) { return are_finite(std::span(&range, 1)); }
  bool are_finite(std::span<const FlatRange> ranges);
  std::string layer_name(std::size_t node) const;

  Network& network_;
  Stream& stream_;
  Buffer flag_;
  std::string found_;
};

// The result of check_state() alone.
std::string not_finite_state(Network& network);

// Collective over host memory. "; the origin is on rank 1 in parameter conv1.weight", for all ranks whose
// `found` is not empty; empty: none.
std::string describe_origin(Communicator& host, const std::string& found);

}  // namespace lockstep
