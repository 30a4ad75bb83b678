# SPDX-License-Identifier: Apache-2.0
"""Computes the cases of kernel_cases.py with PyTorch in float64, and how far an fp32 kernel may be from the results.

Each function takes a case and returns, by name, an array of results and an array of bounds. A bound follows from the
arithmetic alone and holds for any order of summation, with or without fused multiply-add:

  U            one rounding, relative: 2^-24
  n terms      a sum of n terms is wrong by at most n U times the sum of their magnitudes
  k roundings  a formula is wrong by at most k U times its value for the magnitudes of its inputs with every difference
               made a sum, where k is the number of roundings on the longest path from an input to the result
  TINY         2^-149, the least positive fp32 number: a result that underflows is wrong by at most that

Rules for numbers that float64 holds and fp32 does not:

  - A result above the largest fp32 number must be infinite, with its sign. A result that is computed from overflowed
    state must be infinite, too: an SGD step by an infinite momentum, for example.
  - A result whose terms overflow but cancel is undecided, and its bound infinite: it depends on the order of the terms
    and on fused multiply-add.
  - A result that is a normal fp32 number must be right even where an intermediate product could underflow: the kernel
    must multiply in an order that avoids it. Comments at the bounds name the exceptions.
"""

import math

import numpy as np
import torch
from torch.nn import functional

import kernel_cases

U = 2.0**-24
TINY = 2.0**-149
LARGEST = float(np.finfo(np.float32).max)
SLACK = 1.02  # products of small errors


class Undecided(Exception):
    """The rounding of an fp32 kernel may change a decision, such as which element is the largest. The case is not used."""


def wide(case, name):
    return kernel_cases.draw(case, name).astype(np.float64)


def tensor(array):
    return torch.from_numpy(np.array(array, np.float64))


def result(exact, bound, largest=0.0):
    """largest: magnitude of the largest term, where terms may overflow. The bound includes the rounding of
    the stored result."""
    bound = SLACK * np.broadcast_to(bound, np.shape(exact)) + U * np.abs(np.where(np.isinf(exact), 0, exact)) + TINY
    overflows = np.isinf(exact) | (np.abs(exact) * (1 - U) - bound > LARGEST)
    undecided = ~overflows & (np.maximum(np.abs(exact) + bound, largest) > LARGEST)
    return exact, np.where(overflows, 0.0, np.where(undecided, np.inf, bound))


def exact_result(exact):
    return exact, np.zeros_like(exact)


# ---- optimizers

def gradient_of(case, step):
    """Two roundings: of the factor, and of the product."""
    return wide(case, f"gradient {step}") * (case["clip"] / case["loss_scale"])


def parts(case):
    return [slice(segment["begin"], segment["begin"] + segment["count"]) for segment in case["segments"]]


def train(case, make):
    """Returns the values after the steps, and the optimizer's state by name, zero outside the segments."""
    value = wide(case, "value")
    parameters = [tensor(value[part]).requires_grad_() for part in parts(case)]
    optimizer = make([{"params": [parameter], "weight_decay": segment["weight_decay"]}
                      for parameter, segment in zip(parameters, case["segments"])])
    for step in range(1, case["steps"] + 1):
        gradient = gradient_of(case, step)
        for parameter, part in zip(parameters, parts(case)):
            parameter.grad = tensor(gradient[part])
        optimizer.step()
    state = {}
    for parameter, part in zip(parameters, parts(case)):
        value[part] = parameter.detach().numpy()
        for name, array in optimizer.state[parameter].items():
            if name != "step" and array is not None:
                state.setdefault(name, np.zeros_like(value))[part] = array.numpy()
    return value, state


def decay_of(case):
    decay = np.zeros(case["tensors"]["value"]["count"])
    for segment, part in zip(case["segments"], parts(case)):
        decay[part] = segment["weight_decay"]
    return decay


def trained(case):
    """1 for elements of a segment, 0 for the others."""
    inside = np.zeros(case["tensors"]["value"]["count"])
    for part in parts(case):
        inside[part] = 1
    return inside


