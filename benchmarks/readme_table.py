#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the tables of figures in several pages, such as README.md and benchmarks/README.md, from the files in
benchmarks/results, between the comments BEGIN and END, and the example of README.md between the comments of EXAMPLE.
With --check it changes nothing, and fails if a page differs from what it would write or if a result lacks its machine,
versions, revision, date or command (see record.py)."""

import argparse
import json
import pathlib
import statistics
import sys

import codec_accuracy
import record
import suite
import training_runs

BEGIN = "<!-- figures: written by benchmarks/readme_table.py -->"
END = "<!-- end of figures -->"
EXAMPLE = ("<!-- example: written by benchmarks/readme_table.py -->", "<!-- end of example -->")
NOISY = 10  # largest ratio of turns over the smallest; above it a row shows no ratio


class Results:
    """Reads the result files on demand."""

    def __init__(self, folder):
        self.folder = folder

    def __call__(self, name, part=None):
        document = json.loads((self.folder / f"{name}.json").read_text())
        return document[part] if part else document


def machine_of(result):
    machine = result["machine"]
    gpu = machine["gpu"][1].split(",")[0] + "; " if "gpu" in machine and "NVIDIA" not in machine["processor"] else ""
    return f"{gpu}{machine['processor']}, {machine['cores']} cores"


def quickstart(results):
    result = results("quickstart")
    last = result["epochs"][-1]
    speed = statistics.median(epoch["samples_per_second"] for epoch in result["epochs"])
    return ("`launch/quickstart.sh`: `cnn` on Fashion-MNIST, 2 ranks, 5 epochs",
            f"{100 * last['test_accuracy']:.2f} % test accuracy, {speed:,.0f} samples/s in the median epoch", result)


def quickstart_example(results):
    """The lines that `lockstep train` prints after the last epoch (launch/observe/run_files/report.cpp), without the values
    that the file lacks."""
    epochs = results("quickstart")["epochs"]
    last = epochs[-1]
    parts = [f"epoch {last['epoch']}/{len(epochs)}"]
    parts += [f"{name} {100 * last[name]:.0f} %" for name in ("busy", "peak") if last.get(name) is not None]
    parts += [f"loss {last['train_loss']:#.3g}", f"test loss {last['test_loss']:#.3g}", f"accuracy {100 * last['test_accuracy']:.2f} %",
              f"{last['samples_per_second']:,.0f} samples/s"]
    lines = ["  ".join(parts)]
    if communication := last.get("communication"):
        def milliseconds(name):
            return 1e3 * communication[name] / communication["steps"]
        rate = communication["wire_bytes_per_second"] or 0
        lines.append(f"  comm {milliseconds('exposed_seconds') + milliseconds('hidden_seconds'):.1f} ms a step  "
                     f"{100 * communication['overlap']:.1f} % hidden  | wire {milliseconds('wire_seconds'):.1f} ms "
                     f"({f'{rate / 1e9:.1f} GB/s' if rate >= 1e9 else f'{rate / 1e6:.1f} MB/s'})")
    return "\n".join(["```", *lines, "```"])


def threads_of(result):
    return training_runs.counted(result["lockstep"][0]["options"]["threads"], "thread")


def step(part, name, file="cpu_suite"):
    def row(results):
        result = results(file, part)
        peer = result["pytorch"]
        image = f"{result['image']}x{result['image']}"
        version = peer["version"].split("+")[0]
        if "first_turn" not in peer:
            text = f"{speed(result)} samples/s; PyTorch {version} at its best, in turns: {speed(peer)} ({times(result, peer)})"
        else:
            best = max(peer["first_turn"].values())
            text = (f"{speed(result)} samples/s; PyTorch {version}: {best:.1f} in its fastest single run "
                    f"({result['samples_per_second'] / best:.2f}x; {training_runs.counted(len(result['lockstep']), 'run')} of ours, 1 of "
                    "PyTorch's)")
        if "ratio" in result.get("direct", {}):
            text += f"; with `--kernels direct` {speed(result['direct'])} ({times(result['direct'], peer)})"
        return (f"training step of {name}, {image}, batch {result['batch']}, {result.get('precision', 'fp32')}, "
                f"{threads_of(result)}{', limited to AVX2' if result.get('instructions') == 'AVX2' else ''}", text, result)
    return row


def floors(results):
    """The least time of each step: its products at the measured peak rate."""
    rows = []
    for part, result in results("cpu_suite").items():
        if not part.startswith("step ") or "gflops_executed" not in result["lockstep"][0]:
            continue
        turn = sorted(result["lockstep"], key=lambda turn: turn["step_ms"])[len(result["lockstep"]) // 2]
        least = turn["step_ms"] * turn["gflops_executed"] / turn["peak_gflops"]
        wanted = 1000 * result["batch"] / (result["target"] * result["pytorch"]["samples_per_second"])
        rows.append((f"`{result['model']}`, batch {result['batch']}{', limited to AVX2' if result['instructions'] == 'AVX2' else ''}",
                     f"{least:,.1f} ms at {turn['peak_gflops']:.0f} GFLOP/s; measured {turn['step_ms']:,.1f} ms; {result['target']}x PyTorch's "
                     f"speed is {wanted:,.1f} ms", result))
    return rows


def any_precision(model, file="cpu_suite"):
    """Both sides in the precision that is the fastest for each."""
    def row(results):
        result = results(file, f"step {model}")
        best = result.get("any_precision")
        if not best:
            return None
        precisions = ["bf16" if way.endswith("bf16") else "fp32" for way in (best["best"], best["pytorch"]["best"])]
        return (f"training step of `{model}`, {result['image']}x{result['image']}, batch {result['batch']}, fastest precision of each "
                f"side, {threads_of(result)}",
                f"{speed(best)} samples/s in {precisions[0]}; PyTorch {result['pytorch']['version'].split('+')[0]}, in turns: "
                f"{speed(best['pytorch'])} in {precisions[1]} ({times(best, best['pytorch'])})", result)
    return row


def agree(ratio, medians):
    """Whether the median of the turns' ratios and the ratio of the medians name the same side as the faster one, and differ by less than
    a tenth."""
    return (ratio > 1) == (medians > 1) and abs(ratio / medians - 1) < 0.1


def times(row, peer):
    """Speedup over the peer, with the spread over the turns if the file has it. If the two ratios do not agree, both."""
    low, high = row.get("ratio_spread", (None, None))
    text = f"{row['ratio']:.2f}x" + (f", from {low:.2f}x to {high:.2f}x" if low else "")
    medians = row["samples_per_second"] / peer["samples_per_second"]
    return text if agree(row["ratio"], medians) else f"{medians:.2f}x by the medians; in turns {text}"


def speed(row):
    value = row["samples_per_second"]
    return f"{value:,.0f}" if value >= 1000 else f"{value:.1f}"


def beside_ddp(results):
    result = results("cpu_suite", "ranks beside DDP")
    return (f"`resnet18`, 28x28, {result['ranks']} ranks of one thread, batch {result['batch_per_rank']} each",
            f"{speed(result)} samples/s; PyTorch's DistributedDataParallel over Gloo at its best, in turns: "
            f"{speed(result['pytorch'])} ({times(result, result['pytorch'])})", result)


def ranks_against_threads(results):
    result = results("cpu_suite", "ranks against threads")
    return ("two ranks of one thread against one rank of two, `resnet18`",
            f"{result['ratio']:.2f}x the samples/s", result)


def memory(results):
    parts = [part for name, part in results("cpu_suite").items() if name.startswith("step ")]
    most = max(parts, key=lambda part: part["memory_over_plan"])
    return ("resident memory of a training step, without the libraries' own",
            f"at most {most['memory_over_plan']:.2f}x what `lockstep plan` announces", most)


def engine(results):
    result = results("cpu_suite", "engine")
    return ("the engine around the kernels, `resnet18`",
            f"{100 * result['share_outside_kernels']:.2f} % of a step by the Trainer's own account; its steps in turns "
            f"with the bare network's take {result['ratio']:.3f} times as long", result)


def faster_than(rows, size):
    """How much faster the window is than other ways, as the median of the turns' ratios with its spread if the file has it, else as the
    ratio of the median times. Empty if the turns' ratios are too far apart."""
    window, told = rows[size, "window"], []
    ratios = window.get("speed_over") or {"mpi": {"median": window["speed_over_mpi"], "spread": window["speed_over_mpi_spread"]}}
    for way, name in (("mpi", "`MPI_Allreduce`"), ("gloo", "Gloo")):
        if way in ratios:
            low, high = ratios[way]["spread"]
            if high > NOISY * low:
                return ""
            told.append(f"{ratios[way]['median']:.2f}x as fast as {name} (from {low:.2f}x to {high:.2f}x)")
        elif (size, way) in rows:
            told.append(f"{rows[size, way]['time_us'] / window['time_us']:.2f}x as fast as {name} (by the median times)")
    return ", " + " and ".join(told)


