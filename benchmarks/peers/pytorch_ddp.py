#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""PyTorch's side of training on several ranks of one machine: DistributedDataParallel over Gloo, on the CPU, on random
images. Starts its ranks itself. A step is forward, backward with its all-reduces, and update. The all-reduces
synchronise the ranks in every step, so rank 0's times hold for all ranks."""

import argparse
import json
import os
import pathlib
import statistics
import sys
import tempfile
import time

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--model", default="resnet18")
parser.add_argument("--ranks", type=int, default=2)
parser.add_argument("--batch", type=int, default=32, help="samples per step and rank")
parser.add_argument("--image", type=int, default=32)
parser.add_argument("--channels", type=int, default=3)
parser.add_argument("--classes", type=int, default=10)
parser.add_argument("--threads", type=int, default=1, help="compute threads of each rank")
parser.add_argument("--steps", type=int, default=10)
parser.add_argument("--warmup", type=int, default=3)
parser.add_argument("--bucket-mb", type=int, default=25, help="DistributedDataParallel's bucket_cap_mb")
parser.add_argument("--bucket-view", action="store_true", help="gradient_as_bucket_view: no copies into buckets")
parser.add_argument("--static-graph", action="store_true")
parser.add_argument("--channels-last", action="store_true")
parser.add_argument("--json", default="")

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tests" / "peers"))


def train(rank, options, meeting, results):
    """The training of one rank. Rank 0 writes the losses and times of its steps to `results`."""
    import torch
    import models

    torch.set_num_threads(options.threads)
    torch.distributed.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=options.ranks)
    torch.manual_seed(1)
    model = models.build(options.model, options.channels, options.classes, options.image)
    torch.manual_seed(2 + rank)
    images = torch.randn(options.batch, options.channels, options.image, options.image)
    labels = torch.randint(0, options.classes, (options.batch,))
    if options.channels_last:
        model = model.to(memory_format=torch.channels_last)
        images = images.to(memory_format=torch.channels_last)
    model = torch.nn.parallel.DistributedDataParallel(model, bucket_cap_mb=options.bucket_mb,
                                                      gradient_as_bucket_view=options.bucket_view,
                                                      static_graph=options.static_graph)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001, momentum=0.9)
    losses, times = [], []
    for _ in range(options.warmup + options.steps):
        begin = time.perf_counter()
        optimizer.zero_grad(set_to_none=True)
        loss = torch.nn.functional.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        times.append(time.perf_counter() - begin)
    sums = torch.tensor([sum(parameter.double().sum().item() for parameter in model.parameters())])
    everyones = [torch.zeros_like(sums) for _ in range(options.ranks)]
    torch.distributed.all_gather(everyones, sums)
    if rank == 0:
        agree = all(torch.equal(sums, other) for other in everyones)
        found = {"losses": losses, "times": times[options.warmup:], "agree": agree}
        pathlib.Path(results).write_text(json.dumps(found))
    torch.distributed.destroy_process_group()


def main():
    options = parser.parse_args()
    import torch  # after --help

    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    with tempfile.TemporaryDirectory() as folder:
        results = os.path.join(folder, "results.json")
        torch.multiprocessing.spawn(train, (options, os.path.join(folder, "meeting"), results), options.ranks)
        found = json.loads(pathlib.Path(results).read_text())
    if not found["losses"][-1] < found["losses"][0]:
        sys.exit(f"the loss changed from {found['losses'][0]} to {found['losses'][-1]}: these steps do not train")
    if not found["agree"]:
        sys.exit("the ranks ended with different parameters")
    seconds = statistics.median(found["times"])
    speed = options.ranks * options.batch / seconds
    ways = [name for name in ("bucket_view", "static_graph", "channels_last") if getattr(options, name)]
    result = {"peer": "PyTorch DistributedDataParallel over Gloo", "version": torch.__version__, "model": options.model,
              "ranks": options.ranks, "batch_per_rank": options.batch,
              "image": [options.image, options.image, options.channels], "threads_per_rank": options.threads,
              "bucket_mb": options.bucket_mb, "ways": ways, "steps": options.steps, "samples_per_second": speed,
              "step_ms": seconds * 1e3, "mean_step_ms": statistics.fmean(found["times"]) * 1e3}
    print(f"PyTorch {torch.__version__} DDP over Gloo {' '.join(ways)} {options.model} {options.ranks} ranks x batch "
          f"{options.batch}: step {seconds * 1e3:.1f} ms, {speed:.1f} samples/s")
    if options.json:
        pathlib.Path(options.json).write_text(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
