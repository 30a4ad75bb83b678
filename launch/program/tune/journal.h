// SPDX-License-Identifier: Apache-2.0
//
// TuneJournal: the measurements of `lockstep tune` on disk, one JSON object a line, so that a job resumes
// after any end. The first line identifies the configuration, the program and the machine; a file with
// another one is refused. On rank 0 only.
#pragma once

#include <deque>
#include <filesystem>
#include <map>
#include <optional>
#include <string>

#include "launch/observe/run_files/line_journal.h"
#include "launch/program/tune/search.h"

namespace lockstep {

// Identifies what measurements depend on besides the settings.
struct TuneHeader {
  std::string config;   // to_toml()
  std::string program;  // version, and a hash of the executable
  int ranks = 1;
  int nodes = 1;
  std::string device;  // with the names of the processor and the backend
};

class TuneJournal {
 public:
  // Reads an existing file, and removes an incomplete last line. fresh: renames an existing file to
  // tune.1.jsonl and so on instead. Throws ConfigError with the difference for another header, DataError for
  // a file that TuneJournal did not write, and IoError.
  TuneJournal(const std::filesystem::path& path, const TuneHeader& header, bool fresh);

  // Removes and returns the next stored measurement of the request; nullopt: none is left.
  std::optional<TuneVisit> take(const TuneRequest& request);
  // Throws IoError; a failed write leaves no partial line.
  void append(const TuneRequest& request, const TuneVisit& visit);
  int measurements_found() const { return found_; }

 private:
  std::optional<LineJournal> lines_;
  std::map<std::string, std::deque<TuneVisit>> visits_;  // by request
  int found_ = 0;
};

// Text of a visit, for a broadcast to other ranks. visit_from_text() throws errors of the JSON library.
std::string to_text(const TuneVisit& visit);
TuneVisit visit_from_text(const std::string& text);

}  // namespace lockstep