def all_reduce(results):
    result = results("allreduce_2_ranks")
    rows = {(row["bytes"], row["way"]): row["in_place"] for row in result["rows"] if row["collective"] == "all_reduce"}
    small, large = 4 << 10, 64 << 20
    return ("all-reduce between 2 ranks of one node, in the shared window",
            f"4 KiB in {rows[small, 'window']['time_us']:.1f} us{faster_than(rows, small)}; 64 MiB at "
            f"{rows[large, 'window']['busbw_gb_per_s']:.0f} GB/s{faster_than(rows, large)}", result)


def least_share(part):
    """The least share of plain TCP's rate. If the ratio of the medians does not agree, both."""
    row = min((row for row in part["rows"] if row["bytes"] >= 1 << 20), key=lambda row: row["of_tcp"])
    medians = row["busbw_gb_per_s"] / row["tcp_gb_per_s"]
    return f"{100 * row['of_tcp']:.0f} %" + ("" if agree(row["of_tcp"], medians) else f" ({100 * medians:.0f} % by the medians)")


def links(results):
    parts = list(training_runs.parts_of(results("links")).values())
    texts = []
    for link in dict.fromkeys(part["link"] for part in parts):
        shares = [f"{part['nodes']} nodes {least_share(part)}" for part in parts if part["link"] == link]
        texts.append(f"{link} {', '.join(shares)}")
    return ("all-reduce of 1 MiB and more between nodes of one rank: least share of the rate of plain TCP in both directions at once",
            "; ".join(texts), parts[-1])


