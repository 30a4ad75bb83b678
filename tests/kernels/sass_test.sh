#!/usr/bin/env bash
# sass_test.sh CUOBJDUMP LIBRARY: checks that memory-bound kernels move 16 bytes per instruction. For every
# architecture in the library, some instantiation of each kernel must have 128-bit loads and, if it writes a
# tensor, 128-bit stores (other instantiations are for rows that are no multiples of 16 bytes). No kernel may
# spill registers to memory. Exit code 77 (skipped) without cuobjdump.
set -euo pipefail
cuobjdump=$1 library=$2
if ! command -v "$cuobjdump" >/dev/null; then
  echo "Skipped: cuobjdump is not installed; it is in the CUDA toolkit and in the Python packages" \
    "nvidia-cuda-cuobjdump and nvidia-cuda-nvdisasm"
  exit 77
fi
PATH=$PATH:$(dirname "$cuobjdump")  # cuobjdump calls nvdisasm in the same folder

# kernel:accesses of tensors that must be 128-bit
readonly kernels="unary_kernel:both binary_kernel:both all_finite_kernel:loads dropout_kernel:both
update_kernel:both squared_norms_kernel:loads moments_kernel:loads normalize_kernel:both
gradient_sums_kernel:loads input_gradient_kernel:both max_forward_kernel:both max_backward_kernel:both
average_forward_kernel:both average_backward_kernel:both image_input_kernel:both bias_activation_kernel:both
channel_sums_kernel:loads restore_kernel:both augmented_input_kernel:stores mixed_input_kernel:stores
image_gather_kernel:both"

"$cuobjdump" -sass "$library" | awk -v kernels="$kernels" '
  /^[ \t]*arch = / { arch = $3; architectures[arch] = 1 }
  /Function :/ { kernel = $3; sub(/_kernel.*/, "_kernel", kernel); sub(/.*[0-9]/, "", kernel) }
  /LDG\.E[.A-Z]*\.128/ { loads[kernel, arch] = 1 }
  /STG\.E[.A-Z]*\.128/ { stores[kernel, arch] = 1 }
  END {
    count = split(kernels, entries)
    for (arch in architectures) {
      for (i = 1; i <= count; ++i) {
        split(entries[i], entry, ":")
        checked = 1
        if (entry[2] != "stores" && !((entry[1], arch) in loads)) { print entry[1] " has no 128-bit loads for " arch; failed = 1 }
        if (entry[2] != "loads" && !((entry[1], arch) in stores)) {
          print entry[1] " has no 128-bit stores for " arch; failed = 1
        }
      }
    }
    if (!checked) { print "no machine code found"; failed = 1 }
    exit failed
  }'

"$cuobjdump" --dump-resource-usage "$library" 2>&1 | awk '
  /Function / { kernel = $2; sub(/:$/, "", kernel) }
  /STACK:/ {
    checked = 1
    if ($0 !~ /STACK:0 /) { print kernel " keeps registers in memory: " $0; failed = 1 }
  }
  END {
    if (!checked) { print "no resource usage found"; failed = 1 }
    exit failed
  }'
