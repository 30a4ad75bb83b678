# SPDX-License-Identifier: Apache-2.0
"""PyTorch's side of step_bench: full training steps on random images, in one of its four ways to run."""

import argparse
import json
import os
import statistics
import sys
import time

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--model", default="resnet18")
parser.add_argument("--batch", type=int, default=64)
parser.add_argument("--image", type=int, default=32)
parser.add_argument("--channels", type=int, default=3)
parser.add_argument("--classes", type=int, default=10)
parser.add_argument("--threads", type=int, default=2)
parser.add_argument("--steps", type=int, default=10)
parser.add_argument("--warmup", type=int, default=3)
parser.add_argument("--compile", action="store_true", help="torch.compile")
parser.add_argument("--channels-last", action="store_true")
parser.add_argument("--json", default="")
options = parser.parse_args()

import torch  # after --help

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "..", "tests", "peers"))
import models

torch.manual_seed(1)
torch.set_num_threads(options.threads)
model = models.build(options.model, options.channels, options.classes, options.image)
images = torch.randn(options.batch, options.channels, options.image, options.image)
if options.channels_last:
    model = model.to(memory_format=torch.channels_last)
    images = images.to(memory_format=torch.channels_last)
labels = torch.randint(0, options.classes, (options.batch,))
optimizer = torch.optim.SGD(model.parameters(), lr=0.001, momentum=0.9)
run = torch.compile(model) if options.compile else model
losses, times = [], []
for step in range(-options.warmup, options.steps):
    begin = time.perf_counter()
    optimizer.zero_grad(set_to_none=True)
    loss = torch.nn.functional.cross_entropy(run(images), labels)
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
    if step >= 0:
        times.append(time.perf_counter() - begin)
if not losses[-1] < losses[0]:
    sys.exit(f"the loss went from {losses[0]} to {losses[-1]}: these steps do not train")

seconds = statistics.median(times)
result = {"peer": "PyTorch", "version": torch.__version__, "model": options.model, "batch": options.batch,
          "image": [options.image, options.image, options.channels], "threads": options.threads,
          "compile": options.compile, "channels_last": options.channels_last, "steps": options.steps,
          "samples_per_second": options.batch / seconds, "step_ms": seconds * 1e3}
print(f"PyTorch {torch.__version__} {options.model} batch {options.batch} "
      f"{'compiled' if options.compile else 'eager'} {'channels-last' if options.channels_last else 'contiguous'}: "
      f"step {seconds * 1e3:.1f} ms, {options.batch / seconds:.1f} samples/s")
if options.json:
    with open(options.json, "w") as file:
        json.dump(result, file, indent=2)
