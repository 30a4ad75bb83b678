#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Trains resnet20 on CIFAR-10 with Lockstep and with PyTorch, from the same initial weights and with the
recipe of the preset cifar10_resnet20. Writes the test accuracy after each epoch, and a chart. Each trains in
one process, one after the other. Needs PyTorch, numpy and Pillow; --data is the folder of the images,
train/CLASS/*.jpg and test/CLASS/*.jpg."""

import argparse
import json
import math
import pathlib
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path[:0] = [str(ROOT / "benchmarks"), str(ROOT / "tests/peers")]

MEAN, DEVIATION = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)
BATCH, PADDING, RATE, MOMENTUM, DECAY, WARMUP_EPOCHS = 128, 4, 0.1, 0.9, 1e-4, 1

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--data", type=pathlib.Path, required=True)
parser.add_argument("--bin", default=str(ROOT / "build/cpu/bin"), help="folder of the built programs")
parser.add_argument("--epochs", type=int, default=10)
parser.add_argument("--seed", type=int, default=0, help="seed of the initial weights and of all random draws")
parser.add_argument("--threads", type=int, default=2)
parser.add_argument("--json", type=pathlib.Path, required=True, help="write the result to this file, and a chart (.svg) beside it")
options = parser.parse_args()

import numpy  # after --help
import torch
from PIL import Image

import accuracy_chart
import files
import models
import record
import suite


def read_images(split):
    """uint8 [N, 3, H, W] and labels, in the order of classes."""
    images, labels = [], []
    for label, folder in enumerate(sorted(path for path in (options.data / split).iterdir() if path.is_dir())):
        for file in sorted(folder.iterdir()):
            with Image.open(file) as image:
                images.append(numpy.asarray(image.convert("RGB")))
            labels.append(label)
    return torch.from_numpy(numpy.stack(images)).permute(0, 3, 1, 2).contiguous(), torch.tensor(labels)


def rate_at(step, steps_per_epoch):
    """Learning rate as in models/schedule.h: linear warm-up, then half a cosine."""
    warmup, total = WARMUP_EPOCHS * steps_per_epoch, options.epochs * steps_per_epoch
    if step < warmup:
        return RATE * (step + 1) / warmup
    return RATE * (1 + math.cos(math.pi * (step - warmup) / (total - warmup))) / 2


def normalized(images):
    mean, deviation = (torch.tensor(values).view(1, 3, 1, 1) for values in (MEAN, DEVIATION))
    return (images.float() / 255 - mean) / deviation


def augmented(images, random):
    """torchvision's RandomCrop(32, padding=4) and RandomHorizontalFlip(), drawn for each image separately."""
    side = images.shape[-1]
    padded = torch.nn.functional.pad(images, (PADDING,) * 4)
    result = torch.empty_like(images)
    offsets = torch.randint(0, 2 * PADDING + 1, (len(images), 2), generator=random).tolist()
    flips = torch.rand(len(images), generator=random) < 0.5
    for i, (top, left) in enumerate(offsets):
        result[i] = padded[i, :, top:top + side, left:left + side]
    return torch.where(flips.view(-1, 1, 1, 1), result.flip(-1), result)


def train_pytorch(model):
    torch.set_num_threads(options.threads)
    train, test = read_images("train"), read_images("test")
    random = torch.Generator().manual_seed(options.seed)
    optimizer = torch.optim.SGD(model.parameters(), RATE, momentum=MOMENTUM, nesterov=True, weight_decay=DECAY)
    loss_function = torch.nn.CrossEntropyLoss()
    steps = len(train[1]) // BATCH
    curve = []
    for epoch in range(options.epochs):
        began = time.monotonic()
        model.train()
        order = torch.randperm(len(train[1]), generator=random)
        for step in range(steps):
            chosen = order[step * BATCH:(step + 1) * BATCH]
            optimizer.param_groups[0]["lr"] = rate_at(epoch * steps + step, steps)
            optimizer.zero_grad()
            loss = loss_function(model(normalized(augmented(train[0][chosen], random))), train[1][chosen])
            loss.backward()
            optimizer.step()
        seconds = time.monotonic() - began
        model.eval()
        with torch.no_grad():
            right = sum(int((model(normalized(images)).argmax(1) == labels).sum())
                        for images, labels in zip(test[0].split(500), test[1].split(500)))
        curve.append({"accuracy": 100 * right / len(test[1]), "samples_per_second": steps * BATCH / seconds})
        print(f"PyTorch   epoch {epoch + 1:3}  {curve[-1]['accuracy']:.2f} %", flush=True)
    return curve


def train_lockstep(weights, folder):
    settings = [f'data.path="{options.data}"', f"train.epochs={options.epochs}", f"train.seed={options.seed}",
                f"train.threads={options.threads}", f'run.dir="{folder / "run"}"']
    done = suite.execute([f"{options.bin}/lockstep", "train", "cifar10_resnet20", "--init", str(weights),
                          *(part for setting in settings for part in ("--set", setting))])
    if done.status != "ok":
        sys.exit(f"{done.text}: {done.reason}\n{done.output}")
    lines = [json.loads(text) for text in (folder / "run/metrics.jsonl").read_text().splitlines()]
    curve = [{"accuracy": 100 * line["test_accuracy"], "samples_per_second": line["samples_per_second"]} for line in lines]
    print(f"Lockstep  epoch {len(curve):3}  {curve[-1]['accuracy']:.2f} %", flush=True)
    return curve


torch.manual_seed(options.seed)
model = models.build("resnet20")
with tempfile.TemporaryDirectory() as name:
    folder = pathlib.Path(name)
    initial = {key: value.numpy() for key, value in model.state_dict().items()}
    files.write_safetensors(folder / "initial.safetensors", initial)
    curves = {"Lockstep": train_lockstep(folder / "initial.safetensors", folder), "PyTorch": train_pytorch(model)}
last = {name: curve[-1]["accuracy"] for name, curve in curves.items()}
result = {"benchmark": "accuracy_beside_pytorch",
          **record.circumstances("benchmarks/peers/accuracy_beside_pytorch.py " + " ".join(sys.argv[1:]),
                                 f"{options.bin}/lockstep"),
          "pytorch": torch.__version__, "network": "resnet20", "batch": BATCH, "threads": options.threads,
          "points_apart": last["Lockstep"] - last["PyTorch"], "curves": curves}
record.write(options.json, result)
options.json.with_suffix(".svg").write_text(accuracy_chart.draw(result))
print(f"{last['Lockstep']:.2f} % beside PyTorch's {last['PyTorch']:.2f} %: {result['points_apart']:+.2f} points")
