#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes tests/peers/golden/dense_binary: the preset dense_binary in PyTorch, for tests/launch/program/layers_program_test.cpp.

    python tests/peers/make_dense_binary.py

Needs torch and numpy. start.safetensors has PyTorch's initial weights; losses.json the loss of each epoch on the
training and the validation samples, and the last accuracy. People and their order are those of
data/formats/drug_trial.cpp and data/sample_order.cpp.
"""

import json
import pathlib

import numpy as np
import torch

import files
import golden_cases

FOLDER = pathlib.Path(__file__).parent / "golden" / "dense_binary"
PEOPLE, TRAIN, CONTRADICTING = 2100, 1890, 50
SEED, BATCH, EPOCHS, L2, RATE = 1, 10, 20, 0.01, 0.001


def sample_order(size, seed, epoch):
    """data/sample_order.cpp"""
    half = np.uint64(max((int(size - 1).bit_length() + 1) // 2, 1))
    mask = (np.uint64(1) << half) - np.uint64(1)

    def encrypt(values):
        left, right = values >> half, values & mask
        for turn in range(6):
            words = golden_cases.philox([right, *np.array([turn, epoch, 0], np.uint64)], [seed, 0])
            left, right = right, left ^ (words[0] & mask)
        return left << half | right

    order = encrypt(np.arange(size, dtype=np.uint64))
    while (order >= size).any():
        order = np.where(order >= size, encrypt(order), order)
    return order.tolist()


def people():
    """Scaled ages and labels, in the order of the dataset."""
    bits = golden_cases.random_bits(0, "drug trial", PEOPLE)
    ages, labels = [], []
    for index in sample_order(PEOPLE, 0, 0):
        older, contradicts = index % 2 == 1, index // 2 < CONTRADICTING
        first, last = (65, 100) if older else (13, 64)
        ages.append(first + int(bits[index]) % (last - first + 1))
        labels.append(int(older != contradicts))
    scaled = (np.array(ages, np.float32) - np.float32(13)) / np.float32(87)
    return torch.from_numpy(scaled).reshape(-1, 1), torch.tensor(labels)


def main():
    ages, labels = people()
    targets = torch.nn.functional.one_hot(labels, 2).float()
    torch.manual_seed(SEED)
    model = torch.nn.Sequential()
    for name, features, inputs in (("fc1", 16, 1), ("fc2", 32, 16), ("fc3", 2, 32)):
        layer = torch.nn.Linear(inputs, features)
        torch.nn.init.xavier_uniform_(layer.weight)
        torch.nn.init.zeros_(layer.bias)
        model.add_module(name, layer)
        if name != "fc3":
            model.add_module(f"relu_{name}", torch.nn.ReLU())
    FOLDER.mkdir(exist_ok=True)
    files.write_safetensors(FOLDER / "start.safetensors",
                            {name: tensor.numpy().copy() for name, tensor in model.state_dict().items()})
    optimizer = torch.optim.Adam(model.parameters(), lr=RATE)
    loss_of = torch.nn.BCEWithLogitsLoss()
    losses = {"pytorch": torch.__version__, "loss": [], "test_loss": []}
    for epoch in range(EPOCHS):
        order, total = sample_order(TRAIN, SEED, epoch), 0.0
        for begin in range(0, TRAIN, BATCH):
            batch = order[begin:begin + BATCH]
            loss = loss_of(model(ages[batch]), targets[batch])
            total += loss.item() * len(batch)
            optimizer.zero_grad()
            (loss + L2 * (model.fc2.weight ** 2).sum()).backward()
            optimizer.step()
        with torch.no_grad():
            logits = model(ages[TRAIN:])
        losses["loss"].append(total / TRAIN)
        losses["test_loss"].append(loss_of(logits, targets[TRAIN:]).item())
    losses["test_accuracy"] = (logits.argmax(1) == labels[TRAIN:]).float().mean().item()
    (FOLDER / "losses.json").write_text(json.dumps(losses, indent=1) + "\n")
    print(losses)


if __name__ == "__main__":
    main()
