#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Trains the preset shapes_unet in PyTorch, on the same images, and prints the IoU of the test images after each epoch.

    python tests/peers/train_shapes_unet.py [SEED ..]

To compare it with Lockstep: lockstep train shapes_unet --ranks 1 --set train.batch=32 --set train.seed=SEED. Initial
weights and the order of samples differ, so results agree within seeds. Needs torch and numpy.
"""

import pathlib
import sys
import time
import tomllib

import numpy as np
import torch

import golden_cases
import make_unet

PRESET = pathlib.Path(__file__).parents[2] / "launch" / "presets" / "shapes_unet.toml"
SIDE, KINDS, BATCH = 64, 3, 32


def key_for(purpose):
    name, derive = golden_cases.name_hash(purpose), 0x6B657931
    words = golden_cases.philox([np.full(1, word, np.uint64) for word in (derive, derive, name & 0xFFFFFFFF, name >> 32)], [0, 0])
    return [int(words[0][0]), int(words[1][0])]


def shapes(split, count):
    """uint8 [count, 64, 64, 3] and masks [count, 64, 64]."""
    key = key_for(f"shapes {split}")

    def words(index, blocks):
        blocks = np.asarray(blocks, np.uint64)
        zero = np.zeros_like(blocks)
        return np.stack(golden_cases.philox([blocks, zero, zero + np.uint64(index), zero], key), 1).astype(np.int64)

    rows, columns = np.mgrid[:SIDE, :SIDE]
    images, masks = np.empty((count, SIDE, SIDE, 3), np.uint8), np.zeros((count, SIDE, SIDE), np.uint8)
    noise_blocks = 16 + np.arange(SIDE * SIDE * 3 // 16)
    for index in range(count):
        scene = words(index, range(5))
        image = np.tile(scene[0, :3] % 96, (SIDE, SIDE, 1))
        for i in range(1 + scene[0, 3] % 2):
            kind, place, colour = 1 + scene[1 + 2 * i, 0] % KINDS, scene[1 + 2 * i], scene[2 + 2 * i]
            radius = 8 + place[1] % 8
            right = columns - radius - place[2] % (SIDE - 2 * radius)
            down = rows - radius - place[3] % (SIDE - 2 * radius)
            covered = (right**2 + down**2 <= radius**2 if kind == 1 else
                       np.maximum(abs(right), abs(down)) <= radius - radius // 8 if kind == 2 else
                       (down <= radius) & (2 * abs(right) <= down + radius))
            masks[index][covered] = kind
            image[covered] = 160 + colour[:3] % 96
        noise = words(index, noise_blocks).astype("<u4").view(np.uint8).reshape(SIDE, SIDE, 3).astype(np.int64)
        images[index] = (image + noise * 96 // 256 - 48).clip(0, 255)
    return images, masks


def train(seed, settings, data):
    (pixels, labels), (test_pixels, test_labels) = data
    torch.manual_seed(seed)
    model = make_unet.Unet(3, 1 + KINDS, int(settings["model"]["unet"]["width"]), int(settings["model"]["unet"]["depth"]))
    for layer in model.modules():
        if isinstance(layer, torch.nn.Conv2d) and layer.bias is None:
            torch.nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
    epochs, steps = settings["train"]["epochs"], len(pixels) // BATCH
    optimizer = torch.optim.AdamW(model.parameters(), lr=settings["optimizer"]["learning_rate"],
                                  weight_decay=settings["optimizer"]["weight_decay"])
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs * steps)
    for epoch in range(epochs):
        model.train()
        begin, order = time.monotonic(), torch.randperm(len(pixels))
        for step in range(steps):
            batch = order[step * BATCH:(step + 1) * BATCH]
            loss = torch.nn.functional.cross_entropy(model(pixels[batch].float() / 255), labels[batch].long())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
        seconds = time.monotonic() - begin
        model.eval()
        with torch.no_grad():
            found = torch.cat([model(part.float() / 255).argmax(1) for part in test_pixels.split(100)])
        iou = [((found == k) & (test_labels == k)).sum().item() / ((found == k) | (test_labels == k)).sum().item()
               for k in range(1 + KINDS)]
        print(f"seed {seed} epoch {epoch + 1}: loss {loss.item():.4f}, mean IoU {sum(iou) / len(iou):.4f}, {seconds:.1f} s",
              flush=True)


def main():
    settings = tomllib.loads(PRESET.read_text())
    data = []
    for split, count in (("train", 4000), ("test", 500)):
        images, masks = shapes(split, count)
        data.append((torch.from_numpy(images).permute(0, 3, 1, 2).contiguous(), torch.from_numpy(masks)))
    for seed in [int(word) for word in sys.argv[1:]] or [1]:
        train(seed, settings, data)


if __name__ == "__main__":
    main()
