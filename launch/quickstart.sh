#!/usr/bin/env bash
# From a fresh Debian 12 to a trained network: installs missing packages, builds, and trains a convolutional
# network on Fashion-MNIST with two ranks. Arguments are passed to `lockstep train`, e.g. --set
# train.epochs=1.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh"

cmake --preset cpu -DLOCKSTEP_TESTS=OFF -DCMAKE_UNITY_BUILD=ON >/dev/null
echo "Building with $jobs cores, about $(((450 / jobs + 59) / 60)) min the first time; then training, about 1 min"
cmake --build --preset cpu --target lockstep
exec build/cpu/bin/lockstep train fashion_mnist_cnn --ranks 2 "$@"