def sgd(case):
    rate, momentum, inside = case["learning_rate"], case["momentum"], trained(case)
    value, state = train(case, lambda groups: torch.optim.SGD(groups, rate, momentum, nesterov=case["nesterov"]))
    value_size, momentum_size = np.abs(wide(case, "value")), 0.0
    for step in range(1, case["steps"] + 1):
        decayed = np.abs(gradient_of(case, step)) + decay_of(case) * value_size
        momentum_size = momentum * momentum_size + decayed
        step_size = decayed + momentum * momentum_size if case["nesterov"] else momentum_size
        value_size = value_size + rate * step_size * inside
    # The path from a value through one step to the next value has 9 roundings: the products with weight decay, momentum
    # (twice with Nesterov) and the rate, the sums after each, and the rate. Exception: each product may underflow.
    roundings = 9 * case["steps"]
    vanished = 4 * case["steps"] * max(rate, 1) * TINY * inside
    results = {}
    if "momentum_buffer" in state:  # PyTorch has no buffer without momentum
        buffer = state["momentum_buffer"]
        results["momentum"] = result(buffer, (roundings * U * momentum_size + vanished) * inside, momentum_size * inside)
        undecided = np.isinf(results["momentum"][1])
        value = np.where((np.abs(buffer) > LARGEST) & ~undecided, np.copysign(np.inf, -buffer), value)
        value_size = np.where(undecided, np.inf, value_size)
    largest = np.maximum(value_size, step_size * inside)
    results["value"] = result(value, roundings * U * np.where(inside, value_size, 0) + vanished, largest)
    return results


def adamw(case):
    rate, betas = case["learning_rate"], (case["beta1"], case["beta2"])
    value, state = train(case, lambda groups: torch.optim.AdamW(groups, rate, betas, case["epsilon"]))
    inside, decay = trained(case), decay_of(case)
    value_size, first_size, second = np.abs(wide(case, "value")), 0.0, 0.0
    for step in range(1, case["steps"] + 1):
        gradient = gradient_of(case, step) * inside
        # The kernel computes m + (1 - beta1) (g - m). Its terms are larger than those of
        # beta1 m + (1 - beta1) g.
        first_size = first_size + (1 - betas[0]) * (np.abs(gradient) + first_size)
        second = betas[1] * second + (1 - betas[1]) * gradient**2
        correction = 1 / math.sqrt(1 - betas[1]**step)
        denominator = np.sqrt(second) * correction + case["epsilon"]
        value_size = value_size * (1 + rate * decay) + rate / (1 - betas[0]**step) * first_size / denominator * inside
    steps = case["steps"]
    # Roundings in each step. m: 5; the gradient adds its 2 once. v: 2 of its factors, 2 products, 1 sum, and twice the
    # gradient's 2. Value: 5, plus those of m, half of those of v, and 12 for the root, its factor, epsilon,
    # the quotient and the products. Exception: the square of a small gradient may underflow; `lost` bounds
    # its root.
    lost = np.sqrt(steps * TINY) * correction / denominator
    return {"first_moment": result(state["exp_avg"], (5 * steps + 2) * U * first_size),
            "second_moment": result(state["exp_avg_sq"], 9 * steps * U * second + 2 * steps * TINY),
            "value": result(value, ((5 + 5 + 4.5) * steps + 12) * U * value_size * inside + lost * value_size)}


