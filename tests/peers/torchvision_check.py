#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares the logits of `lockstep predict --logits` from a file of torchvision's weights with torchvision's.

Networks have random weights and running statistics, and are saved as PyTorch saves them: in fp32, fp16 or
bf16, with or without DistributedDataParallel's prefix "module.". The largest |difference| of a logit over the
largest |logit| is at most 1e-5; for weights of 16 bits torchvision has the rounded weights. Without PyTorch
and torchvision the exit code is 77: skipped.
"""

import argparse
import dataclasses
import json
import pathlib
import subprocess
import sys
import tempfile

SKIPPED = 77
try:
    import numpy as np
    import torch
    import torchvision
except ImportError as missing:
    print(f"Skipped: {missing}. LOCKSTEP_PEER_PYTHON can name a Python that has torch, torchvision and numpy.")
    sys.exit(SKIPPED)

import files

TOLERANCE = 1e-5
CLASSES, IMAGES = 12, 6
MEAN, DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


@dataclasses.dataclass
class Case:
    network: str
    image: int = 96
    type: torch.dtype = torch.float32
    prefix: str = ""


CASES = [Case("resnet18"), Case("resnet18", type=torch.float16), Case("resnet18", type=torch.bfloat16, prefix="module."),
         Case("resnet34", prefix="module."), Case("resnet50"), Case("mobilenet_v2"), Case("vgg11_bn", image=224)]


def random_network(case):
    torch.manual_seed(1)
    model = getattr(torchvision.models, case.network)(num_classes=CLASSES).eval()
    with torch.no_grad():
        for name, tensor in model.state_dict().items():
            if name.endswith("running_mean"):
                tensor.normal_(0, 0.2)
            elif name.endswith("running_var"):
                tensor.uniform_(0.5, 1.5)
            elif tensor.is_floating_point():
                tensor.copy_(tensor.to(case.type).to(tensor.dtype))
    return model


def stored(name, tensor, case):
    statistic = name.endswith(("running_mean", "running_var", "num_batches_tracked"))
    return tensor if statistic else tensor.to(case.type)


def theirs(model, images):
    mean, deviation = (torch.tensor(values).view(1, 3, 1, 1) for values in (MEAN, DEVIATION))
    pixels = torch.from_numpy(images).permute(0, 3, 1, 2).float() / 255
    with torch.no_grad():
        return model((pixels - mean) / deviation).numpy()


def ours(lockstep, case, weights, folder):
    """Logits [images, classes] of `lockstep predict`."""
    config = folder / "config.toml"
    config.write_text(f'[model]\nname = "{case.network}"\n'
                      f'[data]\nformat = "synthetic"\npath = "."\nmean = {list(MEAN)}\ndeviation = {list(DEVIATION)}\n'
                      f"synthetic.height = {case.image}\nsynthetic.width = {case.image}\nsynthetic.channels = 3\n"
                      f"synthetic.classes = {CLASSES}\n")
    command = [lockstep, "predict", weights, folder / "images", "--config", config, "--logits", "--top", str(CLASSES),
               "--set", "world.device=cpu"]
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{case}: exit code {done.returncode}\n{done.stderr}")
    logits = np.empty((IMAGES, CLASSES), np.float32)
    for i, line in enumerate(done.stdout.splitlines()):
        for answer in json.loads(line)["top"]:
            logits[i, answer["label"]] = answer["logit"]
    return logits


def check(lockstep, case):
    model = random_network(case)
    random = np.random.default_rng(2)
    images = random.integers(0, 256, (IMAGES, case.image, case.image, 3), np.uint8)
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        (folder / "images").mkdir()
        for i, image in enumerate(images):
            files.write_png(folder / "images" / f"{i}.png", image)
        weights = folder / "weights.safetensors"
        files.write_torch_safetensors(weights, {case.prefix + name: stored(name, tensor, case)
                                                for name, tensor in model.state_dict().items()})
        found = ours(lockstep, case, weights, folder)
    expected = theirs(model, images)
    error = float(np.abs(found - expected).max() / np.abs(expected).max())
    print(f"{case.network:14} {str(case.type):15} {case.prefix:8} {error:.1e}", flush=True)
    return error <= TOLERANCE


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lockstep", required=True, type=pathlib.Path)
    options = parser.parse_args()
    print(f"PyTorch {torch.__version__}, torchvision {torchvision.__version__}")
    right = [check(options.lockstep, case) for case in CASES]
    sys.exit(0 if all(right) else 1)


if __name__ == "__main__":
    main()
