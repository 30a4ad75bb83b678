# SPDX-License-Identifier: Apache-2.0
"""The plans of the run kit (gpu_suite.py): for each plan a table of parts with their start times and limits
in seconds, the programs of each part, and the functions that read the output of a program."""

import collections
import csv
import dataclasses
import io
import json
import os
import pathlib
import re
import shlex
import statistics

TOTAL_SECONDS = 450


@dataclasses.dataclass
class Program:
    """A program to run. In its command the kit replaces {bundle}, {scratch}, {python}, {here}, {archive},
    {cifar10_archive}, {cifar10}, {few} (CIFAR-10 with few test images) and {json}."""
    name: str
    command: str
    limit: float = TOTAL_SECONDS  # seconds; the limit of its part also applies
    gpu: bool = True
    background: bool = False  # runs until a part with `alone` starts
    keep: int = 250_000  # bytes of its output that are logged and passed to read
    read: object = None  # function of a Run: adds to its result and may change its status
    environment: dict = dataclasses.field(default_factory=dict)
    case: str = ""  # name of the case in the comparison with PyTorch
    way: str = ""


@dataclasses.dataclass
class Part:
    name: str
    begin: float  # latest start, in seconds since the start of the kit
    limit: float  # seconds
    programs: object  # a list of Program, or a function that takes the runs so far and returns such a list
    together: bool = False  # the programs run side by side
    alone: bool = False  # the background programs are ended first


# Functions for Program.read.

def digests(run):
    """Fails the run unless eager and recorded steps give the same digest."""
    if run.status == "ok" and not run.result.get("recorded_digest") == run.result.get("eager_digest") is not None:
        run.fail(f"eager digest {run.result.get('eager_digest')}, recorded {run.result.get('recorded_digest')}")


def cases(run):
    """Results of a GoogleTest program, which fails if no case ran."""
    remaining_cases(run)
    if run.status == "ok" and not run.result["ok"]:
        run.fail("no case ran")


def remaining_cases(run):
    """Results of a GoogleTest program that was started again for the cases that had not run; there may be none. "open" is the
    case in which the program ended before it finished."""
    lines = re.findall(r"^\[ +(RUN|OK|FAILED|SKIPPED) +\] ([^\s,]+\.[^\s,]+)", run.output, re.MULTILINE)
    outcomes = {name: word for word, name in lines}
    run.result = {word.lower(): [name for name in outcomes if outcomes[name] == word] for word in ("FAILED", "SKIPPED")}
    run.result["ok"] = sum(word == "OK" for word in outcomes.values())
    run.result["open"] = next((name for name in outcomes if outcomes[name] == "RUN"), None)
    if run.result["open"]:
        run.fail(f"{run.reason or 'the program ended'} in the case {run.result['open']}")
    elif run.result["failed"]:
        run.fail(f"{len(run.result['failed'])} cases failed, first {run.result['failed'][0]}")
    elif run.status == "ok" and run.result["skipped"] and not run.result["ok"]:
        run.status, run.reason = "skipped", "every case was skipped; the log says why"


def samples(run):
    """Smallest, median and largest value of each column that nvidia-smi sampled."""
    table = list(csv.reader(io.StringIO(run.output), skipinitialspace=True))
    rows = [row for row in table[1:] if len(row) == len(table[0])]
    for index, name in enumerate(table[0] if rows else []):
        values = [float(row[index]) for row in rows if re.fullmatch(r"[\d.]+", row[index])]
        if values:
            run.result[name] = [min(values), statistics.median(values), max(values)]