def plan(results):
    result = results("plan_validation")
    unseen = [row for row in result["table"] if not row["fitted"]]
    errors = [abs(error) for row in unseen for error in row["errors"]]  # of each turn
    return ("`lockstep plan`, fitted to two ranks over two links: error of the step of 2 to 4 ranks and three links",
            f"{100 * statistics.median(errors):.1f} % in the median of {len(errors)} runs of {len(unseen)} cases that were not fitted, at "
            f"most {100 * max(errors):.1f} %", result)


def plan_published(results):
    result = results("plan_published")
    texts = [f"{row['gpus']:,} {row['gpu'].upper()} on {training_runs.counted(row['nodes'], 'node')}, batch {row['batch']}: "
             f"{round(100 * row['error'], 1) + 0.0:+.1f} %" for row in result["rows"]]
    return ("`lockstep plan --gpu`: error of images/s of published MLPerf trainings of `resnet50`, predicted from the rate of one "
            "GPU with a large batch and published link speeds", "; ".join(texts), result)


def scaling(results):
    result = results("scaling_cnn")
    weak = [row for row in result["rows"] if row["mode"] == "weak"]
    texts = [f"{row['ranks']} ranks {speed(row)} ({100 * row['efficiency']:.0f} %, per core "
             f"{100 * row['efficiency_per_core']:.0f} %)" for row in weak[1:]]
    return (f"`{result['model']}`, ranks of one thread, batch {weak[0]['batch_per_rank']} each: samples/s (efficiency)",
            f"1 rank {speed(weak[0])}, {', '.join(texts)}", result)


def overlap(link, words):
    """The link's fastest bucket capacity with overlap, compared with the same capacity without overlap."""
    def row(results):
        result = results("overlap_resnet18", link)
        best = max((row for row in result["rows"] if row["overlap"]), key=lambda row: row["samples_per_second"])
        off = next(row for row in result["rows"] if not row["overlap"] and row["bucket_mib"] == best["bucket_mib"])
        return (f"`{result['model']}`, 32x32, {result['ranks']} ranks of one thread, batch {result['batch_per_rank']} each, "
                f"{words}",
                f"{speed(best)} samples/s with buckets of {best['bucket_mib']:g} MiB, {100 * best['exposed_share']:.0f} % of "
                f"the step exposed; without overlap {speed(off)}, {100 * off['exposed_share']:.0f} %", result)
    return row


def resnet20(results):
    result = results("fashion_mnist_resnet20")
    last = [epochs[-1] for epochs in result["test_accuracy_percent_by_epoch"].values()]
    return (f"`fashion_mnist_resnet20`, 2 ranks, 15 epochs, {len(last)} seeds",
            f"{statistics.mean(last):.2f} % test accuracy on average, {min(last):.2f} % to {max(last):.2f} %", result)


