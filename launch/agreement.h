// SPDX-License-Identifier: Apache-2.0
//
// Decisions all ranks take alike before the first step: whether everyone got through a phase of the start,
// and whether everyone was told the same. All of it is host memory: give the communicator over MPI.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "comm/communicator.h"

namespace lockstep {

// Collective. Root's text on every rank.
std::string broadcast_text(Communicator& communicator, std::string text, int root);

// Collective. Every rank's text, by rank.
std::vector<std::string> gather_texts(Communicator& communicator, const std::string& text);

// Collective. Runs `work` on every rank; when it threw an Error on any of them, all throw the error of the
// lowest failing rank together (Error::agreed), naming that rank unless every rank failed. work must not
// communicate.
void run_agreed(Communicator& communicator, const std::function<void()>& work);

// Collective. Throws an agreed ConfigError on all ranks when this rank's configuration text (Config's TOML)
// differs from rank 0's on any rank, naming the ranks and the first differing key.
void require_same_config(Communicator& communicator, const std::string& toml);

}  // namespace lockstep
