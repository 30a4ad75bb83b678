// SPDX-License-Identifier: Apache-2.0
//
// TuneJournal: the measurements of `lockstep tune` on disk, one JSON object a line as they are made, so that
// a job that was ended goes on where it stood. The first line says what was measured; measurements of another
// configuration or other machines are not mixed with it. Rank 0's.
#pragma once

#include <deque>
#include <filesystem>
#include <map>
#include <optional>
#include <string>

#include "launch/run_files/line_journal.h"
#include "launch/tune/search.h"

namespace lockstep {

// What measurements depend on beside the settings.
struct TuneHeader {
  std::string config;   // to_toml of it
  std::string program;  // version, and what tells builds apart
  int ranks = 1;
  int nodes = 1;
  std::string device;  // "cpu" with its processor's name, or a GPU's
};

class TuneJournal {
 public:
  // Reads what is there; a line that the end of a job cut off is dropped from the file. fresh: what is there
  // is renamed to tune.1.jsonl and so on. Throws ConfigError for measurements of something else, saying what
  // differs, DataError for a file that this did not write, and IoError.
  TuneJournal(std::filesystem::path path, const TuneHeader& header, bool fresh);

  // The next measurement of such a request that the file has.
  std::optional<TuneVisit> take(const TuneRequest& request);
  // Throws IoError; the file then ends where it did.
  void append(const TuneRequest& request, const TuneVisit& visit);
  int measurements_found() const { return found_; }

 private:
  void set_aside() const;
  void read(const TuneHeader& header);

  std::filesystem::path path_;
  std::optional<LineJournal> lines_;
  std::map<std::string, std::deque<TuneVisit>> visits_;  // by request
  int found_ = 0;
};

// For other ranks. from_text throws what the JSON library throws.
std::string to_text(const TuneVisit& visit);
TuneVisit visit_from_text(const std::string& text);

}  // namespace lockstep
