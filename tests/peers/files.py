# SPDX-License-Identifier: Apache-2.0
"""The files the two programs exchange: samples as IDX, weights as safetensors. Written by hand, so that the
check needs PyTorch and numpy only."""

import json
import struct

import numpy as np

TYPES = {"F32": np.float32, "I64": np.int64}


def write_samples(folder, prefix, images, labels):
    """images: uint8 [N, H, W, C]."""
    for kind, array in ((f"images-idx{images.ndim}", images), ("labels-idx1", labels)):
        with open(folder / f"{prefix}-{kind}-ubyte", "wb") as file:
            file.write(struct.pack(f">I{array.ndim}I", 0x800 + array.ndim, *array.shape) + array.tobytes())


def write_safetensors(path, tensors, metadata=None):
    header, offset, data = {"__metadata__": metadata} if metadata else {}, 0, []
    for name, array in tensors.items():
        kind = next(kind for kind, dtype in TYPES.items() if array.dtype == dtype)
        header[name] = {"dtype": kind, "shape": list(array.shape), "data_offsets": [offset, offset + array.nbytes]}
        offset += array.nbytes
        data.append(array.tobytes())
    text = json.dumps(header).encode()
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + b"".join(data))


def read_safetensors(path):
    blob = path.read_bytes()
    (length,) = struct.unpack("<Q", blob[:8])
    header = json.loads(blob[8 : 8 + length])
    header.pop("__metadata__", None)
    tensors = {}
    for name, entry in header.items():
        begin, end = (8 + length + offset for offset in entry["data_offsets"])
        tensors[name] = np.frombuffer(blob[begin:end], TYPES[entry["dtype"]]).reshape(entry["shape"]).copy()
    return tensors