def accuracy_beside_pytorch(results):
    result = results("accuracy_beside_pytorch")
    curves = result["curves"]
    last = {name: curve[-1]["accuracy"] for name, curve in curves.items()}
    return (f"`{result['network']}` on CIFAR-10, {len(curves['Lockstep'])} epochs, from PyTorch's initial weights with the "
            "same recipe",
            f"{last['Lockstep']:.2f} % test accuracy; PyTorch {result['pytorch'].split('+')[0]} {last['PyTorch']:.2f} %",
            result)


def fine_tuning_beside_pytorch(results):
    result = results("fine_tuning_beside_pytorch")
    told = [f"{result[side]['mean_accuracy']:.2f} % (deviation {result[side]['deviation']:.2f})" for side in ("Lockstep", "PyTorch")]
    return (f"torchvision's `{result['network']}`, trained by PyTorch and fine-tuned on other classes of Fashion-MNIST, frozen up to "
            f"`{result['frozen'][-1]}`, {len(result['Lockstep']['runs'])} seeds with the same recipe",
            f"{told[0]} test accuracy; PyTorch {result['pytorch'].split('+')[0]} {told[1]}", result)


def segmentation_seeds(results):
    result = results("segmentation_seeds")
    def told(side):
        last = [run["mean_iou"][-1] for run in result[side]]
        return f"{min(last):.3f}" + (f" to {max(last):.3f} ({len(last)} seeds)" if len(last) > 1 else " (1 seed)")
    epochs = len(result["Lockstep"][0]["mean_iou"])
    return (f"`shapes_unet`, one rank with batch 32, {epochs} epochs", f"mean IoU {told('Lockstep')}; PyTorch {result['pytorch']} with the same recipe "
            f"{told('PyTorch')}", result)


def half_precision(results):
    result = results("half_precision_cnn")
    means = [f"{name} {row['mean']:.2f} %" for name, row in result["test_accuracy_percent_after_5_epochs"].items()]
    return ("`fashion_mnist_cnn`, 2 ranks, 5 epochs, 3 seeds, by `train.precision`",
            f"{', '.join(means)} test accuracy on average", result)


def codecs_accuracy(task, words):
    """Differences to the accuracy of the dense sum with the same seeds, in percentage points. The machine and date are those of the last
    run."""
    def row(results):
        result = results("codec_accuracy", task)
        rows = {row["way"]: row for row in result["summary"]}

        def sent(row):
            return f"1/{row['fewer_bytes']:.1f}" if row["fewer_bytes"] else "no messages"
        texts = [f"{way}{'*' if row.get('seeds_of_two_revisions') else ''} {row['points']:+.2f} ({sent(row)})"
                 for way, row in rows.items() if way != "none"]
        numbers = sorted({len(row["seeds"]) for row in rows.values()})
        seeds = training_runs.counted(numbers[-1], "seed") if len(numbers) == 1 else f"{numbers[0]} to {numbers[-1]} seeds"
        mixed = any(row.get("seeds_of_two_revisions") for row in rows.values())
        return (f"{words}, {seeds}: points of test accuracy against the dense sum (and bytes)",
                f"none {rows['none']['accuracy']:.2f} %; {', '.join(texts)}"
                f"{'; * trained with another revision than the dense sum' if mixed else ''}",
                max((codec_accuracy.circumstances_of(result, run) for run in result["runs"]), key=lambda each: each["date"]))
    return row


def recompute(network):
    def row(results):
        result = results("cpu_suite", f"recompute {network}")
        return (f"`train.recompute`, `{network}`, 32x32, batch 64",
                f"{result['speed_ratio']:.2f}x the samples/s, {result['planned_ratio']:.2f}x the planned memory, "
                f"{result['resident_ratio']:.2f}x the resident", result)
    return row


def pinning(results):
    result = results("thread_pinning")
    spans = {name: f"{min(times):.0f} to {max(times):.0f} ms" for name, times in result["step_ms"].items()}
    return ("pinning compute threads, `resnet18`, batch 64",
            f"{spans['pinned']} a step pinned, {spans['free']} free", result)


def encodings(results):
    result = results("codecs")
    shares = {}
    for row in result["encodings"]:
        low, high = row["of_copy_spread"]
        medians = row["gigabytes_per_second"] / row["copy_gigabytes_per_second"]
        also = "" if agree(row["of_copy"], medians) else f"; {100 * medians:.0f} % by the medians"
        shares.setdefault(row["codec"], []).append(f"{100 * row['of_copy']:.0f} % ({100 * low:.0f} to {100 * high:.0f}{also})")
    return ("encoding and decoding of `resnet18`'s gradients by one thread, compared with a copy of as many bytes",
            ", ".join(f"{codec} {' and '.join(both)}" for codec, both in shares.items()) + " of the copy's speed in turns", result)


