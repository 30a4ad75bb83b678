#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Trains the same network in Lockstep and in PyTorch and compares them.

Both start from the same safetensors file and use the same samples. Losses, every parameter and every running
statistic are compared after one step and after ten:

  loss, test    largest relative difference of a step's loss, and of the test loss after it
  tensor        largest |difference| / |tensor|, at most 1e-5 after one step and 1e-3 after ten (1e-2 for
                running statistics, which depend on the whole network's activations)
  update        largest |error| / |change by training|, compared with PyTorch in fp64; at most ten times PyTorch's
                own error in fp32 (the last column), or 3 % in deep networks. Excludes tensors whose change fp32
                does not determine (PyTorch's own error is above a tenth). In deep networks only after one step.

Rounding moves elements across the kinks of ReLU, and each such element changes the gradient discontinuously:
in fp32 the gradient of a deep network has an error of about 1e-3, that of mobilenet_v2 of 1e-2, in every
implementation. Learning rates, and AdamW's epsilon for deep networks, are chosen so that this error is within
the bound on tensors. The bound on updates shows that Lockstep is as accurate as PyTorch.

The dataset is exactly one global batch, so an epoch is one step for any order of samples. Without PyTorch the
exit code is 77: skipped.
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
except ImportError as missing:
    print(f"Skipped: {missing}. LOCKSTEP_PEER_PYTHON can name a Python that has torch and numpy.")
    sys.exit(SKIPPED)

import files
import models
import optimizers

CLASSES = 10
BATCH = 32  # global
MEAN, DEVIATION = 0.3, 0.25
TOLERANCES = {1: 1e-5, 10: 1e-3}  # by number of steps
STATISTICS_TOLERANCES = {1: 1e-5, 10: 1e-2}
TIMES_PEERS_ERROR = 10
UNDECIDED = 0.1  # a tensor is excluded above this relative error
FLOOR, DEEP_FLOOR = 2e-6, 3e-3  # relative errors that count as accurate


def sgd(learning_rate, **others):
    return {"name": "sgd", "learning_rate": learning_rate, "momentum": 0.9, "weight_decay": 1e-3, **others}


def adamw(learning_rate, epsilon=1e-8):
    return {"name": "adamw", "learning_rate": learning_rate, "beta1": 0.9, "beta2": 0.999, "epsilon": epsilon,
            "weight_decay": 0.1}


def lars(learning_rate, change):
    """change: relative change of a tensor's norm in one step."""
    return {"name": "lars", "learning_rate": learning_rate, "momentum": 0.9, "weight_decay": 1e-3,
            "trust_coefficient": change / learning_rate}


@dataclasses.dataclass
class Case:
    name: str
    network: str
    optimizer: dict
    image: int = 32
    channels: int = 3
    ranks: int = 1
    batch_norm: bool = True  # cnn only
    label_smoothing: float = 0.0
    steps: tuple = (1, 10)
    deep: bool = False

    def model(self):
        return models.build(self.network, self.channels, CLASSES, self.image, 0.0, self.batch_norm)


def cases():
    grey = {"image": 28, "channels": 1}
    deep = {"deep": True}
    nesterov = {"nesterov": True, "decay_norm_and_bias": False}
    for network, rate, change, shape in (("cnn", 3e-3, 1e-3, grey), ("resnet18", 2e-4, 1e-4, deep),
                                         ("mobilenet_v2", 1e-5, 1e-4, deep)):
        yield Case(f"{network}.sgd", network, sgd(rate), **shape)
        yield Case(f"{network}.nesterov", network, sgd(rate, **nesterov), **shape)
        yield Case(f"{network}.adamw", network, adamw(1e-2 * change, 1e-3 if shape is deep else 1e-8), **shape)
        yield Case(f"{network}.lars", network, lars(rate, change), **shape)
    yield Case("cnn.label_smoothing", "cnn", sgd(3e-3), **grey, label_smoothing=0.1)
    for ranks in (1, 2):
        for optimizer in (sgd(0.02), adamw(1e-4), lars(0.02, 0.01)):
            yield Case(f"ranks.{ranks}.{optimizer['name']}", "cnn", optimizer, **grey, ranks=ranks, batch_norm=False)
    for network, rate in (("resnet34", 1e-4), ("resnet50", 1e-5), ("vgg11_bn", 1e-4)):
        yield Case(f"others.{network}", network, sgd(rate), steps=(1,), deep=True)


class Lockstep:
    """Trains a case by the program, in its own folder."""

    def __init__(self, arguments, case, folder):
        self.arguments, self.case, self.folder = arguments, case, folder
        settings = {
            "model": {"name": case.network, "batch_norm": case.batch_norm, "dropout": 0},
            "data": {"path": str(folder), "mean": [MEAN] * case.channels, "deviation": [DEVIATION] * case.channels},
            "train": {"batch": BATCH // case.ranks, "label_smoothing": case.label_smoothing},
            "optimizer": case.optimizer,
            "kernels": {"cache": "none", "choose": arguments.kernels},
            "world": {"device": "cpu"},
            "run": {"dir": str(folder / "run")},
        }
        lines = []
        for section, keys in settings.items():
            lines += [f"[{section}]"] + [f"{key} = {json.dumps(value)}" for key, value in keys.items()]
        (folder / "config.toml").write_text("\n".join(lines) + "\n")

    def train(self, steps):
        """([(train loss, test loss)] of each step, trained tensors)"""
        exported = self.folder / "trained.safetensors"
        command = [self.arguments.lockstep, "train", self.folder / "config.toml", "--set", f"train.epochs={steps}",
                   "--init", self.folder / "start.safetensors", "--export", exported]
        if self.case.ranks > 1:
            ranks = ["--oversubscribe", "--bind-to", "none", "-np", str(self.case.ranks)]
            command = [self.arguments.mpirun, *ranks, *command]
        run = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        if run.returncode != 0:
            raise SystemExit(f"{self.case.name}: lockstep ended with exit code {run.returncode}:\n{run.stdout}")
        metrics = [json.loads(line) for line in (self.folder / "run" / "metrics.jsonl").read_text().splitlines()]
        return [(line["train_loss"], line["test_loss"]) for line in metrics], files.read_safetensors(exported)


class PyTorch:
    def __init__(self, case, tensors, samples, dtype):
        self.case, self.dtype = case, dtype
        self.model = case.model()
        load(self.model, tensors)
        self.model.to(dtype)
        self.optimizer = optimizers.make(self.model, case.optimizer)
        self.samples = {split: self.normalized(*arrays) for split, arrays in samples.items()}
        self.losses = []

    def normalized(self, images, labels):
        pixels = torch.from_numpy(images).to(self.dtype).permute(0, 3, 1, 2) / 255
        return ((pixels - MEAN) / DEVIATION).contiguous(), torch.from_numpy(labels.astype(np.int64))

    def step(self):
        images, labels = self.samples["train"]
        self.model.train()
        loss = torch.nn.functional.cross_entropy(self.model(images), labels,
                                                 label_smoothing=self.case.label_smoothing)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.model.eval()
        images, labels = self.samples["t10k"]
        with torch.no_grad():
            test_loss = torch.nn.functional.cross_entropy(self.model(images), labels)
        self.losses.append((loss.item(), test_loss.item()))

    def tensors(self):
        return arrays_of(self.model, counters=False)


def load(model, tensors):
    model.load_state_dict({name: torch.from_numpy(array.copy()) for name, array in tensors.items()}, strict=True)


def arrays_of(model, counters=True):
    state = model.state_dict()
    return {name: tensor.numpy().copy() for name, tensor in state.items() if counters or tensor.is_floating_point()}


def start(case):
    """Initial tensors. None is zero, because differences are relative to a tensor's norm."""
    generator = torch.Generator().manual_seed(3)
    torch.manual_seed(1)
    model = case.model()
    for module in model.modules():
        if isinstance(module, torch.nn.Conv2d):
            fan_out = module.weight.numel() / module.in_channels  # per group
            torch.nn.init.normal_(module.weight, 0, (2 / fan_out) ** 0.5, generator=generator)
        if isinstance(module, torch.nn.BatchNorm2d):
            torch.nn.init.uniform_(module.weight, 0.7, 1.3, generator=generator)
            torch.nn.init.normal_(module.bias, 0, 0.1, generator=generator)
    return arrays_of(model)


def make_samples(case):
    """{split: (images, labels)}: a wave in a direction that depends on the class, plus noise."""
    generator = np.random.default_rng(7)
    y, x, channel = np.meshgrid(*[np.arange(case.image) / case.image] * 2, np.arange(case.channels), indexing="ij")
    samples = {}
    for split in ("train", "t10k"):
        labels = np.arange(BATCH, dtype=np.uint8) % CLASSES
        waves = [np.sin(2 * np.pi * (x * (1 + label % 5) + y * (1 + label // 5) + 0.3 * channel)) for label in labels]
        images = 90 + 60 * np.stack(waves) + generator.normal(0, 20, (BATCH, *x.shape))
        samples[split] = (np.clip(images, 0, 255).astype(np.uint8), labels)
    return samples


def norm(array):
    return float(np.linalg.norm(array.astype(np.float64).ravel()))


def distances(ours, theirs):
    if set(ours) != set(theirs):
        raise SystemExit(f"the tensors differ: {sorted(set(ours) ^ set(theirs))[:6]}")
    return {name: norm(ours[name] - theirs[name].astype(np.float64)) / norm(theirs[name]) for name in theirs}


class Comparison:
    """Compares the tensors of one case with PyTorch's."""

    def __init__(self, case, tensors, peer, exact):
        self.case, self.start, self.peer, self.exact = case, tensors, peer, exact

    def report(self, losses, trained):
        """Prints a line and returns True if all differences are within their bounds."""
        steps = len(self.peer.losses)
        loss, test = (max(abs(a[i] / b[i] - 1) for a, b in zip(losses, self.peer.losses)) for i in (0, 1))
        tensors = distances(trained, self.peer.tensors())
        allowed = {name: (STATISTICS_TOLERANCES if ".running_" in name else TOLERANCES)[steps] for name in tensors}
        tensor = max(tensors, key=lambda name: tensors[name] / allowed[name])
        near = max(loss, test) <= TOLERANCES[steps] and tensors[tensor] <= allowed[tensor] and len(losses) == steps
        right, update = self.judge_updates(trained) if len(self.exact.losses) == steps else (True, f"{'':17}")
        good = near and right
        print(f"{self.case.name:20} {steps:5} {loss:8.1e} {test:8.1e} {tensors[tensor]:8.1e} {update}  "
              f"{'ok     ' if good else 'TOO FAR'}  worst tensor {tensor}", flush=True)
        return good

    def judge_updates(self, trained):
        """(True if the updates are as accurate as the peer's, text of the two columns)"""
        ours, theirs = self.update_errors(trained), self.update_errors(self.peer.tensors())
        decided = [name for name, error in theirs.items() if error < UNDECIDED]
        usual = max(float(np.median([theirs[name] for name in decided])), DEEP_FLOOR if self.case.deep else FLOOR)
        excess = {name: ours[name] / max(theirs[name], usual) for name in decided}
        worst = max(excess, key=excess.get)
        return excess[worst] <= TIMES_PEERS_ERROR, f"{ours[worst]:8.1e} {theirs[worst]:8.1e}"

    def update_errors(self, tensors):
        exact = self.exact.tensors()
        def error(name):
            change = norm(exact[name] - self.start[name])
            return norm(tensors[name] - exact[name]) / change if change > 0 else float("inf")
        return {name: error(name) for name in exact}


def check(case, arguments):
    samples, tensors = make_samples(case), start(case)
    with tempfile.TemporaryDirectory(prefix="lockstep_peer_") as name:
        folder = pathlib.Path(name)
        for split, (images, labels) in samples.items():
            files.write_samples(folder, split, images[..., 0] if case.channels == 1 else images, labels)
        files.write_safetensors(folder / "start.safetensors", tensors)
        lockstep = Lockstep(arguments, case, folder)
        peer, exact = (PyTorch(case, tensors, samples, dtype) for dtype in (torch.float32, torch.float64))
        comparison = Comparison(case, tensors, peer, exact)
        good = True
        for step in range(1, max(case.steps) + 1):
            peer.step()
            if step == 1 or not case.deep:
                exact.step()
            if step in case.steps:
                losses, trained = lockstep.train(step)
                load(case.model(), trained)  # PyTorch must accept the exported file unchanged
                good &= comparison.report(losses, trained)
    return good


def same_as_torchvision(networks):
    """Checks that names and shapes of tensors equal torchvision's. Returns the networks, or none without
    torchvision."""
    try:
        import torchvision.models
    except ImportError:
        return []
    shapes = lambda model: {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    for network in networks:
        theirs = shapes(getattr(torchvision.models, network)(weights=None))
        if shapes(models.build(network, 3, 1000, 224)) != theirs:
            raise SystemExit(f"{network}: the tensors of models.py differ from torchvision's")
    return networks


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lockstep", required=True, help="the program")
    parser.add_argument("--mpirun", default="mpirun")
    parser.add_argument("--kernels", default="direct", help="kernels.choose: time, direct, winograd or tiled winograd")
    parser.add_argument("cases", nargs="*", help="names or beginnings of names; all by default")
    arguments = parser.parse_args()
    chosen = [case for case in cases() if not arguments.cases or case.name.startswith(tuple(arguments.cases))]
    if not chosen:
        parser.error(f"no such case; there are {', '.join(case.name for case in cases())}")
    networks = {case.network for case in chosen} & {"resnet18", "resnet34", "resnet50", "mobilenet_v2"}
    print(f"PyTorch {torch.__version__}; networks with torchvision's tensors: "
          f"{', '.join(same_as_torchvision(sorted(networks))) or 'none'}\n"
          f"{'case':20} {'steps':>5} {'loss':>8} {'test':>8} {'tensor':>8} {'update':>8} {'PyTorch':>8}")
    failed = [case.name for case in chosen if not check(case, arguments)]
    if failed:
        print(f"Too far: {', '.join(failed)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
