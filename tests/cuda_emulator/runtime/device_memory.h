// SPDX-License-Identifier: Apache-2.0
//
// The addresses of all devices' memory and the rights to access it: device work has access, host code has not
// (LOCKSTEP_EMULATED_HOST_ACCESS). An access by host code ends the process with SIGSEGV and a line on
// standard error.
//
// If the processor has memory protection keys, access rights are per thread. Otherwise page protection
// applies to the whole process: the memory is accessible from the beginning of device work until a host
// thread has waited for the device (deny_host_access()) and no device work runs. Some accesses by host code
// are then missed, but device work is never refused. Under sanitizers memory is not protected: it comes from
// the sanitizer's allocator, which checks bounds and lifetimes.
#pragma once

#include <cstddef>

namespace lockstep::emulator {

// Returns null if no memory is left. The contents are undefined. Only device work may access the memory.
void* allocate_device_memory(std::size_t bytes);
void free_device_memory(void* data, std::size_t bytes);

// While an object lives, this thread runs device work.
class DeviceWork {
 public:
  DeviceWork();
  ~DeviceWork();
  DeviceWork(const DeviceWork&) = delete;
  DeviceWork& operator=(const DeviceWork&) = delete;

 private:
  int before_ = 0;
};

// While an object lives, this thread runs host code within device work.
class HostCode {
 public:
  HostCode();
  ~HostCode();
  HostCode(const HostCode&) = delete;
  HostCode& operator=(const HostCode&) = delete;

 private:
  int before_ = 0;
};

// Called after a host thread has waited for the device: protects memory that is accessible to the whole
// process.
void deny_host_access();

}  // namespace lockstep::emulator