def codecs_of_a_step(results):
    result = results("codecs")
    options = result["options"]
    return (f"all arithmetic of a codec, as a share of a training step of `resnet18`, {options['image'][0]}x{options['image'][1]}, "
            f"batch {options['batch']}, {options['threads']} thread",
            ", ".join(f"{row['codec']} {100 * row['of_step']:.1f} %" for row in result["step"]["codecs"]), result)


def codecs_on(link, where):
    def row(results):
        result = results("codecs_resnet18", link)
        best = {}
        for case in result["rows"]:
            best[case["codec"]] = max(best.get(case["codec"], 0), case["samples_per_second"])
        return (f"`resnet18`, 32x32, 2 ranks of one thread, batch 32 each, {where}, by `comm.codec`",
                ", ".join(f"{codec} {value:.1f}" for codec, value in best.items()) + " samples/s", result)
    return row


def cross_barrier(results):
    result = results("cross_barrier_resnet18", "200mbit")
    cases = {(case["codec"], case.get("cross_barrier", False)): case["samples_per_second"] for case in result["rows"]}
    parts = [f"{codec} {cases[codec, True]:.1f} ({value:.1f})" for (codec, crosses), value in cases.items() if not crosses]
    return ("`resnet18`, 32x32, 2 ranks of one thread, batch 32 each, two nodes on one machine, links of 200 Mb/s, by "
            "`comm.codec`, with `comm.cross_barrier` (and without)", ", ".join(parts) + " samples/s", result)


AT_AVX2 = [step(f"step {model} at AVX2", f"`{model}`") for model in ("resnet18", "mobilenet_v2", "cnn", "resnet50")]
AT_AMX = [step(f"step {model}", f"`{model}`", "cpu_suite_amx") for model in ("resnet18", "cnn")]
AT_ZEN5 = [step(f"step {model}", f"`{model}`", "cpu_suite_zen5") for model in ("resnet18", "cnn")]
AT_ZEN1 = [step(f"step {model} at AVX2", f"`{model}`", "cpu_suite_zen1") for model in ("resnet18", "cnn")]


def faults(results):
    result = results("random_faults")
    count = {name: sum(row[name] for row in result["by_kind"])
             for name in ("faults", "went_on", "ended_undisturbed", "steps_skipped", "wrong")}
    skipped = f", {count['steps_skipped']} skipped a step of fp16" if count["steps_skipped"] else ""
    return (f"random faults of {len(result['by_kind'])} kinds, 2 to 4 ranks on one node and on two, {count['faults']} of them",
            f"{count['went_on']} jobs ended with the documented code and resumed with the bits of an undisturbed training, "
            f"{count['ended_undisturbed']} ended with those bits at once{skipped}, {count['wrong']} lost data", result)


def soak(results):
    result = results("soak")
    long, starts = result["soak"], result["starts"]
    flat = "flat" if all(row["flat"] for row in long["growth"]) else "not flat"
    left = len(starts["left_in_tmp_and_shared_memory"])
    return (f"{long['steps']:,} steps of the smallest network in {long['minutes']:g} minutes, then {starts['starts']} starts",
            f"memory, descriptors, threads, shared memory and disk {flat}; {left or 'no'} files left in `/tmp` and `/dev/shm`",
            long)


def guards(results):
    result = results("guards")
    return (f"cost of the guards, `{result['options']['model']}`, {result['ranks']} ranks of one thread, batch "
            f"{result['options']['batch']} each",
            f"{100 * result['sum_of_parts']:.2f} % of a step of {result['step_ms']:.1f} ms as the sum of the parts; steps with guards take "
            f"{result['ratio']:.4f} times as long as steps without, in turns", result)


def report_cost(results):
    result = results("report_cost")
    parts = result["parts"]
    return (f"cost of the reports of a run, `{result['options']['model']}`, {result['ranks']} ranks of one thread, batch {result['options']['batch']} each",
            f"{100 * result['sum_of_parts']:.2f} % of a step of {result['step_ms']:.1f} ms: lines {100 * parts['lines']:.3f} %, norms of "
            f"gradients {100 * parts['norms']:.3f} %, the monitor {100 * parts['monitor']:.3f} %", result)


