#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""report_page_test.py LOCKSTEP: tests `lockstep report` on folders of real trainings and on damaged folders,
and `lockstep profile --html`. Pages are parsed strictly, their SVG as XML, and must have no scripts and no
external references. With LOCKSTEP_TEST_CLIENTS=1 and Chromium, pages are laid out at the widths of a screen
and of a phone, and must not be wider."""

import html.parser
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
import xml.etree.ElementTree

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[3] / "benchmarks"))
import training_runs

LOCKSTEP = None
WITHOUT_END = {"meta", "br", "hr", "img", "link", "input"}


class Page(html.parser.HTMLParser):
    """Parses a page and asserts that tags nest. Collects tags, attributes and the text outside <style>."""

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.open, self.attributes, self.words, self.tags = [], [], [], []
        self.feed(text)
        self.close()
        assert not self.open, self.open

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.attributes += [(tag, name, value) for name, value in attributes]
        if tag not in WITHOUT_END:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.handle_starttag(tag, attributes)
        if tag not in WITHOUT_END:
            self.open.pop()

    def handle_endtag(self, tag):
        assert self.open and self.open[-1] == tag, (self.open, tag, self.getpos())
        self.open.pop()

    def handle_data(self, data):
        if "style" not in self.open:
            self.words.append(data)

    def text(self):
        return " ".join(" ".join(self.words).split())


class ReportPage(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        training_runs.write_images(self.folder, 1024, 500, 28)

    def lockstep(self, *arguments):
        return subprocess.run([LOCKSTEP, *map(str, arguments)], capture_output=True, text=True)

    def train(self, name, *settings, ranks=1):
        run = self.folder / name
        settings = [f"data.path=\"{self.folder}\"", "train.epochs=2", "train.steps=4", "train.batch=256", 'model.name="mlp"', f'run.dir="{run}"', *settings]
        launch = training_runs.launcher(ranks) if ranks > 1 else []
        done = subprocess.run([*launch, LOCKSTEP, "train", "fashion_mnist_cnn", *training_runs.overrides(settings)],
                              capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return run

    def untrained(self, metrics):
        """A run's folder with only this metrics.jsonl."""
        run = self.folder / "run"
        run.mkdir()
        (run / "metrics.jsonl").write_text(metrics)
        return run

    def report(self, *arguments):
        done = self.lockstep("report", *arguments)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        paths = re.findall(r"[^\s'\"]+\.html", done.stdout)
        self.assertEqual(len(paths), 1, done.stdout)
        return pathlib.Path(paths[0])

    def checked(self, path, draws=True):
        text = path.read_text()
        page = Page(text)
        self.assertNotIn("script", page.tags)
        for tag, name, value in page.attributes:
            self.assertFalse(name.startswith("on"), (tag, name))
            self.assertNotIn(name, ("src", "href", "srcset", "action", "data", "poster", "xlink:href"), (tag, value))
            if name != "xmlns":
                self.assertNotIn("://", value or "", (tag, name))
        for style in re.findall(r"<style>.*?</style>|style=\"[^\"]*\"", text, re.DOTALL):
            self.assertNotRegex(style, r"url\(|@import|expression")
        drawings = re.findall(r"<svg.*?</svg>", text, re.DOTALL)
        self.assertEqual(bool(drawings), draws)
        for drawing in drawings:
            self.assertNotRegex(drawing, r"\b(nan|inf)\b")
            root = xml.etree.ElementTree.fromstring(drawing)
            self.assertTrue(root.findall(".//{http://www.w3.org/2000/svg}title"), "the points have no titles with their values")
        self.expect_to_fit(path)
        return page

    def expect_to_fit(self, path):
        chromium = shutil.which("chromium") if os.environ.get("LOCKSTEP_TEST_CLIENTS") else None
        if chromium is None:
            self.no_chromium = True
            return
        for width in (1280, 400):
            # In a frame, because a window has a minimum width. All <details> are open.
            page = path.read_text().replace("<details>", "<details open>")
            page = re.sub(r"<meta http-equiv=[^>]*>", "", page)
            page = page.replace("</body>", "<script>parent.postMessage([document.documentElement.scrollWidth, innerWidth], '*')"
                                           "</script></body>")
            (self.folder / "framed.html").write_text(page)
            wrapper = self.folder / "wrapper.html"
            wrapper.write_text("<!DOCTYPE html><script>onmessage = event => document.title = 'is ' + event.data.join(' ')"
                               f"</script><iframe src='framed.html' style='width:{width}px;height:900px;border:0'></iframe>")
            shown = subprocess.run([chromium, "--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=20000",
                                    f"--user-data-dir={self.folder / 'profile'}", "--dump-dom", f"file://{wrapper}"],
                                   capture_output=True, text=True, timeout=120)
            found = re.search(r"<title>is (\d+) (\d+)</title>", shown.stdout)
            self.assertTrue(found, shown.stdout[:500] + shown.stderr[-2000:])
            self.assertEqual(int(found[2]), width)
            self.assertLessEqual(int(found[1]), width, f"is wider than a page of {width} pixels")

    def tearDown(self):
        if getattr(self, "no_chromium", False):
            self.skipTest("pages are valid; their layout was not checked, which needs chromium and LOCKSTEP_TEST_CLIENTS=1")

    def row_starts(self, html):
        """The first cells of the rows of each table, except tables whose rows start with a heading."""
        return [re.findall(r"<tr><td[^>]*>(.*?)</td>", table) for table in re.findall(r"<table>.*?</table>", html, re.DOTALL)]

    def test_page_of_one_run(self):
        run = self.train("run", 'run.metrics="top5, f1, confusion"', "run.metrics_every=1", ranks=2)
        path = self.report(run)
        self.assertEqual(path, run / "report.html")
        text, html = self.checked(path).text(), path.read_text()
        last = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()][-1]
        self.assertIn(f"{100 * last['test_accuracy']:.1f} %", text)
        by_rank, by_bucket = last["communication"]["by_rank"], last["communication"]["by_bucket"]
        tables = [[str(row) for row in range(len(rows))] for rows in (by_rank, by_bucket)]
        for table in tables:  # two alike if there are as many buckets as ranks
            self.assertGreaterEqual(self.row_starts(html).count(table), tables.count(table), self.row_starts(html))
        for number, rank in enumerate(by_rank):
            buckets = rank["exposed_seconds_by_bucket"]
            self.assertEqual(len(buckets), len(by_bucket))
            self.assertLessEqual(sum(buckets), rank["exposed_seconds"] + 1e-5)
            for bucket in range(len(buckets)):
                self.assertRegex(html, rf'title="[^"]*\brank {number}\b[^"]*\bbucket {bucket}\b')
        confusion = last["confusion"]
        mistakes = ((label, taken) for label in range(10) for taken in range(10) if label != taken)
        label, taken = max(mistakes, key=lambda mistake: confusion[mistake[0]][mistake[1]])  # the first of the largest
        self.assertRegex(html, rf'<tbody>\s*<tr><td>{label}</td><td>{taken}</td><td class="n">{confusion[label][taken]}</td>')
        planned = sum(json.loads((run / "run.json").read_text())["planned_bytes"]["host"].values())
        self.assertIn(f"<b>{planned / 2**20:.3g} MiB</b>", html)
        self.assertTrue(all(planned < resident < planned + 2**30 for resident in last["resident_bytes_by_rank"]))
        notes = " ".join(re.findall(r'<p class="note">(.*?)</p>', html))
        for name in ("steps.jsonl", "config.toml", "run.json", "monitor.csv"):
            self.assertEqual(name in notes, not (run / name).exists(), name)

    def test_page_shows_the_layers_of_a_profile(self):
        page = self.folder / "layers.html"
        done = self.lockstep("profile", "fashion_mnist_cnn", "--steps", 1, "--rows", 0, "--html", page, "--set", "train.batch=16",
                             "--set", "train.epochs=1", "--set", f"data.path={self.folder}")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        text, html = self.checked(page, draws=False).text(), page.read_text()
        rows = re.search(r"GFLOP/s +GB/s.*\n((?:  .*\n)+)", done.stdout)[1].splitlines()
        self.assertGreater(len(rows), 10)
        for row in rows:
            layer, direction, *_ = re.split(r"  +", row.strip())
            self.assertRegex(text, re.escape(layer) + " +" + re.escape(direction))
        kinds = re.findall(r"^  (\w[\w ]*, \w[\w ]*?) +[\d.]+ ms", done.stdout, re.MULTILINE)
        for layer in ("convolution", "linear"):
            self.assertTrue(any(kind.startswith(f"{layer}, ") for kind in kinds), kinds)
        for kind in kinds:
            self.assertIn(kind, text)
        for phase in (2, 3):  # backward and exposed communication, by their colours
            self.assertIn(f'class="key p{phase}"', html)

    def test_page_compares_several_runs(self):
        runs = [self.train("one"), self.train("other", "optimizer.learning_rate=0.01")]
        out = self.folder / "both.html"
        self.assertEqual(self.report(*runs, "--out", out), out)
        text, html = self.checked(out).text(), out.read_text()
        self.assertLess(html.index("optimizer.learning_rate"), html.index('<div class="account">'))
        self.assertIn("one", text)
        self.assertIn("other", text)

    def test_long_and_hostile_words_are_escaped_and_fit(self):
        run = self.untrained('{"epoch":1,"steps":2,"train_loss":0.5,"test_loss":0.6,"test_accuracy":0.8}\n')
        word = "<i>&'\"" + "x" * 2000
        rows = [{"time": 1.7e9, "step": 1, "kind": word, "cause": word, "text": word}]
        (run / "events.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        (run / "config.toml").write_text(f"[data]\npath = {json.dumps(word)}\n")
        (run / "run.json").write_text(json.dumps({"host": word, "started": word, word: word}))
        (run / "monitor.csv").write_text(f"timestamp, index, {word} [%]\n" + "".join(
            f"2024/01/31 12:00:0{second}.000, {word}{device}, {second} %\n" for second in range(9) for device in range(2)))
        page = self.checked(self.report(run))
        self.assertIn(word, page.text())
        self.assertNotIn("i", page.tags[page.tags.index("table"):page.tags.index("figure")])

    def test_errors_name_the_path_and_change_nothing(self):
        run = self.untrained('{"epoch":1,"steps":1}\n')
        nothing, metrics = self.folder / "nothing", run / "metrics.jsonl"
        cases = [((), 64, ["RUN"]),
                 ((metrics,), 74, [str(metrics), "run.dir"]),
                 ((run, "--out", nothing / "x.html"), 74, [str(nothing), "No such file or directory"]),
                 ((run, "--out", metrics), 64, ["--out", str(metrics)]),
                 ((run, "--open"), 64, ["--open"])]
        before = (run / "metrics.jsonl").read_bytes()
        for arguments, code, facts in cases:
            done = self.lockstep("report", *arguments)
            self.assertEqual(done.returncode, code, done.stderr)
            for fact in facts:
                self.assertIn(fact, " ".join(done.stderr.split()))
        self.assertEqual((run / "metrics.jsonl").read_bytes(), before)

    def test_page_replaces_no_other_file_of_a_run(self):
        run = self.untrained('{"epoch":1,"steps":2,"train_loss":0.5,"test_loss":0.6,"test_accuracy":0.8}\n')
        (run / "checkpoints").mkdir()
        for name in ("run.lock", "best.safetensors", "checkpoints/shard"):
            (run / name).write_text("kept")
            done = self.lockstep("report", run, "--out", run / name)
            self.assertEqual((done.returncode, (run / name).read_text()), (64, "kept"), done.stderr)
        for _ in range(2):  # the second report replaces the first
            self.report(run, "--out", run / "own.html")

    def test_profile_checks_the_path_of_its_page_before_the_steps(self):
        page = self.folder / "nothing" / "x.html"
        done = self.lockstep("profile", "fashion_mnist_cnn", "--steps", 1, "--set", "train.batch=16", "--html", page,
                             "--set", f"data.path={self.folder}")
        self.assertEqual((done.returncode, done.stdout), (74, ""), done.stderr)
        self.assertIn(str(page), done.stderr)


if __name__ == "__main__":
    LOCKSTEP = os.path.abspath(sys.argv.pop(1))
    unittest.main()
