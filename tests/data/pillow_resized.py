#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes pillow_resized.h, for resample_test.cpp: images that Pillow resized with its BILINEAR filter. Needs
Pillow; the header is committed."""

import pathlib

import PIL
from PIL import Image

# Height, width and channels of the image; the box: left, top, right, bottom; height and width of the result.
CASES = [
    ((37, 53, 3), (0, 0, 53, 37), (16, 16)),  # smaller
    ((9, 7, 3), (0, 0, 7, 9), (13, 20)),  # larger
    ((24, 31, 1), (0, 0, 31, 24), (24, 10)),  # in one direction
    ((40, 30, 3), (3.25, 8.5, 27.75, 31), (12, 9)),  # part of it
    ((200, 150, 1), (20, 10, 120, 190), (7, 5)),  # many pixels into one
    ((5, 5, 3), (1, 2, 2.5, 3), (6, 6)),  # few into many
]


def pixel(y, x, channel):
    return (7 * x + 13 * y + 50 * channel + 5 * (x * y % 31) + 37 * (x ^ y)) % 256


def resized(shape, box, size):
    height, width, channels = shape
    data = bytes(pixel(y, x, c) for y in range(height) for x in range(width) for c in range(channels))
    image = Image.frombytes("RGB" if channels == 3 else "L", (width, height), data)
    return image.resize((size[1], size[0]), Image.BILINEAR, box=box).tobytes().hex()


def text():
    lines = [
        "// SPDX-License-Identifier: Apache-2.0", "//",
        f"// Written by pillow_resized.py with Pillow {PIL.__version__}.", "#pragma once", "",
        '#include "data/images/resample.h"', "", "namespace lockstep {", "",
        "struct PillowCase {", "  ImageShape image;", "  ImageBox box;", "  ImageShape resized;", "  const char* hex;",
        "};", "", "inline constexpr PillowCase kPillowCases[] = {",
    ]
    for shape, (left, top, right, bottom), size in CASES:
        digits = resized(shape, (left, top, right, bottom), size)
        lines.append(f"    {{{{{shape[0]}, {shape[1]}, {shape[2]}}},")
        lines.append(f"     {{{top}, {left}, {bottom - top}, {right - left}}},")
        lines.append(f"     {{{size[0]}, {size[1]}, {shape[2]}}},")
        pieces = [digits[at:at + 96] for at in range(0, len(digits), 96)]
        lines += [f'     "{piece}"' for piece in pieces[:-1]] + [f'     "{pieces[-1]}"}},']
    return "\n".join([*lines, "};", "", "}  // namespace lockstep", ""])


if __name__ == "__main__":
    pathlib.Path(__file__).with_name("pillow_resized.h").write_text(text())