def lars(case):
    """PyTorch has no LARS: this is the formula of kernels/update.h in float64."""
    value, momentum = wide(case, "value"), np.zeros(case["tensors"]["value"]["count"])
    value_size, momentum_size = np.abs(value), np.zeros_like(value)
    ratios, ratio_sizes = np.ones(len(case["segments"])), np.ones(len(case["segments"]))
    value_roundings = momentum_roundings = ratio_roundings = 0
    for step in range(1, case["steps"] + 1):
        gradient = gradient_of(case, step)
        for i, (segment, part) in enumerate(zip(case["segments"], parts(case))):
            decay, g = segment["weight_decay"], gradient[part]
            if segment["adaptive"]:
                norm = np.linalg.norm(value[part])
                ratios[i] = case["trust_coefficient"] * norm / (np.linalg.norm(g) + decay * norm + case["epsilon"])
                # The values' errors, relative to their norm, are the norm's.
                ratio_sizes[i] = ratios[i] * np.linalg.norm(value_size[part]) / norm
            momentum[part] = case["momentum"] * momentum[part] + ratios[i] * (g + decay * value[part])
            momentum_size[part] = (case["momentum"] * momentum_size[part]
                                   + ratio_sizes[i] * (np.abs(g) + decay * value_size[part]))
            value[part] -= case["learning_rate"] * momentum[part]
            value_size[part] += case["learning_rate"] * momentum_size[part]
        # Roundings. The ratio: those of the values, 2 of the gradient and its own; norms are sums in fp64. The momentum:
        # those of the ratio and of the decayed gradient, which has 3 more than the value, a product and a sum. The value: 3
        # more, of the rate, a product and a sum.
        ratio_roundings = value_roundings + 3
        momentum_roundings = max(momentum_roundings + 1, ratio_roundings + value_roundings + 4) + 1
        value_roundings = momentum_roundings + 3
    vanished = 8 * case["steps"] * TINY * max(case["learning_rate"], 1)
    return {"value": result(value, value_roundings * U * value_size * trained(case) + vanished * trained(case)),
            "momentum": result(momentum, momentum_roundings * U * momentum_size + vanished),
            "trust_ratios": result(ratios, ratio_roundings * U * ratio_sizes)}


# ---- the loss

def loss(case):
    """Softmax and sums may be fp32; exp(x) is within one unit in the last place, 2 U."""
    batch, classes = case["batch"], case["classes"]
    logits = tensor(wide(case, "logits").reshape(batch, classes)).requires_grad_()
    weights = np.abs(wide(case, "weights"))
    weights[case["without_weight"]] = 0
    target = torch.from_numpy(kernel_cases.labels(case).astype(np.int64))
    if case["mixes"]:
        shares = tensor(np.abs(wide(case, "shares")))[:, None]
        one_hot = functional.one_hot(target, classes).double()
        partner = one_hot.reshape(-1, 2, classes).flip(1).reshape(batch, classes)
        losses = functional.cross_entropy(logits, shares * one_hot + (1 - shares) * partner, reduction="none",
                                          label_smoothing=case["label_smoothing"])
    else:
        losses = functional.cross_entropy(logits, target, reduction="none", label_smoothing=case["label_smoothing"])
    total = (tensor(weights) * losses).sum()
    gradient_scale = case["gradient_scale"] * case["loss_scale"]
    (total * gradient_scale).backward()

    x = logits.detach()
    if (torch.topk(x, 2).values.diff() == 0).any():
        raise Undecided
    correct = ((x.argmax(1) == target).numpy() & (weights > 0)).sum()
    probability = torch.softmax(x, 1).numpy()
    distance = (x.amax(1, keepdim=True) - x).numpy()
    # An exponent is rounded, which costs a share of its magnitude; then exp and, at worst, each addition.
    share_error = probability * (distance + 2)
    sum_error = share_error.sum(1, keepdims=True) + classes
    losses = losses.detach().numpy()
    scale = weights[:, None] * gradient_scale
    # Exception: probabilities are fp32 numbers before they are scaled, and the smallest of them underflow.
    gradient_bound = scale * (U * (share_error + probability * (sum_error + 1)) + TINY)
    gradient = logits.grad.numpy()
    return {"loss": result(np.array([total.item()]), (weights * (sum_error[:, 0] + 2 * losses + 1)).sum() * U),
            "weight": result(np.array([weights.sum()]), batch * U * weights.sum()),
            "correct": exact_result(np.array([float(correct)])),
            "samples": exact_result(np.array([float((weights > 0).sum())])),
            "gradient": result(gradient.ravel(), (gradient_bound + 2 * U * np.abs(gradient)).ravel())}


# ---- batch norm