def idle_ladder(results):
    result = results("idle_ladder")
    first, last = result["rungs"][0], result["rungs"][-1]
    changes = ", ".join(f"`{rung['change']}`" if "=" in rung["change"] or "lockstep" in rung["change"] else rung["change"]
                        for rung in result["rungs"][1:])
    return (f"from idle to busy by following only the advice of each training: `cnn` on CIFAR-10 as JPEG, first on {training_runs.counted(first['ranks'], 'rank')} and {result['machine']['cores']} cores",
            f"busy {100 * first['busy']:.0f} % -> {100 * last['busy']:.0f} %, {first['samples_per_second']:,.0f} -> "
            f"{last['samples_per_second']:,.0f} samples/s, in {len(result['rungs']) - 1} changes: {changes}", result)


def rungs(results):
    """A row for each rung of the ladder."""
    result = results("idle_ladder")
    return [(f"`{rung['change']}`" if number else "the start",
             f"busy {100 * rung['busy']:.0f} %, {rung['samples_per_second']:,.0f} samples/s", result)
            for number, rung in enumerate(result["rungs"])]


def fine_tuning_batches(results):
    """A row for each batch."""
    result = results("fine_tuning_batches")
    return [(f"batch {row['batch']}, {training_runs.counted(row['steps'], 'step')}",
             f"{row['samples_per_second']:.1f} samples/s, busy {100 * row['busy']:.0f} %, {row['memory_bytes'] / 2**30:.2f} GiB, "
             f"train loss {row['train_loss']:.3f}, test loss {row['test_loss']:.3f}", result) for row in result["rows"]]


def idle_cause(cause):
    def row(results):
        result = results("idle_causes")
        found = next(each for each in result["rows"] if each["cause"] == cause)
        promised = f"promised {found['promised_percent']:+.0f} %" if found["promised_percent"] else "no gain promised"
        medians = found["samples_per_second_changed"] / found["samples_per_second"]
        also = "" if agree(1 + found["gained_percent"] / 100, medians) else f"; {100 * (medians - 1):+.1f} % by the medians"
        return (f"idle by `{cause}`: {found['provoked_by']}",
                f"{promised}; gained {found['gained_percent']:+.0f} % ({found['gained_percent_least']:+.0f} to "
                f"{found['gained_percent_most']:+.0f} %{also}). Message: {found['said'].replace('|', '/')}", result)
    return row


def snapshot(results):
    result = results("snapshot")
    height, width, _ = result["options"]["image"]
    return (f"snapshot of a checkpoint, `{result['options']['model']}`, {height}x{width}, {result['ranks']} ranks, "
            f"{1e-6 * result['bytes']:.0f} MB",
            f"training stops for {result['snapshot_ms']:.1f} ms, a copy of as many bytes takes {result['copy_ms']:.1f} ms; "
            f"{100 * result['beyond_a_copy_of_a_step_per_gb']:+.2f} % of a step per GB", result)


def loader(results):
    result = results("loader")

    def row(name, stage):
        return next(row for row in result["sets"][name]["rows"] if row["stage"] == stage)
    small, large = row("pixels 32x32", "loader"), row("pixels 224x224", "loader")
    return ("batches from record files, one loader thread, files in the page cache",
            f"32x32 {small['samples_per_second'] / 1e6:.2f} million samples/s; 224x224 "
            f"{100 * large['of_copy']['median']:.0f} % of a copy in memory; JPEG of 224x224 "
            f"{100 * row('jpeg 224x224', 'loader')['of_decode']['median']:.0f} % of libjpeg-turbo's own decoding, of 32x32 "
            f"{100 * row('jpeg 32x32', 'loader')['of_decode']['median']:.0f} %; 32x32, 2 threads, "
            f"{suite.with_spread(result['pytorch'])}x as fast as {result['pytorch']['pytorch']['version']}'s DataLoader with 2 "
            f"workers over images in memory", result)


DATA_WAIT_TARGET = 0.005  # benchmarks/data.md


def data_wait(results):
    result = results("data_wait")
    by_preset = {row["preset"]: row for row in sorted(result["rows"], key=lambda row: row["data_wait_share_spread"][1])}
    worst = sorted(by_preset.values(), key=lambda row: -row["data_wait_share_spread"][1])
    presets = {row["preset"]: row["data"] for row in result["rows"]}
    computed = ", ".join(f"`{name}`" for name, data in presets.items() if data == "computed")
    return (f"wait for data, {len(presets)} presets, one rank and two ({computed} with computed data)",
            "; of the others ".join(f"at most {100 * row['data_wait_share_spread'][1]:.2f} % of a step in any turn (`{row['preset']}`, {row['step_ms']:.1f} ms a step)"
                                    for row in worst[:1 + (worst[0]["data_wait_share_spread"][1] > DATA_WAIT_TARGET)]), result)


