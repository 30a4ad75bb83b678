# SPDX-License-Identifier: Apache-2.0
"""Random cases of kernels for make_kernel_golden.py: shapes, hyper-parameters and magnitudes.

A case is a dictionary that the golden file holds as JSON. The file does not hold the inputs: draw() here and
KernelGolden::draw in kernels_golden_test.cpp compute them by the same formula, from a case's "tensors": the number of
elements of each input and their powers of two.
"""

import random

import numpy as np

import golden_cases

LOWEST, HIGHEST = -40, 40  # magnitudes of inputs are from 2^LOWEST to 2^(HIGHEST + 1)


def magnitudes(rng, count, groups=1, period=1, around=None):
    """A group is `period` adjacent elements with magnitudes from 2^exponents[group] to 2^(exponents[group] + spread + 1)."""
    spread = rng.choice([0, 3, 12, HIGHEST - LOWEST] if around is None else [0, 3])
    low, high = LOWEST, HIGHEST - spread
    if around is not None:
        low, high = max(low, around - 3), min(high, around + 3)
    exponents = [rng.randint(low, high) for _ in range(groups)]
    return {"count": count, "exponents": exponents, "spread": spread, "period": period}


def draw(case, name):
    """fp32 [count]: random signs, significands and powers of two."""
    tensor = case["tensors"][name]
    count = tensor["count"]
    bits = golden_cases.random_bits(case["seed"], name, count)
    above = golden_cases.random_bits(case["seed"], name + " exponent", count) % np.uint32(tensor["spread"] + 1)
    group = np.arange(count) // tensor["period"] % len(tensor["exponents"])
    exponent = (127 + np.array(tensor["exponents"])[group] + above).astype(np.uint32)
    return ((bits & np.uint32(0x807FFFFF)) | (exponent << np.uint32(23))).view(np.float32)


def labels(case):
    return golden_cases.random_bits(case["seed"], "labels", case["batch"]) % np.uint32(case["classes"])


def fp32(number):
    """A hyper-parameter that Lockstep keeps in fp32."""
    return float(np.float32(number))


def log_uniform(rng, low, high):
    return 10.0 ** rng.uniform(low, high)


def segments(rng, most_decay):
    """Three segments with a weight decay each. One element is in no segment."""
    ends = [0, rng.randint(1, 40), rng.randint(41, 80), 110]
    kept = [(begin, end - begin) for begin, end in zip(ends, ends[1:])]
    kept[2] = (kept[2][0] + 1, kept[2][1] - 1)
    return [{"begin": begin, "count": count, "weight_decay": fp32(rng.choice([0, rng.uniform(0, most_decay)]))}
            for begin, count in kept]


def optimizer_case(rng, steps, most_decay=0.5):
    """In half of the cases gradients are about as large as values. In the others a step changes few
    values."""
    count = 110
    value = magnitudes(rng, count)
    near = rng.random() < 0.5
    gradients = {f"gradient {step}": magnitudes(rng, count, around=value["exponents"][0] if near else None)
                 for step in range(1, steps + 1)}
    return {"steps": steps, "segments": segments(rng, most_decay), "tensors": {"value": value, **gradients},
            "loss_scale": rng.choice([1.0, 2.0 ** rng.randint(-10, 24)]),
            "clip": rng.choice([1.0, fp32(rng.uniform(0.01, 1))])}


def sgd_case(rng):
    momentum = fp32(rng.choice([0, 0.9, rng.uniform(0.1, 0.99)]))
    return {**optimizer_case(rng, 3), "learning_rate": log_uniform(rng, -4, 0), "momentum": momentum,
            "nesterov": momentum > 0 and rng.random() < 0.5}


def sgd_out_of_range_case(rng):
    """One step from values and gradients of all exponents: steps and results overflow and underflow."""
    case = sgd_case(rng)
    # A loss scale of 2^-8 makes unscaled gradients, and so the momentum, overflow too.
    case.update(steps=1, loss_scale=2.0**-8, clip=1.0, momentum=fp32(0.9), nesterov=rng.random() < 0.5,
                learning_rate=rng.choice([2.0**9, 2.0**-9]))
    wide = {"count": 110, "exponents": [-126], "spread": 253, "period": 1}
    case["tensors"] = {"value": wide, "gradient 1": wide}
    return case


def adamw_case(rng):
    near = rng.random() < 0.5
    case = optimizer_case(rng, 4)
    # A step is about as large as the learning rate, whatever the gradients are.
    rate = 2.0 ** (case["tensors"]["value"]["exponents"][0] + rng.uniform(-8, 0)) if near else log_uniform(rng, -5, 0)
    case["segments"] = segments(rng, 0.5 / max(rate, 1))
    return {**case, "learning_rate": rate, "beta1": rng.choice([0.9, rng.uniform(0.5, 0.99)]),
            "beta2": rng.choice([0.999, rng.uniform(0.5, 0.9999)]), "epsilon": log_uniform(rng, -12, -3)}


