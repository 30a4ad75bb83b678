# SPDX-License-Identifier: Apache-2.0
"""PyTorch's side of step_bench: full training steps on random images, as the options select.

On a GPU it uses the usual settings for speed: kernels chosen by time, the fused optimizer, TF32 unless the
precision is fp32, autocast for half precision with a loss scale for fp16, and no host synchronisation within
the timed steps."""

import argparse
import json
import os
import statistics
import sys
import time

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--model", default="resnet18")
parser.add_argument("--batch", type=int, default=64)
parser.add_argument("--image", type=int, default=32)
parser.add_argument("--channels", type=int, default=3)
parser.add_argument("--classes", type=int, default=10)
parser.add_argument("--threads", type=int, default=2)
parser.add_argument("--steps", type=int, default=10)
parser.add_argument("--warmup", type=int, default=3)
parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
parser.add_argument("--precision", choices=["fp32", "tf32", "bf16", "fp16"], default="fp32",
                    help="bf16 and fp16 by autocast, tf32 on a GPU only")
parser.add_argument("--compile", nargs="?", const="default", metavar="MODE",
                    choices=["default", "reduce-overhead", "max-autotune"], help="use torch.compile in this mode")
parser.add_argument("--channels-last", action="store_true")
parser.add_argument("--fused", action="store_true", help="use the fused SGD; always used on a GPU")
parser.add_argument("--json", default="")
options = parser.parse_args()
if options.precision == "tf32" and options.device == "cpu":
    parser.error("--precision tf32 needs a GPU; the CPU supports fp32, bf16 and fp16")

import torch  # after --help

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "tests", "peers"))
import models

on_gpu = options.device == "cuda"
if on_gpu and not torch.cuda.is_available():
    sys.exit(f"PyTorch {torch.__version__} finds no GPU; use --device cpu")
torch.manual_seed(1)
torch.set_num_threads(options.threads)
torch.backends.cudnn.benchmark = True
torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = options.precision != "fp32"
model = models.build(options.model, options.channels, options.classes, options.image).to(options.device)
images = torch.randn(options.batch, options.channels, options.image, options.image).to(options.device)
if options.channels_last:
    model = model.to(memory_format=torch.channels_last)
    images = images.to(memory_format=torch.channels_last)
labels = torch.randint(0, options.classes, (options.batch,)).to(options.device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.001, momentum=0.9, fused=on_gpu or options.fused)
half = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(options.precision)
# A small initial scale avoids an overflow in the first step, after which the fused SGD's momentum is
# uninitialised memory.
scaler = torch.amp.GradScaler(options.device, init_scale=1024, enabled=half == torch.float16)
run = torch.compile(model, mode=options.compile) if options.compile else model


def train_step():
    optimizer.zero_grad(set_to_none=True)
    with torch.autocast(options.device, dtype=half, enabled=half is not None):
        loss = torch.nn.functional.cross_entropy(run(images), labels)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    return loss.detach()


def steps_on_cpu():
    losses, times = [], []
    for _ in range(options.warmup + options.steps):
        begin = time.perf_counter()
        losses.append(train_step().item())
        times.append(time.perf_counter() - begin)
    return losses, times[options.warmup:]


def steps_on_gpu():
    """Times from the end of one step on the stream to the end of the next."""
    losses = [train_step() for _ in range(options.warmup)]
    torch.cuda.synchronize()
    ends = [torch.cuda.Event(enable_timing=True) for _ in range(options.steps + 1)]
    ends[0].record()
    for end in ends[1:]:
        losses.append(train_step())
        end.record()
    torch.cuda.synchronize()
    return [loss.item() for loss in losses], [a.elapsed_time(b) * 1e-3 for a, b in zip(ends, ends[1:])]


losses, times = steps_on_gpu() if on_gpu else steps_on_cpu()
if not losses[-1] < losses[0]:
    sys.exit(f"the loss changed from {losses[0]} to {losses[-1]}: these steps do not train")

seconds = statistics.median(times)
result = {"peer": "PyTorch", "version": torch.__version__, "model": options.model, "batch": options.batch,
          "image": [options.image, options.image, options.channels], "threads": options.threads,
          "device": torch.cuda.get_device_name() if on_gpu else "cpu", "precision": options.precision,
          "compile": options.compile is not None, "compile_mode": options.compile,
          "channels_last": options.channels_last, "fused": on_gpu or options.fused, "steps": options.steps,
          "samples_per_second": options.batch / seconds, "step_ms": seconds * 1e3,
          "mean_step_ms": statistics.fmean(times) * 1e3}
if on_gpu:
    result["peak_memory_bytes"] = torch.cuda.max_memory_allocated()
    result["cudnn"] = torch.backends.cudnn.version()
print(f"PyTorch {torch.__version__} {options.model} batch {options.batch} {options.device} {options.precision} "
      f"{'compiled ' + options.compile if options.compile else 'eager'} "
      f"{'channels-last' if options.channels_last else 'contiguous'}{' fused' if options.fused else ''}: "
      f"step {seconds * 1e3:.1f} ms, {options.batch / seconds:.1f} samples/s")
if options.json:
    with open(options.json, "w") as file:
        json.dump(result, file, indent=2)
sys.stdout.flush()
os._exit(0)  # skips the normal exit: the compiler's workers and the driver take up to half a minute
