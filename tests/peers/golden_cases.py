# SPDX-License-Identifier: Apache-2.0
"""Cases of the golden files, and the formulas of their inputs, which golden_formulas.h implements, too.

Random numbers are those of core/random.h: Philox4x32-10, keyed by a seed and a name, read at an index.
"""

import dataclasses
import math

import numpy as np

CLASSES = 10
MEAN, DEVIATION = 0.3, 0.25
SAMPLES_SEED, WEIGHTS_SEED, SKETCH_SEED = 1, 2, 3
SKETCH_ELEMENTS = 512  # longer tensors are stored as a sketch of this many numbers


@dataclasses.dataclass
class Case:
    name: str
    network: str
    optimizer: dict
    batch: int = 16
    image: int = 32
    channels: int = 3
    batch_norm: bool = True  # cnn only
    label_smoothing: float = 0.0
    frozen: tuple = ()  # prefixes, as in model.freeze
    steps: int = 1


def sgd(rate, **others):
    return {"name": "sgd", "learning_rate": rate, "momentum": 0.9, "weight_decay": 0.05, **others}


# Deep networks take one step, because later steps amplify its rounding errors.
CASES = [
    Case("cnn_sgd", "cnn", sgd(0.003), image=12, channels=1, steps=4),
    Case("cnn_nesterov", "cnn", sgd(0.003, nesterov=True, decay_norm_and_bias=False), image=12, channels=1, steps=4),
    Case("cnn_adamw", "cnn", {"name": "adamw", "learning_rate": 0.001, "beta1": 0.8, "beta2": 0.99, "epsilon": 1e-4,
                              "weight_decay": 0.5}, image=12, channels=1, steps=4),
    Case("cnn_lars", "cnn", {"name": "lars", "learning_rate": 0.5, "momentum": 0.9, "weight_decay": 0.05,
                             "trust_coefficient": 0.01}, image=12, channels=1, steps=4),
    # Without batch norm, the result is the same for any number of ranks.
    Case("biased_cnn_sgd", "cnn", sgd(0.02), image=12, channels=1, batch_norm=False, label_smoothing=0.1, steps=4),
    Case("resnet20_sgd", "resnet20", sgd(0.02)),
    # Frozen layers before all trained layers, and between them, where gradients pass through.
    Case("resnet20_frozen", "resnet20", sgd(0.02), frozen=("conv1", "bn1", "layer1", "layer2.1.bn1", "layer3.0")),
    Case("mobilenet_v2_sgd", "mobilenet_v2", sgd(0.02)),
    Case("resnet50_sgd", "resnet50", sgd(0.02)),
]


def name_hash(name):
    """FNV-1a, 64 bits."""
    value = 0xCBF29CE484222325
    for byte in name.encode():
        value = (value ^ byte) * 0x100000001B3 % 2**64
    return value


def philox(words, keys):
    """Ten rounds of Philox (core/random.h). words: four uint64 arrays."""
    low, shift = np.uint64(0xFFFFFFFF), np.uint64(32)
    for _ in range(10):
        first, second = np.uint64(0xD2511F53) * words[0], np.uint64(0xCD9E8D57) * words[2]
        words = [(second >> shift) ^ words[1] ^ np.uint64(keys[0]), second & low,
                 (first >> shift) ^ words[3] ^ np.uint64(keys[1]), first & low]
        keys = [(keys[0] + 0x9E3779B9) % 2**32, (keys[1] + 0xBB67AE85) % 2**32]
    return words


def random_bits(seed, name, count):
    """uint32 [count]"""
    low = np.uint64(0xFFFFFFFF)
    shift = np.uint64(32)
    blocks = np.arange((count + 3) // 4, dtype=np.uint64)
    purpose = name_hash(name)
    words = [blocks & low, blocks >> shift, np.full_like(blocks, purpose & 0xFFFFFFFF),
             np.full_like(blocks, purpose >> 32)]
    words = philox(words, [seed & 0xFFFFFFFF, seed >> 32])
    return np.stack(words, axis=1).ravel()[:count].astype(np.uint32)


def bounds(name, shape):
    """(low, high) of a tensor's initial values."""
    if name.endswith("running_var"):
        return 0.5, 1.5
    if len(shape) > 1:
        reach = math.sqrt(6 * shape[0] / math.prod(shape))
        return -reach, reach
    return (0.7, 1.3) if name.endswith("weight") else (-0.1, 0.1)


def start(name, shape):
    low, high = (np.float32(bound) for bound in bounds(name, shape))
    uniform = (random_bits(WEIGHTS_SEED, name, math.prod(shape)) >> 8).astype(np.float32) * np.float32(2**-24)
    return (low + (high - low) * uniform).reshape(shape)


def samples(case, split):
    """Images uint8 [N, H, W, C], stripes of the class plus noise, and labels uint8 [N]."""
    labels = np.arange(case.batch) % CLASSES
    side = np.arange(case.image)
    n, y, x, c = np.meshgrid(labels, side, side, np.arange(case.channels), indexing="ij")
    stripes = (x * (1 + n % 5) + y * (1 + n // 5) + 5 * c) * 8 % 192
    noise = random_bits(SAMPLES_SEED, split, n.size).reshape(n.shape) & 63
    return (stripes + noise).astype(np.uint8), labels.astype(np.uint8)


def sketch(name, array):
    """A count sketch (Charikar, Chen, Farach-Colton, 2002): each element is added with a random sign to a
    random element of the sketch. Distances and products of sketches equal those of the tensors
    within about 6 %."""
    if array.size <= SKETCH_ELEMENTS:
        return array.ravel()
    bits = random_bits(SKETCH_SEED, name, array.size)
    signed = np.where(bits & SKETCH_ELEMENTS, -1.0, 1.0) * array.ravel()
    return np.bincount(bits % SKETCH_ELEMENTS, weights=signed, minlength=SKETCH_ELEMENTS)