def kernels(run):
    """Nanoseconds, launches and DRAM bytes from ncu, summed by kernel name."""
    start = run.output.find('"ID"')
    sums = collections.defaultdict(collections.Counter)
    for row in csv.DictReader(io.StringIO(run.output[start:] if start >= 0 else "")):
        metric, value = row.get("Metric Name") or "", (row.get("Metric Value") or "").replace(",", "")
        if re.fullmatch(r"[\d.]+", value):
            key = "nanoseconds" if metric.startswith("gpu__time") else "dram_bytes"
            sums[row["Kernel Name"]][key] += float(value)
            sums[row["Kernel Name"]]["launches"] += key == "nanoseconds"
    run.result["kernels"] = dict(sorted(sums.items(), key=lambda item: -item[1]["nanoseconds"]))
    if run.status == "ok" and not sums:
        run.fail("ncu reported no kernel")


def run_dir_of(run):
    return pathlib.Path(next(word for word in run.command if word.startswith("run.dir=")).split("=", 1)[1])


def epochs_of(run):
    metrics = run_dir_of(run) / "metrics.jsonl"
    return [json.loads(line) for line in metrics.read_text().splitlines()] if metrics.exists() else []


def last_epoch(run):
    run.result = {"epoch": (epochs_of(run) or [None])[-1]}


def last_object(run):
    """The JSON object at the end of the output."""
    if run.status == "ok":
        run.result = json.loads(run.output[run.output.rindex("\n{"):])


def memory(run):
    """The planned bytes of the device, by part, and the last epoch, which has the bytes in use."""
    last_epoch(run)
    run.result["planned_bytes"] = json.loads((run_dir_of(run) / "run.json").read_text())["planned_bytes"]


def accuracy(run, target=0.93):
    epochs = epochs_of(run)
    reached = epochs[-1].get("test_accuracy") or 0 if epochs else 0  # the last epoch, and not the best one
    run.result = {"test_accuracy": reached, "target": target, "epochs": epochs}
    if run.status == "ok" and reached < target:
        run.fail(f"test accuracy {reached:.4f}, expected {target}")


def libraries(run):
    run.result["missing"] = sorted(set(re.findall(r"(\S+) => not found", run.output)))


# Programs of several parts.

CASES = {"resnet50": "--model resnet50 --batch 256 --image 224 --channels 3 --classes 1000 --steps 20",
         "resnet18": "--model resnet18 --batch 512 --image 32 --channels 3 --classes 10 --steps 60",
         "resnet18, batch 128": "--model resnet18 --batch 128 --image 32 --channels 3 --classes 10 --steps 60"}
WAYS = {"eager": "", "compiled": "--compile", "graphs": "--compile reduce-overhead"}
MEMCHECK = "compute-sanitizer --tool memcheck --error-exitcode 99 --print-limit 20 "


def step(arguments, precision="fp32", peak=False):
    """peak: also times products of large matrices, which takes some seconds."""
    return (f"{{bundle}}/bin/step_bench --device cuda --precision {precision} {arguments} "
            f"{'' if peak else '--no-peak '}--json {{json}}")


def ours(case, precision="fp16", peak=False, **more):
    return Program(f"{case} {precision}", step(CASES[case], precision, peak), case=f"{case} {precision}", way="lockstep", **more)


def pytorch(case, way, precision="fp16", compared=True, **more):
    command = (f"{{python}} -B {{here}}/peers/pytorch_step.py --device cuda --channels-last --precision {precision} "
               f"{CASES[case]} {WAYS[way]} --json {{json}}")
    return Program(f"PyTorch {case} {precision} {way}", command, case=f"{case} {precision}" if compared else "", way=way,
                   **more)


def prepared(case, way, precision="fp16"):
    """Fills the caches of torch.compile. It runs beside other programs, so its speed is not compared."""
    return pytorch(case, way, precision, compared=False)


def gtest(name, arguments="", **more):
    return Program(name, f"{{bundle}}/tests/{name} {arguments}", read=cases, keep=1_500_000, **more)


