// SPDX-License-Identifier: Apache-2.0
//
// The addresses of all devices' memory, and who may touch it: device work may, host code may not
// (LOCKSTEP_EMULATED_HOST_ACCESS). Host code that does ends the process with SIGSEGV and a line on standard
// error.
//
// Where the processor has memory protection keys, access rights are per thread. Elsewhere the pages'
// protection holds for the whole process: the memory is open from the beginning of device work until a host
// thread has waited for the device (deny_host_access()) and no device work runs. So host code may go unseen,
// and device work is never refused. A sanitizer's memory is not protected: it comes from the sanitizer's
// allocator, which knows its bounds and its end.
#pragma once

#include <cstddef>

namespace lockstep::emulator {

// Null when there is none left. Whatever it holds; device work may write it.
void* allocate_device_memory(std::size_t bytes);
void free_device_memory(void* data, std::size_t bytes);

// While it lives, this thread does a device's work.
class DeviceWork {
 public:
  DeviceWork();
  ~DeviceWork();
  DeviceWork(const DeviceWork&) = delete;
  DeviceWork& operator=(const DeviceWork&) = delete;

 private:
  int before_ = 0;
};

// While it lives, this thread runs host code in the middle of a device's work.
class HostCode {
 public:
  HostCode();
  ~HostCode();
  HostCode(const HostCode&) = delete;
  HostCode& operator=(const HostCode&) = delete;

 private:
  int before_ = 0;
};

// After a host thread has waited for the device: closes memory that is open to the whole process.
void deny_host_access();

}  // namespace lockstep::emulator
