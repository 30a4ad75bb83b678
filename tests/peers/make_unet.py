#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes tests/peers/golden/unet: a U-Net in PyTorch, for tests/launch/program/segmentation_program_test.cpp.

    python tests/peers/make_unet.py

Needs torch and numpy. samples.json has images of 16x16 and masks, start.safetensors PyTorch's initial weights, and
losses.json the loss of each epoch, and the loss, accuracy and IoU of the test images. Some pixels have the value 255
and are ignored. The order of the samples is that of data/sample_order.cpp.
"""

import json
import pathlib

import numpy as np
import torch

import files
import make_dense_binary

FOLDER = pathlib.Path(__file__).parent / "golden" / "unet"
SIDE, CLASSES, TRAIN, TEST, IGNORED = 16, 3, 24, 8, 255
SEED, BATCH, EPOCHS, RATE, WIDTH, DEPTH = 1, 6, 24, 0.05, 4, 2


class DoubleConvolution(torch.nn.Module):
    def __init__(self, inputs, channels):
        super().__init__()
        self.conv1 = torch.nn.Conv2d(inputs, channels, 3, padding=1, bias=False)
        self.bn1 = torch.nn.BatchNorm2d(channels)
        self.conv2 = torch.nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.bn2 = torch.nn.BatchNorm2d(channels)

    def forward(self, x):
        return torch.relu(self.bn2(self.conv2(torch.relu(self.bn1(self.conv1(x))))))


class Unet(torch.nn.Module):
    """models/networks/unet.cpp"""

    def __init__(self, inputs, classes, width=WIDTH, depth=DEPTH):
        super().__init__()
        self.depth, channels = depth, width
        for level in range(1, depth + 1):
            self.add_module(f"down{level}", DoubleConvolution(inputs, channels))
            inputs, channels = channels, 2 * channels
        self.bottom = DoubleConvolution(inputs, channels)
        for level in range(depth, 0, -1):
            channels //= 2
            self.add_module(f"up{level}", DoubleConvolution(3 * channels, channels))
        self.head = torch.nn.Conv2d(width, classes, 1)

    def forward(self, x):
        skips = []
        for level in range(1, self.depth + 1):
            x = self.get_submodule(f"down{level}")(x)
            skips.append(x)
            x = torch.nn.functional.max_pool2d(x, 2)
        x = self.bottom(x)
        for level in range(self.depth, 0, -1):
            x = torch.nn.functional.interpolate(x, scale_factor=2)
            x = self.get_submodule(f"up{level}")(torch.cat((skips[level - 1], x), 1))
        return self.head(x)


def samples():
    """Bright squares of class 1 and dark ones of class 2 on gray noise; the outline of an image is ignored."""
    random = np.random.default_rng(SEED)
    images = random.integers(96, 160, (TRAIN + TEST, SIDE, SIDE, 3))
    masks = np.zeros((TRAIN + TEST, SIDE, SIDE), np.int64)
    for image, mask in zip(images, masks):
        for label, shift in ((1, 90), (2, -90)):
            y, x = random.integers(0, SIDE - 5, 2)
            image[y:y + 5, x:x + 5] += shift * (mask[y:y + 5, x:x + 5, None] == 0)
            mask[y:y + 5, x:x + 5] = np.where(mask[y:y + 5, x:x + 5] == 0, label, mask[y:y + 5, x:x + 5])
        if random.integers(0, 2) == 0:
            mask[:2] = IGNORED
    return images.clip(0, 255).astype(np.uint8), masks


def main():
    images, masks = samples()
    FOLDER.mkdir(exist_ok=True)
    (FOLDER / "samples.json").write_text(json.dumps(
        {"images": images.reshape(TRAIN + TEST, -1).tolist(), "masks": masks.reshape(TRAIN + TEST, -1).tolist()},
        separators=(",", ":")) + "\n")
    pixels = torch.from_numpy(images).permute(0, 3, 1, 2).float() / 255
    labels = torch.from_numpy(masks)
    torch.manual_seed(SEED)
    model = Unet(3, CLASSES)
    files.write_safetensors(FOLDER / "start.safetensors",
                            {name: tensor.numpy().copy() for name, tensor in model.state_dict().items()})
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE, momentum=0.9)
    cross_entropy = torch.nn.CrossEntropyLoss(ignore_index=IGNORED)
    result = {"pytorch": torch.__version__, "loss": []}
    for epoch in range(EPOCHS):
        model.train()
        order, total = make_dense_binary.sample_order(TRAIN, SEED, epoch), 0.0
        for begin in range(0, TRAIN, BATCH):
            batch = order[begin:begin + BATCH]
            logits = model(pixels[batch])
            loss = sum(cross_entropy(logits[i:i + 1], labels[[sample]]) for i, sample in enumerate(batch)) / BATCH
            total += loss.item() * (labels[batch] != IGNORED).sum().item()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        result["loss"].append(total / (labels[:TRAIN] != IGNORED).sum().item())
    model.eval()
    with torch.no_grad():
        logits = model(pixels[TRAIN:])
    truth, found = labels[TRAIN:], logits.argmax(1)
    counted = truth != IGNORED
    result["test_loss"] = cross_entropy(logits, truth).item()
    result["test_accuracy"] = (found == truth)[counted].float().mean().item()
    result["iou_by_class"] = [((found == k) & (truth == k)).sum().item() /
                              (((found == k) | (truth == k)) & counted).sum().item() for k in range(CLASSES)]
    (FOLDER / "losses.json").write_text(json.dumps(result, indent=1) + "\n")
    print(result)


if __name__ == "__main__":
    main()