def next_shard(environment, done):
    """The environment of a GoogleTest program whose filter now excludes the first `done` cases of its shard.
    GoogleTest deals only cases that the filter leaves, so each later case moves `done` places towards the
    front. The shard also gets about `done` cases of other shards."""
    if "GTEST_SHARD_INDEX" not in environment:
        return environment
    index = (int(environment["GTEST_SHARD_INDEX"]) - done) % int(environment["GTEST_TOTAL_SHARDS"])
    return {**environment, "GTEST_SHARD_INDEX": str(index)}


def trained(name, preset, settings, start="{bundle}/bin/", **more):
    words = [f"{start}lockstep", "train", preset]
    for setting in ["world.device=cuda", f"run.dir={{scratch}}/runs/{name.replace(' ', '_')}",
                    "run.checkpoint_minutes=0", *settings]:
        words += ["--set", setting]
    return Program(name, " ".join(words), **more)


def random_images(side, *settings):
    return ["data.format=synthetic", f"data.synthetic.height={side}", f"data.synthetic.width={side}",
            "data.synthetic.train_samples=1024", "data.synthetic.test_samples=1024", *settings]


IMAGENET = random_images(224, "data.synthetic.classes=1000", "data.random_resized_crop=false", "data.resize=0",
                         "data.center_crop=1", "train.batch=256")
