# SPDX-License-Identifier: Apache-2.0
"""PyTorch versions of the optimizers of models/optimizer.h, made from the keys of [optimizer]."""

import torch


class Lars(torch.optim.Optimizer):
    """Layer-wise adaptive rate scaling (You, Gitman, Ginsburg, 2017), which PyTorch does not have.

    The learning rate is outside the momentum, as in PyTorch's SGD. One-dimensional tensors have no trust ratio and do
    not decay.
    """

    def __init__(self, parameters, lr, momentum, trust_coefficient, weight_decay):
        super().__init__(parameters, {"lr": lr, "momentum": momentum, "trust_coefficient": trust_coefficient,
                                      "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for parameter in group["params"]:
                momentum = self.state[parameter].setdefault("momentum", torch.zeros_like(parameter))
                momentum.mul_(group["momentum"]).add_(self.direction(parameter, group))
                parameter.sub_(group["lr"] * momentum)

    def direction(self, parameter, group):
        if parameter.ndim == 1:
            return parameter.grad
        decay = group["weight_decay"]
        weight_norm, gradient_norm = parameter.norm(), parameter.grad.norm()
        ratio = group["trust_coefficient"] * weight_norm / (gradient_norm + decay * weight_norm)
        return ratio * (parameter.grad + decay * parameter)


def groups_of(model, settings):
    if settings.get("decay_norm_and_bias", True):
        return [{"params": list(model.parameters())}]
    decayed = [parameter for parameter in model.parameters() if parameter.ndim > 1]
    exempt = [parameter for parameter in model.parameters() if parameter.ndim == 1]
    return [{"params": decayed}, {"params": exempt, "weight_decay": 0.0}]


def make(model, settings):
    kind, lr, decay = settings["name"], settings["learning_rate"], settings["weight_decay"]
    if kind == "lars":
        return Lars(model.parameters(), lr, settings["momentum"], settings["trust_coefficient"], decay)
    groups = groups_of(model, settings)
    if kind == "adamw":
        return torch.optim.AdamW(groups, lr, (settings["beta1"], settings["beta2"]), settings["epsilon"], decay)
    return torch.optim.SGD(groups, lr, settings["momentum"], weight_decay=decay,
                           nesterov=settings.get("nesterov", False))
