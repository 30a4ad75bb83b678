#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes Fashion-MNIST as large PNG images, FOLDER/train/CLASS/N.png and FOLDER/test/CLASS/N.png: like
photographs, they are many times larger than a network's input, and expensive to decode."""

import argparse
import gzip
import pathlib
import struct
import zlib

CLASSES = ["t-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle_boot"]
SIDE = 28


def png(pixels, factor):
    """A grayscale image of SIDE x SIDE bytes, each enlarged to factor x factor."""
    rows = (b"".join(bytes([value]) * factor for value in pixels[at:at + SIDE]) for at in range(0, len(pixels), SIDE))
    raw = b"".join((b"\0" + row) * factor for row in rows)

    def chunk(name, content):
        return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))
    header = struct.pack(">2I5B", SIDE * factor, SIDE * factor, 8, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(raw, 1)) + chunk(b"IEND", b"")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--source", type=pathlib.Path, default="/usr/share/datasets/fashion-mnist")
    parser.add_argument("--train", type=int, default=2000, help="training images")
    parser.add_argument("--test", type=int, default=100, help="test images")
    parser.add_argument("--factor", type=int, default=16, help="pixels of the side for each of the 28")
    options = parser.parse_args()
    for split, prefix, count in (("train", "train", options.train), ("test", "t10k", options.test)):
        with gzip.open(options.source / f"{prefix}-images-idx3-ubyte.gz") as images, \
                gzip.open(options.source / f"{prefix}-labels-idx1-ubyte.gz") as labels:
            images.read(16)
            labels.read(8)
            for number, label in enumerate(labels.read(count)):
                folder = options.folder / split / CLASSES[label]
                folder.mkdir(parents=True, exist_ok=True)
                (folder / f"{number:05}.png").write_bytes(png(images.read(SIDE * SIDE), options.factor))


if __name__ == "__main__":
    main()
