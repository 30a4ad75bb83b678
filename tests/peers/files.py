# SPDX-License-Identifier: Apache-2.0
"""Reads and writes the files that Lockstep and PyTorch exchange: samples as IDX, weights as safetensors,
images as PNG. Implemented here so that the checks need only PyTorch and numpy."""

import json
import struct
import zlib

import numpy as np

TYPES = {"F32": np.float32, "I64": np.int64}


def write_samples(folder, prefix, images, labels):
    """images: uint8 [N, H, W, C]."""
    for kind, array in ((f"images-idx{images.ndim}", images), ("labels-idx1", labels)):
        with open(folder / f"{prefix}-{kind}-ubyte", "wb") as file:
            file.write(struct.pack(f">I{array.ndim}I", 0x800 + array.ndim, *array.shape) + array.tobytes())


def write_png(path, image):
    """image: uint8 [H, W, 3]."""
    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    height, width, _ = image.shape
    rows = b"".join(b"\0" + row.tobytes() for row in image)  # each unfiltered
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b""))


def write_safetensors(path, tensors, metadata=None):
    kinds = {name: next(kind for kind, dtype in TYPES.items() if array.dtype == dtype) for name, array in tensors.items()}
    write_arrays(path, {name: (kinds[name], array) for name, array in tensors.items()}, metadata)


def write_torch_safetensors(path, tensors):
    """Writes tensors of PyTorch, including bf16, which numpy does not have."""
    kinds = {"torch.float32": "F32", "torch.float16": "F16", "torch.int64": "I64"}
    arrays = {}
    for name, tensor in tensors.items():
        if str(tensor.dtype) == "torch.bfloat16":  # the upper half of fp32
            upper = tensor.float().numpy().view(np.uint32) >> 16
            arrays[name] = ("BF16", upper.astype(np.uint16))
        else:
            arrays[name] = (kinds[str(tensor.dtype)], tensor.numpy())
    write_arrays(path, arrays)


def write_arrays(path, arrays, metadata=None):
    """arrays: {name: (dtype in the file, array)}."""
    header, offset, data = {"__metadata__": metadata} if metadata else {}, 0, []
    for name, (kind, array) in arrays.items():
        header[name] = {"dtype": kind, "shape": list(array.shape), "data_offsets": [offset, offset + array.nbytes]}
        offset += array.nbytes
        data.append(array.tobytes())
    text = json.dumps(header).encode()
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + b"".join(data))


def read_header(blob):
    """(header, offset of the data)"""
    (length,) = struct.unpack("<Q", blob[:8])
    return json.loads(blob[8 : 8 + length]), 8 + length


def read_metadata(path):
    return read_header(path.read_bytes())[0].get("__metadata__", {})


def read_safetensors(path):
    blob = path.read_bytes()
    header, begin_of_data = read_header(blob)
    header.pop("__metadata__", None)
    tensors = {}
    for name, entry in header.items():
        begin, end = (begin_of_data + offset for offset in entry["data_offsets"])
        tensors[name] = np.frombuffer(blob[begin:end], TYPES[entry["dtype"]]).reshape(entry["shape"]).copy()
    return tensors
