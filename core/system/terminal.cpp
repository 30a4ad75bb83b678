// SPDX-License-Identifier: Apache-2.0
#include "core/system/terminal.h"

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "core/error.h"
#include "core/system/wrapped_text.h"

namespace lockstep {
namespace {

Terminal terminal_at(int descriptor) {
  Terminal terminal{.present = isatty(descriptor) != 0};
  winsize size = {};
  if (terminal.present && ioctl(descriptor, TIOCGWINSZ, &size) == 0 && size.ws_col > 0)
    terminal.columns = size.ws_col;
  return terminal;
}

}  // namespace

void make_failed_writes_errors() {
  std::signal(SIGPIPE, SIG_IGN);
  std::signal(SIGXFSZ, SIG_IGN);
}

void flush_or_throw() {
  const bool failed = std::fflush(stdout) != 0;
  if (failed || std::ferror(stdout) != 0)
    throw IoError(
        fmt::format("cannot write to standard output: {}",
                    failed ? std::strerror(errno) : "an earlier write failed; is it full or closed?"));
}

Terminal find_terminal(int descriptor) {
  const Terminal own = terminal_at(descriptor);
  if (std::getenv("OMPI_COMM_WORLD_RANK") == nullptr) return own;
  if (descriptor == STDOUT_FILENO && !own.present) return own;  // errors always go through a pipe
  // The launcher is this process's parent; a daemon on another node prints to no terminal.
  std::error_code error;
  const auto target =
      std::filesystem::read_symlink(fmt::format("/proc/{}/fd/{}", getppid(), descriptor), error);
  if (error || !target.string().starts_with("/dev/")) return {};
  const int launchers = open(target.c_str(), O_RDONLY | O_NOCTTY | O_NONBLOCK | O_CLOEXEC);
  if (launchers < 0) return {};
  const Terminal terminal = terminal_at(launchers);
  close(launchers);
  return terminal;
}

std::string fitted(const std::string& text, const Terminal& terminal) {
  if (!terminal.present) return text;
  return wrapped(text, {.hanging = 4, .columns = static_cast<std::size_t>(terminal.columns)});
}

void print_fitted(const std::string& text) { fmt::print("{}\n", fitted(text, find_terminal())); }

std::string beside(const std::string& start, const std::string& text, const Terminal& terminal) {
  if (!terminal.present) return start + text;
  const Wrapping wrapping{.indent = start.size(), .columns = static_cast<std::size_t>(terminal.columns)};
  const std::string lines = wrapped(text, wrapping);
  return start + lines.substr(std::min(start.size(), lines.size()));  // an empty text has no lines
}

void print_beside(const std::string& start, const std::string& text) {
  fmt::print("{}\n", beside(start, text, find_terminal()));
}

}  // namespace lockstep
