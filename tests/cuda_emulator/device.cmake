# The emulated device: core/cuda, comm/nccl and kernels/cuda, unchanged, with the headers of include/ and the libraries
# of this folder. Programs link its objects before Lockstep's libraries, so that the linker does not use the
# replacements of CUDA (core/no_cuda, kernels/no_cuda, comm/no_nccl).
set(emulated_runtime runtime/device.cpp runtime/device_memory.cpp runtime/event.cpp runtime/graph.cpp runtime/machine.cpp
    runtime/memory.cpp runtime/residence.cpp runtime/stream.cpp runtime/visible_devices.cpp)
set(emulated_nccl nccl/call.cpp nccl/collectives.cpp nccl/communicator.cpp nccl/communicators.cpp nccl/errors.cpp
    nccl/exchange.cpp nccl/handles.cpp nccl/ledger.cpp nccl/memory.cpp nccl/model.cpp nccl/plugins.cpp nccl/process.cpp
    nccl/reduction.cpp nccl/segment.cpp nccl/submission.cpp nccl/transfers.cpp)
# The sources of the runtime and of NCCL have names in common.
set_source_files_properties(${emulated_runtime} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
set_source_files_properties(${PROJECT_SOURCE_DIR}/core/cuda/device.cpp PROPERTIES
                            COMPILE_DEFINITIONS LOCKSTEP_LOWEST_CAPABILITY=80)
find_package(MPI REQUIRED COMPONENTS CXX)
add_library(lockstep_emulated_device OBJECT ${cuda_callers} ${emulated_runtime} ${emulated_nccl})
target_link_libraries(lockstep_emulated_device
  PUBLIC cuda_emulator lockstep_emulated_libraries Lockstep::comm PRIVATE lockstep_flags MPI::MPI_CXX)
target_compile_definitions(lockstep_emulated_device PRIVATE OMPI_SKIP_MPICXX)
target_link_options(lockstep_emulated_device INTERFACE LINKER:--export-dynamic-symbol=ncclTunerPlugin_v5
                    LINKER:--export-dynamic-symbol=ncclProfiler_v5)
set(emulated_device lockstep_emulated_device cuda_kernels)  # objects are only used by targets that link them directly

add_executable(lockstep-emulated ${PROJECT_SOURCE_DIR}/launch/program/main.cpp)
target_link_libraries(lockstep-emulated PRIVATE ${emulated_device} Lockstep::program lockstep_flags)
set_target_properties(lockstep-emulated PROPERTIES ENABLE_EXPORTS ON)

# lockstep_emulated_test(NAME <name> SOURCES <files> [LIBRARIES <targets>] [THREADED]): GoogleTest cases on the emulated
# device. ThreadSanitizer runs those that are THREADED.
function(lockstep_emulated_test)
  cmake_parse_arguments(TEST "THREADED" "NAME" "SOURCES;LIBRARIES" ${ARGN})
  lockstep_test(NAME ${TEST_NAME} LABEL emulated SOURCES ${TEST_SOURCES} LIBRARIES ${emulated_device} ${TEST_LIBRARIES})
  add_dependencies(emulated_tests ${TEST_NAME})
  if(TEST_THREADED AND LOCKSTEP_SANITIZE MATCHES "thread")
    add_dependencies(threaded_tests ${TEST_NAME})
    foreach(shard 0 1)
      set_property(TEST ${TEST_NAME}.shard${shard} APPEND PROPERTY LABELS threaded)
    endforeach()
  endif()
endfunction()
