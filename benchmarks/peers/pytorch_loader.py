# SPDX-License-Identifier: Apache-2.0
"""PyTorch's side of loader_bench: samples per second of torch.utils.data.DataLoader, shuffled, without augmentation.

  arrays   images in memory as one uint8 tensor (--samples of --image), the cheapest possible dataset
  folder   JPEG and PNG files in FOLDER/CLASS/, decoded to uint8 tensors by Pillow, as in torchvision's
           ImageFolder"""

import argparse
import json
import pathlib
import statistics
import time

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("kind", choices=["arrays", "folder"])
parser.add_argument("--folder", type=pathlib.Path, help="folder of images, for the kind folder")
parser.add_argument("--samples", type=int, default=50000, help="number of images, for the kind arrays")
parser.add_argument("--image", type=int, default=32, help="height and width of images in pixels, for the kind arrays")
parser.add_argument("--batch", type=int, default=128)
parser.add_argument("--workers", type=int, default=2)
parser.add_argument("--turns", type=int, default=3, help="timed epochs, after one warm-up epoch")
parser.add_argument("--json", default="")
options = parser.parse_args()
if options.kind == "folder" and options.folder is None:
    parser.error("the kind folder needs --folder")

import torch  # after --help


class Arrays(torch.utils.data.Dataset):
    def __init__(self):
        self.images = torch.randint(0, 256, (options.samples, options.image, options.image, 3), dtype=torch.uint8)
        self.labels = torch.arange(options.samples) % 10

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        return self.images[index], self.labels[index]


class Folder(torch.utils.data.Dataset):
    def __init__(self):
        classes = sorted(path for path in options.folder.iterdir() if path.is_dir())
        self.files = [(file, label) for label, path in enumerate(classes) for file in sorted(path.iterdir())]

    def __len__(self):
        return len(self.files)

    def __getitem__(self, index):
        import numpy
        from PIL import Image
        file, label = self.files[index]
        with Image.open(file) as image:
            return torch.from_numpy(numpy.array(image.convert("RGB"))), label


dataset = Arrays() if options.kind == "arrays" else Folder()
loader = torch.utils.data.DataLoader(dataset, batch_size=options.batch, shuffle=True, num_workers=options.workers,
                                     drop_last=True, persistent_workers=options.workers > 0)
rates = []
for turn in range(options.turns + 1):
    begin = time.perf_counter()
    samples = sum(len(labels) for _, labels in loader)
    if turn > 0:
        rates.append(samples / (time.perf_counter() - begin))
result = {"peer": f"PyTorch {torch.__version__}", "kind": options.kind, "workers": options.workers, "batch": options.batch,
          "samples_per_second": statistics.median(rates), "samples_per_second_spread": [min(rates), max(rates)]}
print(f"{result['peer']}, {options.kind}, {options.workers} workers: {result['samples_per_second']:.0f} samples/s, "
      f"{min(rates):.0f} .. {max(rates):.0f}")
if options.json:
    pathlib.Path(options.json).write_text(json.dumps(result, indent=1) + "\n")
