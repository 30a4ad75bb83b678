# The emulated device: core/cuda, comm/nccl and kernels/cuda, unchanged, on the headers of include/ and the libraries
# here. Its objects come before the libraries of Lockstep in a program, so that these are not asked for what they have
# in place of CUDA (core/no_cuda, kernels/no_cuda, comm/no_nccl).
file(GLOB emulated_kernels CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/kernels/cuda/*.cu)
file(GLOB emulated_callers CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/kernels/cuda/*.cpp ${PROJECT_SOURCE_DIR}/core/cuda/*.cpp
     ${PROJECT_SOURCE_DIR}/comm/nccl/*.cpp)
file(GLOB emulated_runtime CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/runtime/*.cpp)
file(GLOB emulated_nccl CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/nccl/*.cpp)
set_source_files_properties(${emulated_kernels} PROPERTIES LANGUAGE CXX)
# Each is compiled alone, as nvcc does it; the runtime's books and NCCL's have names in common.
set_source_files_properties(${emulated_kernels} ${emulated_runtime} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
find_package(MPI REQUIRED COMPONENTS CXX)
add_library(lockstep_emulated_device OBJECT ${emulated_kernels} ${emulated_callers} ${emulated_runtime}
            ${emulated_nccl})
target_compile_options(lockstep_emulated_device PRIVATE -Wno-unknown-pragmas)  # #pragma unroll
target_link_libraries(lockstep_emulated_device PUBLIC cuda_emulator lockstep_emulated_libraries Lockstep::comm PRIVATE lockstep_flags MPI::MPI_CXX)
target_compile_definitions(lockstep_emulated_device PRIVATE OMPI_SKIP_MPICXX)

add_executable(lockstep-emulated ${PROJECT_SOURCE_DIR}/launch/main.cpp)
target_link_libraries(lockstep-emulated PRIVATE lockstep_emulated_device Lockstep::launch lockstep_flags)

# lockstep_emulated_test(NAME <name> SOURCES <files> [LIBRARIES <targets>] [ENVIRONMENT NAME=value ..]): GoogleTest cases
# of CUDA code, on the emulated device.
function(lockstep_emulated_test)
  cmake_parse_arguments(TEST "" "NAME" "SOURCES;LIBRARIES" ${ARGN})
  lockstep_test(NAME ${TEST_NAME} LABEL emulated SOURCES ${TEST_SOURCES} LIBRARIES lockstep_emulated_device ${TEST_LIBRARIES})
  add_dependencies(emulated_tests ${TEST_NAME})
endfunction()