def per_channel(array):
    return np.asarray(array)[None, :, None]


def over_channel(array):
    return array.sum(axis=(0, 2))


def batch_norm_x(case):
    """Elements plus the center of their channel, rounded to fp32."""
    shape = case["shape"]
    x = kernel_cases.draw(case, "x").reshape(shape[0], shape[1], -1)
    return x + per_channel(np.array(case["centers"], np.float32))


def gradient_at(before, activation, bound, given):
    """Returns given where the activation passes the gradient, else 0. Inputs within their error of a kink are undecided."""
    passed = np.ones(before.shape, bool)
    for kink in {"none": (), "relu": (0,), "relu6": (0, 6)}[activation]:
        if (np.abs(before - kink) <= 2 * bound).any():
            raise Undecided
        passed &= (before > 0) if kink == 0 else (before < 6)
    return np.where(passed, given, 0.0)


class BatchNormErrors:
    """First-order bounds of a channel's mean, of 1 / deviation (relative) and of the normalised x."""

    def __init__(self, case, x, scale, shift, residual):
        self.n = x.shape[0] * x.shape[2]
        self.mean = x.mean(axis=(0, 2))
        distance = np.abs(x - per_channel(self.mean))
        variance = over_channel(distance**2) / self.n
        furthest = distance.max(axis=(0, 2))
        self.inverse = 1 / np.sqrt(variance + case["epsilon"])
        # The kernel sums distances d from any one element of the channel, and d^2. Then variance = mean(d^2) - mean(d)^2,
        # where |mean(d)| is at most `furthest`.
        self.mean_error = U * np.abs(self.mean) + (self.n + 2) * U * (over_channel(distance) / self.n + furthest)
        self.variance_error = (self.n + 6) * U * (variance + 3 * furthest**2)
        self.inverse_error = self.variance_error * self.inverse**2 / 2 + 2 * U
        if self.inverse_error.max() > 0.01:
            raise Undecided
        slope = per_channel(np.abs(scale) * self.inverse)
        line = slope * distance
        self.distance = distance
        self.y = (line * (per_channel(self.inverse_error) + 5 * U) + slope * per_channel(self.mean_error)
                  + 3 * U * (per_channel(np.abs(shift)) + np.abs(residual)))


def backward_bounds(errors, scale, given):
    """Bounds of the gradients of scale, of shift and of x, which is s (g - mean(g) - (x - mean) mean(g (x - mean)) /
    deviation^2) with s = scale / deviation."""
    n, inverse, distance = errors.n, errors.inverse, errors.distance
    inverse_error = errors.inverse_error
    sums, products = over_channel(np.abs(given)), over_channel(np.abs(given) * distance)
    sum_error = n * U * sums
    product_error = (n + 3) * U * products + sums * errors.mean_error
    factor = np.abs(scale) * inverse
    by_gradient = per_channel(factor * (inverse_error + 6 * U)) * np.abs(given)
    by_constant = factor / n * (sums * (inverse_error + 6 * U) + sum_error)
    by_x = per_channel(factor * inverse**2 / n) * (
        per_channel(products * (3 * inverse_error + 8 * U) + product_error) * distance
        + per_channel(products * errors.mean_error))
    return {"x_gradient": by_gradient + per_channel(by_constant) + by_x,
            "scale_gradient": product_error * inverse + products * inverse * (inverse_error + 2 * U),
            "shift_gradient": sum_error + 2 * U * sums}


def activated(y, activation):
    return functional.relu6(y) if activation == "relu6" else functional.relu(y) if activation == "relu" else y