THREADS = max(1, len(os.sched_getaffinity(0)) // 2)


def cifar10(precision):
    return trained(f"CIFAR-10 {precision}", "cifar10_resnet18", [
        "data.path={cifar10}", f"data.loader_threads={THREADS}", f"train.precision={precision}"], read=accuracy)


def asked(command, arguments, **more):
    """A command that searches for the best settings, on cifar10_resnet18."""
    return Program(command, f"{{bundle}}/bin/lockstep {command} cifar10_resnet18 --set world.device=cuda --set "
                   f"data.path={{cifar10}} --set data.loader_threads={THREADS} --out {{scratch}}/runs/{command} {arguments}",
                   **more)


def whole_program(shards):
    """Tests of the whole program, on ranks that share the GPU."""
    name, apart = "device_program_test", "*MemoryOfTheDevice*"  # runs alone: it measures all used memory
    return [gtest(name, f"--gtest_filter=-{apart}", environment={
        "GTEST_TOTAL_SHARDS": str(shards), "GTEST_SHARD_INDEX": str(shard)}) for shard in range(shards)]


# Tests of CPU kernels: hosts with such a GPU have AVX-512 and AMX.
OF_PROCESSORS = ("kernels_affine_test", "kernels_norm_test", "kernels_chosen_test", "models_test", "codecs_test")


def few_tests():
    """CIFAR-10 with 100 test images, for trainings whose accuracy is not measured."""
    script = ('mkdir -p "{few}/test" && ln -sfn "{cifar10}/train" "{few}/train" && for class in "{cifar10}"/test/*; '
              'do mkdir -p "{few}/test/${{class##*/}}" && find "$class" -type f | sort | head -10 | '
              'xargs -d "\\n" cp -t "{few}/test/${{class##*/}}"; done')
    return Program("few test images", f"bash -c '{script}'")


def fine_tuning(batch, steps, precision="fp32", *settings):
    """ResNet-18 at 224x224 with settings of fine-tuning, but from random weights. The default loader decodes
    images during the training (data.loader=stream)."""
    loader = settings or ["data.loader=stream"]
    return trained(f"batch {batch} {precision} {loader[0].split('=')[1]}", "cifar10_resnet18", [
        "data.path={few}", "data.resize=224", "model.stem=imagenet", "data.crop_padding=0",
        "data.mean=[0.5,0.5,0.5]", "data.deviation=[0.5,0.5,0.5]", "optimizer.learning_rate=0.001",
        "optimizer.nesterov=false", "optimizer.weight_decay=0", "schedule.name=constant", f"train.batch={batch}",
        f"train.precision={precision}", f"train.steps={steps}", *loader], read=last_epoch)


def sampler():
    """Samples until the next part with `alone` begins."""
    columns = "power.draw,clocks.sm,clocks.mem,temperature.gpu,utilization.gpu,memory.used"
    return Program("nvidia-smi samples", f"nvidia-smi --query-gpu={columns} --format=csv,nounits -lms 200", background=True,
                   read=samples)


def profiled():
    """ncu measures only the third step: the trainer marks it with the NVTX range "step 3"."""
    settings = [*IMAGENET, "train.steps=3", "train.cuda_graph=false"]
    ncu = ("ncu --clock-control none --csv --print-units base --nvtx --nvtx-include 'step 3/' "
           "--metrics gpu__time_duration.sum,dram__bytes_read.sum,dram__bytes_write.sum ")
    return trained("ncu", "imagenet_resnet50", settings, start=ncu + "{bundle}/bin/", read=kernels, keep=5_000_000)


KERNEL_BENCH = Program("kernel_bench", "{bundle}/bin/kernel_bench --device cuda --precision fp16 --mib 256 --repeats 3 "
                       "--json {json}")


def preparation():
    query = "name,driver_version,memory.total,mig.mode.current,clocks.max.sm,clocks.max.memory,power.limit"
    trace = 'shopt -s nullglob; for file in bin/* tests/*; do LD_TRACE_LOADED_OBJECTS=1 "$file"; done; true'
    read_all = ("import pathlib, sys\n"
                "for folder in sys.path:\n"
                " for pattern in ['nvidia/*/lib/*.so*', 'torch/lib/*.so*', 'triton/_C/*.so']:\n"
                "  for file in pathlib.Path(folder).glob(pattern): file.read_bytes()\n"
                "import torch, torch._inductor")
    return [Program("nvidia-smi", f"nvidia-smi --query-gpu={query} --format=csv", gpu=False),
            Program("read libraries", f"{{python}} -c {shlex.quote(read_all)}", background=True),
            Program("unpack", "{python} -m tarfile -e {archive} {scratch}", gpu=False),
            Program("environment", """bash -c 'source "{bundle}/env.sh" && env -0 >"{scratch}/environment"'""", gpu=False),
            Program("unpack CIFAR-10", "{python} -m tarfile -e {cifar10_archive} {scratch}/cifar10", background=True),
            Program("libraries", f"""bash -c 'cd "{{bundle}}" && {trace}'""", gpu=False, read=libraries),
            Program("lockstep info", "{bundle}/bin/lockstep info", gpu=False)]


def smoke():
    return [gtest("core_cuda_test", limit=10),
            Program("smoke step", step("--model resnet18 --batch 64 --steps 3 --kernels direct"), read=digests)]


# Leaves cores for PyTorch's compilers, which run beside the tests.
FEW_CORES = {"OMP_NUM_THREADS": "4"}
TWO_RANKS = trained("two ranks", "cifar10_resnet18", random_images(32, "world.share_device=true", "train.steps=4"),
                    start="{bundle}/run -np 2 ", limit=15)

FIRST = [
    Part("prepare", 0, 20, preparation()),
    Part("smoke", 20, 25, smoke()),
    Part("tests", 45, 70, [
        gtest("cuda_trainer_test", environment=FEW_CORES), gtest("kernels_cuda_test"), gtest("comm_nccl_test"),
        prepared("resnet50", "compiled"), prepared("resnet18", "graphs"), prepared("resnet18, batch 128", "graphs")],
         together=True),
    Part("resnet50", 115, 20, [sampler(), ours("resnet50", peak=True)], alone=True),
    Part("PyTorch", 135, 55, [pytorch("resnet50", "eager", limit=22), pytorch("resnet50", "compiled")], alone=True),
    Part("kernels of a step", 190, 30, [profiled()], alone=True),
    Part("resnet18", 220, 70, [
        ours("resnet18", limit=12), pytorch("resnet18", "graphs", limit=25),
        pytorch("resnet18, batch 128", "graphs", limit=25), ours("resnet18, batch 128")], alone=True),
    Part("resnet50, second turn", 290, 60, [
        pytorch("resnet50", "compiled", limit=25), pytorch("resnet50", "eager", limit=20), ours("resnet50")], alone=True),
    Part("kernel_bench", 350, 22, [KERNEL_BENCH], alone=True),
    Part("CIFAR-10", 372, 45, [cifar10("fp16")], alone=True),
    # Last, because it may hang: NCCL does not support ranks that share a GPU.
    Part("two ranks", 417, 23, [TWO_RANKS, Program("two ranks of comm_nccl_test", "{bundle}/run -np 2 comm_nccl_test",
                                                   read=cases)], alone=True),
]

# The time of a step compared with PyTorch's, in 290 seconds.
SPEED = [
    Part("prepare", 0, 15, preparation()),
    Part("smoke", 15, 15, smoke()),
    Part("tests", 30, 62, [
        gtest("cuda_trainer_test", environment=FEW_CORES), gtest("kernels_cuda_test"), prepared("resnet50", "compiled"),
        prepared("resnet18", "graphs"), prepared("resnet18, batch 128", "graphs")], together=True),
    Part("resnet50", 92, 50, [sampler(), ours("resnet50", peak=True, limit=14),
                              pytorch("resnet50", "eager", limit=16), pytorch("resnet50", "compiled")], alone=True),
    Part("resnet18", 142, 50, [ours("resnet18", limit=8), pytorch("resnet18", "graphs", limit=20),
                               ours("resnet18, batch 128", limit=8), pytorch("resnet18, batch 128", "graphs")],
         alone=True),
    Part("resnet50, second turn", 192, 32, [pytorch("resnet50", "compiled", limit=24), ours("resnet50")], alone=True),
    Part("kernels of a step", 224, 28, [profiled()], alone=True),
    Part("kernel_bench", 252, 24, [KERNEL_BENCH], alone=True),
    Part("two ranks", 276, 14, [TWO_RANKS], alone=True),
]

SECOND = [
    Part("prepare", 0, 20, preparation()),
    Part("smoke", 20, 15, smoke()),
    Part("races and ranks", 35, 60, [
        Program("racecheck", "compute-sanitizer --tool racecheck --error-exitcode 99 --print-limit 20 "
                "{bundle}/tests/kernels_cuda_test --gtest_filter=*CudaBackend.*:CudaUpdates.*", read=cases, keep=1_500_000),
        Program("two ranks of comm_nccl_test", "{bundle}/run -np 2 comm_nccl_test", read=cases),
        prepared("resnet50", "compiled", "bf16"), prepared("resnet18", "graphs", "bf16")], together=True),
    Part("fine-tuning, large batch", 95, 80, [
        few_tests(), fine_tuning(512, 40),
        fine_tuning(512, 97, "fp16", "data.loader=device", f"data.loader_threads={THREADS}")], alone=True),
    Part("find-batch", 175, 45, [asked("find-batch", "--seconds 40 --json", read=last_object)], alone=True),
    Part("resnet50", 220, 55, [ours("resnet50", "bf16", limit=15), pytorch("resnet50", "compiled", "bf16", limit=30),
                               ours("resnet50")], alone=True),
    Part("resnet18 bf16", 275, 30, [ours("resnet18", "bf16", limit=15), pytorch("resnet18", "graphs", "bf16")], alone=True),
    Part("CIFAR-10 bf16", 305, 40, [cifar10("bf16")], alone=True),
    Part("resnet18 fp32", 345, 40, [ours("resnet18", "fp32", limit=20), pytorch("resnet18", "eager", "fp32")], alone=True),
    Part("plan", 385, 12, [Program("plan", "{bundle}/bin/lockstep plan imagenet_resnet50 --set world.device=cuda " + " ".join(
        f"--set {setting}" for setting in IMAGENET))]),
    # Last, because it may hang: NCCL does not support ranks that share a GPU.
    Part("priorities of graphs", 397, 40, [
        trained(f"two ranks {words} priorities", "cifar10_resnet18", random_images(
            32, "world.share_device=true", "train.epochs=20", "model.name=vgg11_bn"), start="{bundle}/run -np 2 ", limit=19,
                read=last_epoch, environment={"LOCKSTEP_GRAPH_PRIORITIES": flag})
        for words, flag in (("with", "1"), ("without", "0"))], alone=True),
]

# Tests and measurements of the whole program on a GPU.
PROGRAM = [
    Part("prepare", 0, 20, preparation()),
    Part("smoke", 20, 15, smoke()),
    Part("tests", 35, 140, [
        *whole_program(6), gtest("kernels_cuda_test", environment=FEW_CORES),
        gtest("cuda_trainer_test", environment=FEW_CORES),
        *(gtest(name, environment=FEW_CORES) for name in OF_PROCESSORS)], together=True),
    Part("memory", 175, 30, [
        gtest("device_program_test", "--gtest_filter=*MemoryOfTheDevice*", limit=12),
        trained("resnet50", "imagenet_resnet50", IMAGENET + ["train.steps=10"], read=memory)], alone=True),
    Part("steps", 205, 30, [sampler(), ours("resnet50", peak=True), ours("resnet18"),
                            ours("resnet18, batch 128")], alone=True),
    Part("fine-tuning", 235, 85, [few_tests(), fine_tuning(1, 4096), fine_tuning(16, 1280), fine_tuning(32, 640)],
         alone=True),
    Part("tune", 320, 40, [asked("tune", "--minutes 0.4")], alone=True),
    Part("kernel_bench", 360, 22, [KERNEL_BENCH], alone=True),
    Part("graph_bench", 382, 15, [
        Program("graph_bench", "{bundle}/bin/graph_bench --precision fp16 --batch 128 --json {json}")], alone=True),
]


def smallest_failing(runs):
    """Up to two failed cases of the smoke test, each alone, then steps of ever larger networks."""
    failed = [name for run in runs if run.result.get("failed") or run.result.get("open")
              for name in [run.result["open"], *run.result["failed"]] if name]
    ladder = ["--model mlp --batch 8", "--model cnn --batch 8", "--model resnet18 --batch 8", "--model resnet18 --batch 64"]
    return [gtest("core_cuda_test", f"--gtest_filter={name}", limit=10) for name in failed[:2]] + \
        [Program(words, step(words + " --steps 3 --kernels direct"), read=digests, limit=15) for words in ladder]


def again(runs, name, prefix="", **more):
    """Runs again the first program that failed in the diagnosis, or else in the smoke test."""
    failed = [run.program for part in ("smallest case", "smoke") for run in runs
              if run.part == part and run.status == "failed"]
    return [dataclasses.replace(failed[0], name=f"{name}: {failed[0].name}", command=prefix + failed[0].command,
                                limit=TOTAL_SECONDS, **more)]


DIAGNOSIS = [
    Part("smallest case", 45, 60, smallest_failing),
    Part("memcheck", 105, 90, lambda runs: again(runs, "memcheck", MEMCHECK)),
    Part("eager steps", 195, 30, [
        trained("eager steps", "cifar10_resnet18", random_images(32, "train.steps=3", "train.cuda_graph=false"))]),
    Part("blocking launches", 225, 40, lambda runs: again(
        runs, "blocking launches", environment={"CUDA_LAUNCH_BLOCKING": "1"})),
    Part("tests", 265, 90, [gtest("cuda_trainer_test"), gtest("kernels_cuda_test"), gtest("comm_nccl_test")], together=True),
    Part("memcheck of the kernels", 355, 80, [
        Program("memcheck kernels_cuda_test", MEMCHECK + "{bundle}/tests/kernels_cuda_test", read=cases, keep=1_500_000)]),
]

PLANS = {"first": FIRST, "second": SECOND, "speed": SPEED, "program": PROGRAM}
