# SPDX-License-Identifier: Apache-2.0
# lockstep_find_cuda_library(<name> <oldest version> <header> <header of the version> <library names>): finds CUDNN or
# NCCL and sets <name>_INCLUDE_DIR and <name>_LIBRARY. Searches <name>_ROOT, the CUDA Toolkit, the system, and Python's
# packages. Searches again if <name>_ROOT changes.
function(lockstep_find_cuda_library name oldest header version_header)
  string(TOLOWER ${name} package)
  set(roots ${${name}_ROOT} $ENV{${name}_ROOT})
  if(roots AND NOT roots STREQUAL "${LOCKSTEP_${name}_ROOTS}")  # those found before belong to other roots
    unset(${name}_INCLUDE_DIR CACHE)
    unset(${name}_LIBRARY CACHE)
    set(LOCKSTEP_${name}_ROOTS "${roots}" CACHE INTERNAL "Roots of the ${name} that was found")
  endif()
  # HINTS would come after CMAKE_PREFIX_PATH.
  find_path(${name}_INCLUDE_DIR ${header} PATHS ${roots} PATH_SUFFIXES include NO_DEFAULT_PATH)
  find_path(${name}_INCLUDE_DIR ${header} HINTS ${CUDAToolkit_INCLUDE_DIRS} PATHS ${python_folders}
            PATH_SUFFIXES include ${package}/include)
  # The library that belongs to the header precedes others.
  cmake_path(GET ${name}_INCLUDE_DIR PARENT_PATH prefix)
  find_library(${name}_LIBRARY NAMES ${ARGN} NAMES_PER_DIR PATHS ${roots} ${prefix}
               PATH_SUFFIXES lib lib64 NO_DEFAULT_PATH)
  find_library(${name}_LIBRARY NAMES ${ARGN} NAMES_PER_DIR HINTS ${CUDAToolkit_LIBRARY_DIR} PATH_SUFFIXES lib lib64)
  if(NOT ${name}_INCLUDE_DIR OR NOT ${name}_LIBRARY)
    set(problem "was not found")
  else()
    file(STRINGS ${${name}_INCLUDE_DIR}/${version_header} version REGEX "^#define ${name}_(MAJOR|MINOR) [0-9]+")
    string(REGEX REPLACE "[^0-9;]+" "" version "${version}")
    string(REPLACE ";" "." version "${version}")
    if(version VERSION_GREATER_EQUAL oldest)
      return()
    endif()
    set(problem "${version} in ${${name}_INCLUDE_DIR} is too old")
  endif()
  unset(${name}_INCLUDE_DIR CACHE)  # searches again next time
  unset(${name}_LIBRARY CACHE)
  message(FATAL_ERROR "${name} ${problem}: Lockstep needs ${oldest} or newer. -D${name}_ROOT=FOLDER names the folder "
                      "that holds include/${header} and lib/lib${package}.so*")
endfunction()