def batch_norm(case):
    """Evaluates, then trains. If frozen, training also normalises with the running statistics."""
    x = batch_norm_x(case).astype(np.float64)
    given = wide(case, "y_gradient").reshape(x.shape)
    residual = wide(case, "residual").reshape(x.shape) if case["residual"] else np.zeros_like(x)
    scale, shift, running_mean = (wide(case, name) for name in ("scale", "shift", "running_mean"))
    running_var = np.abs(wide(case, "running_var"))
    activation = case["activation"]

    inputs = [tensor(array).requires_grad_() for array in (x, residual, scale, shift)]
    new_mean, new_var = tensor(running_mean), tensor(running_var)

    def normalized(training):
        return functional.batch_norm(inputs[0], new_mean, new_var, inputs[2], inputs[3], training=training,
                                     momentum=case["momentum"], eps=case["epsilon"]) + inputs[1]

    # With the running statistics y is linear in x. The root, a quotient, a product and the sums are rounded.
    line = per_channel(np.abs(scale) / np.sqrt(running_var + case["epsilon"])) * np.abs(x - per_channel(running_mean))
    bound = 7 * U * line + 3 * U * (per_channel(np.abs(shift)) + np.abs(residual))
    evaluated = activated(normalized(training=False), activation).detach().numpy()
    results = {"evaluation_y": result(evaluated, bound)}
    if not case["frozen"]:
        errors = BatchNormErrors(case, x, scale, shift, residual)
        bound = errors.y
    before = normalized(training=not case["frozen"])
    passed = gradient_at(before.detach().numpy(), activation, bound, given)
    y = activated(before, activation)
    y.backward(tensor(given))
    x_gradient, residual_gradient, scale_gradient, shift_gradient = (one.grad.numpy() for one in inputs)
    results["y"] = result(y.detach().numpy(), bound)
    if case["residual"]:
        results["residual_gradient"] = exact_result(residual_gradient)
    if case["frozen"]:
        results["x_gradient"] = result(x_gradient, 6 * U * np.abs(x_gradient))
        return results
    bounds = backward_bounds(errors, scale, passed)
    for name, exact in (("x_gradient", x_gradient), ("scale_gradient", scale_gradient), ("shift_gradient", shift_gradient)):
        results[name] = result(exact, bounds[name])
    share, n = case["momentum"], errors.n
    results["mean"] = result(new_mean.numpy(), share * errors.mean_error
                             + 4 * U * ((1 - share) * np.abs(running_mean) + share * np.abs(errors.mean)))
    results["variance"] = result(new_var.numpy(), share * errors.variance_error * n / (n - 1) + 5 * U * new_var.numpy())
    return results


# ---- pooling

def pooled(case, x):
    if case["kind"] == "max":
        if case["global"]:
            return functional.adaptive_max_pool2d(x, 1)
        return functional.max_pool2d(x, case["kernel"], case["stride"], case["padding"])
    if case["global"]:
        return functional.adaptive_avg_pool2d(x, 1)
    return functional.avg_pool2d(x, case["kernel"], case["stride"], case["padding"], count_include_pad=False)


def pooling(case):
    shape = case["shape"]
    x = wide(case, "x").reshape(shape)
    for plane in x.reshape(shape[0] * shape[1], -1):
        if len(np.unique(plane)) < plane.size:
            raise Undecided  # two elements of a plane are equal

    def run(x, given_sign):
        x = tensor(x).requires_grad_()
        y = pooled(case, x)
        y.backward(given_sign(tensor(wide(case, "y_gradient")).reshape(y.shape)))
        return y.detach().numpy(), x.grad.numpy()

    y, x_gradient = run(x, lambda given: given)
    _, gradient_size = run(x, torch.abs)
    size = case["shape"][2:]
    terms = size[0] * size[1] if case["global"] else case["kernel"] ** 2
    windows = 1 if case["global"] else math.ceil(case["kernel"] / case["stride"]) ** 2  # that share an element, at most
    if case["kind"] == "max":
        return {"y": exact_result(y), "x_gradient": result(x_gradient, windows * U * gradient_size)}
    y_size, _ = run(np.abs(x), torch.abs)
    # A sum and its quotient, or products with a rounded quotient.
    return {"y": result(y, (terms + 2) * U * y_size), "x_gradient": result(x_gradient, (windows + 2) * U * gradient_size)}


PEERS = {"sgd": sgd, "sgd_out_of_range": sgd, "adamw": adamw, "lars": lars, "loss": loss, "batch_norm": batch_norm,
         "pooling": pooling}
