# SPDX-License-Identifier: Apache-2.0
# find_cuda_library_test.cmake -DWORK=FOLDER: configures with one root of cuDNN after another, where CMAKE_PREFIX_PATH
# leads to a cuDNN, too.
cmake_minimum_required(VERSION 3.25)
include(${CMAKE_CURRENT_LIST_DIR}/../../core/find_cuda_library.cmake)
set(CMAKE_FIND_LIBRARY_PREFIXES lib)
set(CMAKE_FIND_LIBRARY_SUFFIXES .so)
unset(ENV{CUDNN_ROOT})
foreach(place prefix first second)
  file(WRITE ${WORK}/${place}/include/cudnn_graph.h "")
  file(WRITE ${WORK}/${place}/include/cudnn_version.h "#define CUDNN_MAJOR 9\n#define CUDNN_MINOR 8\n")
  file(WRITE ${WORK}/${place}/lib/libcudnn.so "")
endforeach()

function(expect place)
  lockstep_find_cuda_library(CUDNN 9.8 cudnn_graph.h cudnn_version.h cudnn libcudnn.so.9)
  set(found ${CUDNN_INCLUDE_DIR} ${CUDNN_LIBRARY})
  if(NOT found STREQUAL "${WORK}/${place}/include;${WORK}/${place}/lib/libcudnn.so")
    message(FATAL_ERROR "found ${found}, not those of ${place}")
  endif()
endfunction()

set(CMAKE_PREFIX_PATH ${WORK}/prefix)
expect(prefix)
set(CUDNN_ROOT ${WORK}/first)
expect(first)
set(CUDNN_ROOT ${WORK}/second)
expect(second)
unset(CUDNN_ROOT)  # as CMake configures again when a file has changed, without the environment of the first time
expect(second)
