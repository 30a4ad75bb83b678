# SPDX-License-Identifier: Apache-2.0
"""PyTorch versions of the shipped networks, with torchvision's parameter names, to compare Lockstep with."""

import torch
from torch import nn


class BasicBlock(nn.Module):
    expansion = 1

    def __init__(self, inputs, channels, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, channels, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = shortcut(inputs, channels, stride)

    def forward(self, x):
        y = self.relu(self.bn1(self.conv1(x)))
        y = self.bn2(self.conv2(y))
        return self.relu(y + (x if self.downsample is None else self.downsample(x)))


class Bottleneck(nn.Module):
    """ResNet v1.5: the 3x3 convolution has the stride."""

    expansion = 4

    def __init__(self, inputs, channels, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, channels, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, stride, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)
        self.conv3 = nn.Conv2d(channels, 4 * channels, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(4 * channels)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = shortcut(inputs, 4 * channels, stride)

    def forward(self, x):
        y = self.relu(self.bn1(self.conv1(x)))
        y = self.relu(self.bn2(self.conv2(y)))
        y = self.bn3(self.conv3(y))
        return self.relu(y + (x if self.downsample is None else self.downsample(x)))


def shortcut(inputs, outputs, stride):
    if stride == 1 and inputs == outputs:
        return None
    return nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))


class ResNet(nn.Module):
    def __init__(self, block, blocks, width, channels, classes, small_stem):
        super().__init__()
        if small_stem:
            self.conv1 = nn.Conv2d(channels, width, 3, 1, 1, bias=False)
            self.maxpool = nn.Identity()
        else:
            self.conv1 = nn.Conv2d(channels, width, 7, 2, 3, bias=False)
            self.maxpool = nn.MaxPool2d(3, 2, 1)
        self.bn1 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)
        inputs = width
        self.stages = len(blocks)
        for stage, count in enumerate(blocks):
            layers = []
            for i in range(count):
                layers.append(block(inputs, width << stage, 2 if stage > 0 and i == 0 else 1))
                inputs = (width << stage) * block.expansion
            setattr(self, f"layer{stage + 1}", nn.Sequential(*layers))
        self.fc = nn.Linear(inputs, classes)

    def forward(self, x):
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        for stage in range(self.stages):
            x = getattr(self, f"layer{stage + 1}")(x)
        return self.fc(x.mean((2, 3)))


class InvertedResidual(nn.Module):
    def __init__(self, inputs, outputs, stride, expansion):
        super().__init__()
        hidden = inputs * expansion
        layers = [] if expansion == 1 else [conv_bn_relu6(inputs, hidden, 1)]
        layers += [conv_bn_relu6(hidden, hidden, 3, stride, groups=hidden),
                   nn.Conv2d(hidden, outputs, 1, bias=False), nn.BatchNorm2d(outputs)]
        self.conv = nn.Sequential(*layers)
        self.residual = stride == 1 and inputs == outputs

    def forward(self, x):
        return x + self.conv(x) if self.residual else self.conv(x)


def conv_bn_relu6(inputs, outputs, kernel, stride=1, groups=1):
    return nn.Sequential(nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False),
                         nn.BatchNorm2d(outputs), nn.ReLU6(inplace=True))


class MobileNetV2(nn.Module):
    SETTINGS = [(1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2),
                (6, 320, 1, 1)]

    def __init__(self, channels, classes, dropout, small_stem):
        super().__init__()
        features = [conv_bn_relu6(channels, 32, 3, 1 if small_stem else 2)]
        inputs = 32
        for expansion, outputs, count, stride in self.SETTINGS:
            for i in range(count):
                first = stride if i == 0 else 1
                if small_stem and outputs == 24:
                    first = 1
                features.append(InvertedResidual(inputs, outputs, first, expansion))
                inputs = outputs
        features.append(conv_bn_relu6(inputs, 1280, 1))
        self.features = nn.Sequential(*features)
        self.classifier = nn.Sequential(nn.Dropout(dropout), nn.Linear(1280, classes))

    def forward(self, x):
        return self.classifier(self.features(x).mean((2, 3)))


class VggSmall(nn.Module):
    """VGG-11 with batch norm for small images: one linear layer after the last 1x1 map."""

    def __init__(self, channels, classes):
        super().__init__()
        layers = []
        inputs = channels
        for size in [64, "M", 128, "M", 256, 256, "M", 512, 512, "M", 512, 512, "M"]:
            if size == "M":
                layers.append(nn.MaxPool2d(2, 2))
                continue
            layers += [nn.Conv2d(inputs, size, 3, padding=1), nn.BatchNorm2d(size), nn.ReLU(inplace=True)]
            inputs = size
        self.features = nn.Sequential(*layers)
        self.classifier = nn.Linear(512, classes)

    def forward(self, x):
        return self.classifier(torch.flatten(self.features(x), 1))


class Cnn(nn.Module):
    def __init__(self, channels, classes, image, batch_norm):
        super().__init__()
        self.conv1 = nn.Conv2d(channels, 32, 3, padding=1, bias=not batch_norm)
        self.bn1 = nn.BatchNorm2d(32) if batch_norm else nn.Identity()
        self.conv2 = nn.Conv2d(32, 64, 3, padding=1, bias=not batch_norm)
        self.bn2 = nn.BatchNorm2d(64) if batch_norm else nn.Identity()
        self.fc1 = nn.Linear(64 * (image // 4) ** 2, 128)
        self.fc2 = nn.Linear(128, classes)
        self.relu = nn.ReLU(inplace=True)
        self.pool = nn.MaxPool2d(2, 2)

    def forward(self, x):
        x = self.pool(self.relu(self.bn1(self.conv1(x))))
        x = self.pool(self.relu(self.bn2(self.conv2(x))))
        return self.fc2(self.relu(self.fc1(torch.flatten(x, 1))))


def build(name, channels=3, classes=10, image=32, dropout=0.0, batch_norm=True):
    """A network by Lockstep's name. The stem is the small one up to 64 pixels, as with model.stem =
    "auto"."""
    small = image <= 64
    resnets = {"resnet18": (BasicBlock, [2, 2, 2, 2], 64), "resnet34": (BasicBlock, [3, 4, 6, 3], 64),
               "resnet50": (Bottleneck, [3, 4, 6, 3], 64), "resnet20": (BasicBlock, [3, 3, 3], 16)}
    if name in resnets:
        return ResNet(*resnets[name], channels, classes, small or name == "resnet20")
    if name == "mobilenet_v2":
        return MobileNetV2(channels, classes, dropout, small)
    if name == "vgg11_bn" and small:
        return VggSmall(channels, classes)
    if name == "cnn":
        return Cnn(channels, classes, image, batch_norm)
    raise ValueError(f"no PyTorch twin of {name} at {image} pixels")
