// SPDX-License-Identifier: Apache-2.0
//
// NotFiniteSearch: where values stopped being finite. Whoever wants to know runs a pass again with this as
// its observer, which looks at what each layer makes; what it finds first is what the rest comes from.
#pragma once

#include <span>
#include <string>

#include "comm/communicator.h"
#include "core/buffer.h"
#include "core/stream.h"
#include "models/network.h"

namespace lockstep {

class NotFiniteSearch final : public LayerObserver {
 public:
  // Both outlive this. The stream is that of the passes.
  NotFiniteSearch(Network& network, Stream& stream);

  // In this order. The parameters, and what evaluation reads beside them, as they are; waits for the stream.
  void look_at_state();
  // Of each forward and backward pass.
  void layer_ran(std::size_t node, Direction direction, std::int64_t begin_ns, std::int64_t end_ns) override;
  // Between the two.
  void look_at_loss(double loss);

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

// NotFiniteSearch::found() of the state alone.
std::string not_finite_state(Network& network);

// Collective over host memory. "; it began on rank 1 in parameter conv1.weight", of every rank that found
// something; empty: none did.
std::string where_it_began(Communicator& host, const std::string& found);

}  // namespace lockstep
