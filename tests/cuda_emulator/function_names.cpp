// SPDX-License-Identifier: Apache-2.0
#include "tests/cuda_emulator/function_names.h"

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include <cxxabi.h>
#include <dlfcn.h>
#include <elf.h>
#include <link.h>

#include "tests/cuda_emulator/thread_sanitizer.h"

namespace lockstep::emulator {
namespace {

// The file of a function, and the offset between addresses in the process and in the file.
struct Image {
  std::string path;
  std::uintptr_t shift = 0;
};

Image image_of(const void* function) {
  Dl_info info = {};
  link_map* map = nullptr;
  if (dladdr1(function, &info, reinterpret_cast<void**>(&map), RTLD_DL_LINKMAP) == 0 || map == nullptr)
    return {};
  // The name of the program itself is empty.
  return {.path = *map->l_name == '\0' ? "/proc/self/exe" : map->l_name, .shift = map->l_addr};
}

template <typename T>
std::vector<T> read_table(std::ifstream& file, std::uint64_t offset, std::uint64_t bytes) {
  std::vector<T> table(bytes / sizeof(T));
  file.seekg(static_cast<std::streamoff>(offset));
  file.read(reinterpret_cast<char*>(table.data()), static_cast<std::streamsize>(table.size() * sizeof(T)));
  return table;
}

// Searches the symbol table, the only table with functions that are local to a file. Returns "" if none is
// found.
std::string symbol_of(const Image& image, const void* function) {
  std::ifstream file(image.path, std::ios::binary);
  Elf64_Ehdr header = {};
  if (!file.read(reinterpret_cast<char*>(&header), sizeof(header)) ||
      std::memcmp(header.e_ident, ELFMAG, SELFMAG) != 0) {
    return "";
  }
  const auto sections = read_table<Elf64_Shdr>(file, header.e_shoff, header.e_shnum * sizeof(Elf64_Shdr));
  const std::uintptr_t address = reinterpret_cast<std::uintptr_t>(function) - image.shift;
  for (const Elf64_Shdr& section : sections) {
    if (section.sh_type != SHT_SYMTAB || section.sh_link >= sections.size()) continue;
    const Elf64_Shdr& names = sections[section.sh_link];
    for (const Elf64_Sym& symbol : read_table<Elf64_Sym>(file, section.sh_offset, section.sh_size)) {
      if (ELF64_ST_TYPE(symbol.st_info) != STT_FUNC || symbol.st_value != address) continue;
      std::string name;
      file.seekg(static_cast<std::streamoff>(names.sh_offset + symbol.st_name));
      std::getline(file, name, '\0');
      return name;
    }
  }
  return "";
}

// "void lockstep::(anonymous namespace)::f<int>(int*)" -> "lockstep::(anonymous namespace)::f<int>"
std::string demangled(const std::string& symbol) {
  int status = 0;
  const std::unique_ptr<char, decltype(&std::free)> whole(
      abi::__cxa_demangle(symbol.c_str(), nullptr, nullptr, &status), &std::free);
  if (status != 0) return symbol;
  std::string name = whole.get();
  int depth = 0;  // of parentheses: the last pair encloses the parameters
  for (std::size_t i = name.size(); i-- > 0;) {
    depth += name[i] == ')' ? 1 : name[i] == '(' ? -1 : 0;
    if (name[i] != '(' || depth != 0) continue;
    name.resize(i);
    break;
  }
  return name.starts_with("void ") ? name.substr(5) : name;
}

std::string found_name(const void* function) {
  const std::string symbol = symbol_of(image_of(function), function);
  return symbol.empty() ? "an emulated kernel" : demangled(symbol);
}

}  // namespace

const char* name_of_function(const void* function) {
  const Unseen unseen;  // the lock must not order host threads
  static std::mutex mutex;
  static auto* names = new std::unordered_map<const void*, std::string>;  // outlives every thread
  const std::lock_guard lock(mutex);
  const auto [place, is_new] = names->try_emplace(function);
  if (is_new) place->second = found_name(function);
  return place->second.c_str();
}

}  // namespace lockstep::emulator
