# SPDX-License-Identifier: Apache-2.0
"""A dataset as small as a test of something else than learning needs: in the format of Fashion-MNIST, noise with a bright
row that tells the class."""

import random
import struct

CLASSES = 10


def write_images(folder, train, test, side=28):
    """Writes that many images of training and test into the folder; gives the settings that train with them."""
    folder.mkdir(parents=True, exist_ok=True)
    dice = random.Random(7)
    for prefix, count in (("train", train), ("t10k", test)):
        labels = bytes(number % CLASSES for number in range(count))
        pixels = bytearray(dice.randbytes(count * side * side))
        for number, label in enumerate(labels):
            begin = (number * side + 2 * label) * side
            pixels[begin:begin + side] = b"\xff" * side
        (folder / f"{prefix}-images-idx3-ubyte").write_bytes(struct.pack(">4I", 0x803, count, side, side) + pixels)
        (folder / f"{prefix}-labels-idx1-ubyte").write_bytes(struct.pack(">2I", 0x801, count) + labels)
    return [f"data.path=\"{folder}\""]