def sweep(results):
    result = results("sweep_fashion_mnist_cnn")
    best = next(trial for trial in result["trials"] if trial["trial"] == result["best"])
    return (f"`lockstep sweep`, halving: {len(result['trials'])} settings of `{result['config']}`, {result['slots']} at once",
            f"slots busy {100 * result['busy_share']:.1f} % of {result['seconds']:.0f} s; "
            f"{100 * result['steps_share']:.1f} % of the steps of a grid; best {100 * best['accuracy']:.2f} % test accuracy", result)


def found_batches(results):
    result = results("found_batch")
    told = []
    for each in result["results"]:
        name = each["configuration"].split(",")[0]
        change = f"`{name}`: batch {each['configured']['batch']}"
        if "gained" not in each:
            told.append(f"{change} stays ({each['seconds']:.0f} s)")
        else:
            told.append(f"{change} -> {each['recommended']['batch']} ({each['seconds']:.0f} s): promised {each['promised']:.2f}x, "
                        f"gained {each['gained']:.2f}x ({min(each['gains']):.2f} to {max(each['gains']):.2f})")
    return ("`lockstep find-batch`: gain in samples per second by its recommendation, promised and measured, medians of pairs of trainings", "; ".join(told), result)


def predict_rate(results):
    result = results("predict_rate")

    def median(each, name):
        return statistics.median(turn[name] for turn in each["turns"])
    told = (f"`{each['model']}` {100 * each['busy']:.0f} %, {median(each, 'images_per_second'):,.0f} images/s" for each in result["results"])
    return ("`lockstep predict`, 10,000 JPEG files of 32x32: share of the time in which it computes", "; ".join(told), result)


# Cases of the training step on a GPU, by file and name.
GPU_CASES = {("gpu_speed", "resnet50 fp16"): "`resnet50`, 224x224, batch 256", ("gpu_speed", "resnet18 fp16"): "`resnet18`, 32x32, batch 512",
             ("gpu_speed", "resnet18, batch 128 fp16"): "`resnet18`, 32x32, batch 128",
             ("gpu_second", "resnet50 bf16"): "`resnet50`, 224x224, batch 256",
             ("gpu_second", "resnet18 bf16"): "`resnet18`, 32x32, batch 512"}


def gpu_step(file, case):
    def row(results):
        result = results(file)
        row = result["comparisons"][case]
        peer = row["pytorch"]
        return (f"training step of {GPU_CASES[file, case]}, {case.split()[-1]}, on one GPU",
                f"{speed(row)} samples/s; PyTorch {peer['version'].split('+')[0]} ({peer['best']}): {speed(peer)} ({row['ratio']:.2f}x; "
                f"{training_runs.counted(len(row['turns']['lockstep']), 'run')} of ours, {len(row['turns'][peer['best']])} of PyTorch's)", result)
    return row


def lowest_on_a_gpu(results):
    """The training step on a GPU with the lowest ratio to PyTorch."""
    file, case = min(GPU_CASES, key=lambda each: results(each[0])["comparisons"][each[1]]["ratio"])
    return gpu_step(file, case)(results)


def gpu_kernels(results):
    result = results("gpu_kernels_of_a_step")
    own = [sum(each["milliseconds"] for name, each in result[when]["kernels"].items() if name.split("<")[0] in OWN)
           for when in ("before", "after")]
    return ("kernels of a step of `resnet50`, 224x224, batch 256, fp16, of which batch norm and the sums at forks",
            f"{result['before']['milliseconds']:.1f} ms, {own[0]:.1f} of them, before these kernels were measured on a GPU; "
            f"{result['after']['milliseconds']:.1f} ms, {own[1]:.1f}, since", result)


OWN = ("moments_kernel", "statistics_kernel", "normalize_kernel", "gradient_sums_kernel", "coefficients_kernel",
       "input_gradient_kernel", "binary_kernel")


def gpu_cifar10(results):
    result = results("gpu_cifar10")
    return ("`cifar10_resnet18` in fp16, 30 epochs, images as JPEG of quality 75", f"{100 * result['lockstep']['test_accuracy']:.2f} % "
            f"test accuracy; PyTorch {result['pytorch']['version'].split('+')[0]} in bf16 {100 * result['pytorch']['test_accuracy']:.2f} % (the same "
            "recipe written for PyTorch; the program is not kept); one run each", result)


