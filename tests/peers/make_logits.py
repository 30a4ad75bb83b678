#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes tests/peers/golden/torchvision_logits.safetensors: logits of torchvision's networks for a batch of
images, in evaluation mode, for torchvision_test.cpp.

    python tests/peers/make_logits.py

Needs torch, torchvision and numpy. For each network NAME the file has the logits [batch, classes], computed
in fp64, and NAME.error, the error of PyTorch's logits in fp32 (largest difference over largest logit). The
metadata has the state dict: names, types and shapes in order. Weights and images are not in the file:
golden_cases.py and golden_formulas.h compute them by the same formulas."""

import json
import pathlib

import numpy as np
import torch
import torchvision

import files
import golden_cases

CASE = golden_cases.Case("torchvision", "", {}, batch=8, image=72)  # large enough for torchvision's first layers
NETWORKS = ("resnet18", "resnet34", "resnet50", "mobilenet_v2")


def logits_of(model):
    """(logits, error, description of the state dict), with the weights of golden_cases.py."""
    described, values = [], {}
    for name, tensor in model.state_dict().items():
        floating = tensor.is_floating_point()
        described.append([name, "F32" if floating else "I64", list(tensor.shape)])
        if floating:
            values[name] = torch.from_numpy(golden_cases.start(name, tuple(tensor.shape)))
    model.load_state_dict(values, strict=False)
    model.eval()
    images, _ = golden_cases.samples(CASE, "t10k")
    pixels = (torch.from_numpy(images).double().permute(0, 3, 1, 2) / 255 - golden_cases.MEAN) / golden_cases.DEVIATION
    with torch.no_grad():
        in_fp32 = model(pixels.float()).double().numpy()
        logits = model.double()(pixels).numpy()
    error = np.abs(in_fp32 - logits).max() / np.abs(logits).max()
    return logits.astype(np.float32), np.array([error], np.float32), described


def main():
    tensors = {}
    metadata = {
        "made by": f"tests/peers/make_logits.py, PyTorch {torch.__version__}, torchvision {torchvision.__version__}",
        "case": json.dumps({"batch": CASE.batch, "image": CASE.image, "channels": CASE.channels}),
    }
    for name in NETWORKS:
        model = getattr(torchvision.models, name)(num_classes=golden_cases.CLASSES)
        tensors[name], tensors[f"{name}.error"], described = logits_of(model)
        metadata[name] = json.dumps(described, separators=(",", ":"))
        print(f"{name:14} logits from {tensors[name].min():.3g} to {tensors[name].max():.3g}, "
              f"PyTorch's error {tensors[f'{name}.error'][0]:.1e}")
    path = pathlib.Path(__file__).parent / "golden/torchvision_logits.safetensors"
    files.write_safetensors(path, tensors, metadata)


if __name__ == "__main__":
    main()
