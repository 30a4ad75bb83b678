#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares fine-tuning in Lockstep and in PyTorch. PyTorch trains torchvision's resnet18 on five classes of
Fashion-MNIST (shoes, bags, trousers) and saves it as safetensors. Lockstep and PyTorch then fine-tune that
file on the other five classes, with a new head and the first layers frozen, by the same recipe. Reports the
test accuracies over several seeds. Needs PyTorch, torchvision and numpy; the images are Debian's
dataset-fashion-mnist."""

import argparse
import gzip
import json
import math
import pathlib
import statistics
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path[:0] = [str(ROOT / "benchmarks"), str(ROOT / "tests/peers")]

BEFORE, AFTER = (1, 5, 7, 8, 9), (0, 2, 3, 4, 6)  # classes of the first training and of fine-tuning
FROZEN = ("conv1", "bn1", "layer1", "layer2")
MEAN, DEVIATION = 0.2860, 0.3530
BATCH, MOMENTUM, DECAY = 64, 0.9, 5e-4
FIRST_RATE, RATE = 0.05, 0.02

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--data", type=pathlib.Path, default="/usr/share/datasets/fashion-mnist")
parser.add_argument("--bin", default=str(ROOT / "build/cpu/bin"), help="folder of the built programs")
parser.add_argument("--first-samples", type=int, default=10000, help="samples of the first training, which takes one epoch")
parser.add_argument("--samples", type=int, default=5000, help="samples for fine-tuning")
parser.add_argument("--epochs", type=int, default=4, help="epochs of fine-tuning")
parser.add_argument("--seeds", type=int, default=5)
parser.add_argument("--threads", type=int, default=1)
parser.add_argument("--json", type=pathlib.Path, required=True, help="write the result to this file")
options = parser.parse_args()

import numpy  # after --help
import torch
import torchvision

import files
import record
import suite


def read_idx(name):
    data = gzip.open(options.data / (name + ".gz")).read()
    rank = data[3]
    shape = [int.from_bytes(data[4 + 4 * i:8 + 4 * i], "big") for i in range(rank)]
    return numpy.frombuffer(data, numpy.uint8, offset=4 + 4 * rank).reshape(shape)


def images_of(prefix, classes, count=None):
    """The first `count` images of these classes, with three equal channels, uint8 [N, H, W, 3]; and
    labels."""
    images, labels = read_idx(f"{prefix}-images-idx3-ubyte"), read_idx(f"{prefix}-labels-idx1-ubyte")
    chosen = numpy.flatnonzero(numpy.isin(labels, classes))[:count]
    return (numpy.repeat(images[chosen][..., None], 3, axis=3),
            numpy.searchsorted(classes, labels[chosen]).astype(numpy.uint8))


def frozen(model, prefixes):
    for name, module in model.named_children():
        if name in prefixes:
            module.eval().requires_grad_(False)


def train_pytorch(model, data, test, rate, epochs, seed, prefixes=()):
    """Returns test accuracy in % and samples per second. The learning rate falls along half a cosine."""
    torch.set_num_threads(options.threads)
    tensors = [(torch.from_numpy(images).permute(0, 3, 1, 2).contiguous(), torch.from_numpy(labels.astype(numpy.int64)))
               for images, labels in (data, test)]
    prepared = [((images.float() / 255 - MEAN) / DEVIATION, labels) for images, labels in tensors]
    (train_images, train_labels), (test_images, test_labels) = prepared
    random = torch.Generator().manual_seed(seed)
    frozen(model, prefixes)
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], rate, momentum=MOMENTUM, weight_decay=DECAY)
    steps = len(train_labels) // BATCH
    began = time.monotonic()
    for epoch in range(epochs):
        model.train()
        frozen(model, prefixes)
        order = torch.randperm(len(train_labels), generator=random)
        for step in range(steps):
            chosen = order[step * BATCH:(step + 1) * BATCH]
            share = (epoch * steps + step) / (epochs * steps)
            optimizer.param_groups[0]["lr"] = rate * (1 + math.cos(math.pi * share)) / 2
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(train_images[chosen]), train_labels[chosen]).backward()
            optimizer.step()
    seconds = time.monotonic() - began
    model.eval()
    with torch.no_grad():
        right = sum(int((model(images).argmax(1) == labels).sum())
                    for images, labels in zip(test_images.split(500), test_labels.split(500)))
    return {"accuracy": 100 * right / len(test_labels), "samples_per_second": epochs * steps * BATCH / seconds}


def fine_tune_pytorch(weights, data, test, seed):
    torch.manual_seed(seed)
    model = torchvision.models.resnet18(num_classes=len(BEFORE))
    model.load_state_dict({name: torch.from_numpy(array) for name, array in files.read_safetensors(weights).items()})
    model.fc = torch.nn.Linear(model.fc.in_features, len(AFTER))
    return train_pytorch(model, data, test, RATE, options.epochs, seed, FROZEN)


def fine_tune_lockstep(weights, folder, seed):
    run = folder / f"run{seed}"
    settings = ["model.name=resnet18", "model.stem=imagenet", f"model.freeze={json.dumps(FROZEN)}", "model.reset_head=true",
                "data.format=idx", f"data.path={folder}", f"data.mean={[MEAN] * 3}", f"data.deviation={[DEVIATION] * 3}",
                f"train.batch={BATCH}", f"train.epochs={options.epochs}", f"train.seed={seed}",
                f"train.threads={options.threads}", f"optimizer.learning_rate={RATE}", f"optimizer.momentum={MOMENTUM}",
                f"optimizer.weight_decay={DECAY}", "schedule.name=cosine", "schedule.warmup_epochs=0", f"run.dir={run}"]
    # The choice of the preset does not matter: the settings override every relevant key.
    done = suite.execute([f"{options.bin}/lockstep", "train", "fashion_mnist_cnn", "--init", weights,
                          *(part for setting in settings for part in ("--set", setting))])
    if done.status != "ok":
        sys.exit(f"{done.text}: {done.reason}\n{done.output}")
    lines = [json.loads(text) for text in (run / "metrics.jsonl").read_text().splitlines()]
    return {"accuracy": 100 * lines[-1]["test_accuracy"],
            "samples_per_second": statistics.median(line["samples_per_second"] for line in lines)}


def first_training(path):
    torch.manual_seed(0)
    model = torchvision.models.resnet18(num_classes=len(BEFORE))
    told = train_pytorch(model, images_of("train", BEFORE, options.first_samples), images_of("t10k", BEFORE), FIRST_RATE, 1, 0)
    files.write_safetensors(path, {name: tensor.numpy() for name, tensor in model.state_dict().items()})
    print(f"PyTorch's first training: {told['accuracy']:.2f} %", flush=True)
    return told


def summary(runs):
    values = [run["accuracy"] for run in runs]
    return {"mean_accuracy": statistics.mean(values), "deviation": statistics.stdev(values) if len(values) > 1 else 0,
            "runs": runs}


def main():
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        weights = folder / "first.safetensors"
        first = first_training(weights)
        data, test = images_of("train", AFTER, options.samples), images_of("t10k", AFTER)
        for prefix, (images, labels) in (("train", data), ("t10k", test)):
            files.write_samples(folder, prefix, images, labels)
        runs = {"Lockstep": [], "PyTorch": []}
        for seed in range(1, options.seeds + 1):
            runs["Lockstep"].append(fine_tune_lockstep(weights, folder, seed))
            runs["PyTorch"].append(fine_tune_pytorch(weights, data, test, seed))
            print(f"seed {seed}: Lockstep {runs['Lockstep'][-1]['accuracy']:.2f} %, "
                  f"PyTorch {runs['PyTorch'][-1]['accuracy']:.2f} %", flush=True)
    sides = {side: summary(each) for side, each in runs.items()}
    apart = sides["Lockstep"]["mean_accuracy"] - sides["PyTorch"]["mean_accuracy"]
    result = {"benchmark": "fine_tuning_beside_pytorch",
              **record.circumstances("benchmarks/peers/fine_tuning_beside_pytorch.py " + " ".join(sys.argv[1:]),
                                     f"{options.bin}/lockstep"),
              "pytorch": torch.__version__, "torchvision": torchvision.__version__, "network": "resnet18",
              "frozen": FROZEN, "batch": BATCH, "threads": options.threads, "test_samples": len(test[1]),
              "first_training": first, "points_apart": apart, **sides}
    record.write(options.json, result)
    print(f"Lockstep {sides['Lockstep']['mean_accuracy']:.2f} % beside PyTorch's {sides['PyTorch']['mean_accuracy']:.2f} %: "
          f"{apart:+.2f} points, means of {options.seeds} seeds")


if __name__ == "__main__":
    main()