# The third and the fourth have the lowest ratios to PyTorch, on a CPU and on a GPU.
FIVE = [quickstart, AT_AVX2[0], any_precision("resnet18", "cpu_suite_amx"), lowest_on_a_gpu, all_reduce]
ALL = [quickstart, *(gpu_step(*each) for each in GPU_CASES), gpu_kernels, gpu_cifar10, step("step resnet18", "`resnet18`"), step("step mobilenet_v2", "`mobilenet_v2`"),
       step("step cnn", "`cnn`"), step("step resnet50", "`resnet50`"), *AT_AMX, *AT_ZEN5, *AT_AVX2, *AT_ZEN1,
       *(any_precision(model) for model in ("resnet18", "mobilenet_v2", "cnn", "resnet50")),
       *(any_precision(model, file) for file in ("cpu_suite_amx", "cpu_suite_zen5") for model in ("resnet18", "cnn")), memory, engine, beside_ddp,
       ranks_against_threads, all_reduce, links, plan, plan_published, scaling,
       overlap("shared", "one node"), overlap("1gbit", "two nodes on one machine, links of 1 Gb/s"),
       overlap("200mbit", "two nodes on one machine, links of 200 Mb/s"),
       encodings, codecs_of_a_step, codecs_on("200mbit", "two nodes on one machine, links of 200 Mb/s"),
       codecs_on("20mbit", "two nodes on one machine, links of 20 Mb/s"),
       cross_barrier,
       codecs_accuracy("fashion_mnist_cnn", "`comm.codec`, `cnn` on Fashion-MNIST, 4 ranks, 15 epochs"),
       codecs_accuracy("cifar10_resnet20", "`comm.codec`, `resnet20` on CIFAR-10, 2 ranks, 10 epochs"),
       codecs_accuracy("cifar10_resnet20_long", "`comm.codec`, `resnet20` on CIFAR-10, 2 ranks, 20 epochs"),
       recompute("resnet20"), recompute("resnet50"), resnet20, accuracy_beside_pytorch, fine_tuning_beside_pytorch,
       segmentation_seeds, half_precision, pinning,
       faults, soak, guards, report_cost, idle_ladder,
       *(idle_cause(each) for each in ("small_work", "data", "architecture", "memory", "communication", "allocation", "monitoring")), snapshot, loader, data_wait, sweep, found_batches, predict_rate]
PAGES = {"README.md": FIVE, "benchmarks/README.md": ALL, "benchmarks/cpu.md": [floors], "launch/tutorials/busy.md": [rungs],
         "launch/program/train_command/fine_tuning_example.md": [fine_tuning_batches]}


def table(rows, results):
    lines = ["| what | result | machine | date |", "|---|---|---|---|"]
    for found in filter(None, (row(results) for row in rows)):
        for what, text, result in found if isinstance(found, list) else [found]:
            lines.append(f"| {what} | {text} | {machine_of(result)} | {result['date']} |")
    return "\n".join(lines)


def replaced(page, begin, end, text):
    """The page with the text between the two comments."""
    before, found, rest = page.partition(begin)
    _, closed, after = rest.partition(end)
    if not found or not closed:
        raise ValueError(f"the page lacks the comments {begin} and {end}")
    return f"{before}{begin}\n{text}\n{end}{after}"


def written(name, page, results):
    """The page of this name with the table and the example that follow from the result files."""
    page = replaced(page, BEGIN, END, table(PAGES[name], results))
    return replaced(page, *EXAMPLE, quickstart_example(results)) if name == "README.md" else page


def problems(root):
    """The problems that --check reports."""
    results = root / "benchmarks/results"
    found = [f"{file.relative_to(root)} lacks {lack}" for file in sorted(results.glob("*.json"))
             for lack in record.missing(json.loads(file.read_text()))]
    if found:  # a table cannot be written from incomplete results
        return found
    for name in PAGES:
        page = (root / name).read_text()
        if written(name, page, Results(results)) != page:
            found.append(f"{name} differs from the results; run benchmarks/readme_table.py")
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="change nothing, and fail if a page or a result is wrong")
    parser.add_argument("--root", type=pathlib.Path, default=record.ROOT, help="root of the source tree")
    options = parser.parse_args()
    if not options.check:
        for name in PAGES:
            page = options.root / name
            page.write_text(written(name, page.read_text(), Results(options.root / "benchmarks/results")))
        return 0
    found = problems(options.root)
    print("\n".join(found))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