def lars_case(rng):
    case = optimizer_case(rng, 3)
    for segment in case["segments"]:
        segment["adaptive"] = rng.random() < 0.8
    return {**case, "learning_rate": log_uniform(rng, -3, 0.5), "momentum": fp32(rng.choice([0, 0.9])),
            "trust_coefficient": fp32(log_uniform(rng, -3, -1)), "epsilon": fp32(log_uniform(rng, -12, -6))}


def loss_case(rng):
    batch, classes = 2 * rng.randint(1, 8), rng.choice([2, 3, 10, 17])
    around = rng.choice([None, 1, 4])
    return {"batch": batch, "classes": classes, "mixes": rng.random() < 0.4,
            "label_smoothing": fp32(rng.choice([0, 0, 0.1, 0.1, rng.uniform(0, 1), 1])),
            "gradient_scale": fp32(1 / batch), "loss_scale": rng.choice([1.0, 2.0 ** rng.randint(-10, 24)]),
            "without_weight": [sample for sample in range(batch) if rng.random() < 0.2],
            "tensors": {"logits": magnitudes(rng, batch * classes, batch, classes, around),
                        "weights": magnitudes(rng, batch, around=rng.choice([None, 0])),
                        "shares": {"count": batch, "exponents": [-1], "spread": 0, "period": 1}}}


def batch_norm_case(rng):
    batch, channels, height, width = rng.randint(2, 5), rng.choice([1, 3, 4]), rng.randint(1, 4), rng.randint(1, 4)
    if rng.random() < 0.2:
        batch, channels, height, width = 2, 16, 2, 2  # the CPU backend uses a blocked layout for this shape
    count, pixels = batch * channels * height * width, height * width
    x = magnitudes(rng, count, channels, pixels)
    activation = rng.choice(["none", "relu", "relu6"])
    # Few values lie between the kinks of relu6 unless scale, shift and residual are about 1.
    usual = 0 if activation == "relu6" and rng.random() < 0.7 else None
    centers = [fp32(rng.choice([0, 1, 2**8]) * rng.uniform(-1, 1) * 2.0 ** min(HIGHEST, e + x["spread"]))
               for e in x["exponents"]]
    case = {"shape": [batch, channels, height, width], "epsilon": fp32(log_uniform(rng, -12, -2)),
            "momentum": fp32(rng.choice([0.1, rng.random(), 1])), "activation": activation,
            "residual": rng.random() < 0.5, "frozen": rng.random() < 0.25, "centers": centers,
            "tensors": {"x": x, "y_gradient": magnitudes(rng, count, channels, pixels)}}
    if case["residual"]:
        case["tensors"]["residual"] = magnitudes(rng, count, around=usual)
    for name in ("scale", "shift", "running_mean", "running_var"):
        case["tensors"][name] = magnitudes(rng, channels, channels, around=usual if name in ("scale", "shift") else None)
    return case


def pooling_case(rng):
    is_global = rng.random() < 0.25
    kernel = rng.randint(1, 5)
    padding = rng.choice([0, kernel // 2, rng.randint(0, kernel // 2)])  # half the kernel is the most
    least = max(1, kernel - 2 * padding)
    shape = [rng.randint(1, 2), rng.choice([1, 3, 16]), rng.randint(least, 7), rng.randint(least, 7)]
    if shape[1] == 16:
        shape[0] = 1
    count = int(np.prod(shape))
    # Windows may overlap or leave gaps.
    stride = rng.randint(1, kernel + 1)
    out = [1, 1] if is_global else [(size + 2 * padding - kernel) // stride + 1 for size in shape[2:]]
    return {"kind": rng.choice(["max", "average"]), "shape": shape, "global": is_global, "kernel": kernel,
            "stride": stride, "padding": padding,
            "tensors": {"x": magnitudes(rng, count), "y_gradient": magnitudes(rng, shape[0] * shape[1] * out[0] * out[1])}}


# The function that draws a case, and the number of cases in a file.
FAMILIES = {"sgd": (sgd_case, 6), "sgd_out_of_range": (sgd_out_of_range_case, 4), "adamw": (adamw_case, 6),
            "lars": (lars_case, 6), "loss": (loss_case, 12), "batch_norm": (batch_norm_case, 20),
            "pooling": (pooling_case, 24)}


def cases(family, seed):
    """Yields cases without end: kernel_peers.py refuses some (Undecided)."""
    make, _ = FAMILIES[family]
    number = 0
    while True:
        number += 1
        case = make(random.Random(f"{family} {seed} {number}"))
        yield {"seed": seed * 1000 + number, **case}
