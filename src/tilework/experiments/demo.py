"""The demo: train a tokenizer, a ViT from tokens and the same ViT from pixels, and report how they compare."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from time import monotonic

import numpy as np
import torch

from tilework.core.config import Plain, resolve
from tilework.core.distributed import pick_device
from tilework.core.errors import InputError, OutputError
from tilework.core.files import is_free, locked, make_directory, new_directory, write, write_json
from tilework.core.sealed import read_json, write_sealed
from tilework.data import ImageFolder, ImageSource, epoch_order
from tilework.data.labels import UNLABELLED
from tilework.data.photographs import write_photographs
from tilework.evaluation import Classification, classify
from tilework.experiments.statistics import paired_within_noise
from tilework.recipes import run_of
from tilework.report import Card, Page, code_pictures, rows_of_pictures
from tilework.report.figures import BLUE, ORANGE, draw_trade
from tilework.report.plots import line_plot
from tilework.runs import Run, train
from tilework.runs.build import open_source
from tilework.runs.directory import QUARANTINE
from tilework.runs.trained import Trained
from tilework.store import Store
from tilework.store.finish import is_finished
from tilework.tokenizers import Tokenizer, load_tokenizer, save_tokenizer
from tilework.tokenizers.image_codes import Tokenizing
from tilework.tokenizers.tokenize import tokenize
from tilework.train.log import Bar, counted
from tilework.version import __version__

STATE = "demo.json"


@dataclass
class Demo:
    """A demo in its directory; finished steps are not repeated."""

    out: Path
    images: Path | None = None  # None: the photographs of scikit-image
    quick: bool = False
    device: str = "auto"
    quiet: bool = False

    def run(self) -> Plain:
        """All steps; returns what results.json holds."""
        device = pick_device(self.device)
        if self.images is not None:  # before anything is written
            _check_images(self.images)
        make_directory(self.out)
        with locked(self.out):
            self._claim()
            self._once("images", self._images)
            self._once("tokenizer", self._tokenizer)
            self._once("tokenize", lambda: self._tokenize(device))
            self._once("token", self._token)
            self._once("pixel", self._pixel)
            results, page = self._report(device)
            write(self.out / "report.html", page.encode())
            write_json(self.out / "results.json", results)
        return results

    def _claim(self) -> None:
        settings = {"images": str(self.images) if self.images else None, "quick": self.quick, "version": __version__}
        if not is_free(self.out):
            if not (self.out / STATE).is_file():
                raise OutputError(f"{self.out} holds other files", "choose another --out")
            self.state: Plain = read_json(self.out / STATE, required=True)
            if self.state.get("settings") != settings:
                what = f"{self.out} holds a demo with other images, options or version"
                raise OutputError(what, "choose another --out or remove it")
        else:
            self.state = {"settings": settings, "seconds": {}}
            write_sealed(self.out / STATE, self.state)

    def _once(self, name: str, step: Callable[[], None]) -> None:
        if name in self.state["seconds"]:
            return
        begun = monotonic()
        step()
        self.state["seconds"][name] = round(monotonic() - begun, 1)
        write_sealed(self.out / STATE, self.state)

    def _images(self) -> None:
        path = self.out / "images"
        if path.exists():
            return
        if self.images is None:
            write_photographs(path, **({"train": 16, "val": 6} if self.quick else {}))
        elif parts := _parts(self.images):
            with new_directory(path) as root:
                for part in parts:
                    os.symlink(part.resolve(), root / part.name)
        else:
            split_folder(self.images, path)

    def _recipe(self, name: str) -> Run:
        """A recipe with a batch size for the number of images."""
        run = run_of(name)
        count = len(ImageFolder.open(self.out / "images/train"))
        batch = min(run.fit.batch, count)
        if not self.quick:
            return replace(run, fit=replace(run.fit, batch=batch))
        return resolve(run, None, [f"fit.batch={batch}", "fit.steps=8", "fit.log_every=1"])

    def _train(self, name: str, data: Path, val: Path, title: str, path: str = "") -> torch.nn.Module:
        run = self._recipe(f"demo_{name}")
        return train(run, data, val, self.out / (path or name), self.device, title, self.quiet).model

    def _tokenizer(self) -> None:
        images = self.out / "images"
        model = self._train("tokenizer", images / "train", images / "val", "1/3 tokenizer", "tokenizer.run")
        assert isinstance(model, Tokenizer)
        run = self._recipe("demo_tokenizer")
        if not (self.out / "tokenizer").exists():
            save_tokenizer(self.out / "tokenizer", model, run.model, run.size)

    def _tokenize(self, device: torch.device) -> None:
        tokenizer, card = load_tokenizer(self.out / "tokenizer")
        for part in ("train", "val"):
            if not is_finished(self.out / f"{part}.tok"):
                folder = ImageFolder.open(self.out / "images" / part)
                bar = Bar(f"tokenize {part}", len(folder), quiet=self.quiet)
                used = None if part == "train" else Store(self.out / "train.tok").used
                job = Tokenizing(tokenizer, card, device)
                tokenize(folder, job, self.out / f"{part}.tok", used=used, progress=bar.update)
                bar.close()

    def _token(self) -> None:
        self._train("token", self.out / "train.tok", self.out / "val.tok", "2/3 ViT from tokens")

    def _pixel(self) -> None:
        self._train("pixel", self.out / "images/train", self.out / "images/val", "3/3 ViT from pixels")

    def _pixels(self, part: str) -> ImageSource:
        size = run_of("demo_tokenizer").size
        source = open_source(self.out / "images" / part, size, 0.05, quiet=True)
        assert isinstance(source, ImageSource)
        return source

    def _evaluate(self, name: str, val: Path, device: torch.device) -> Classification:
        trained = Trained.open(self.out / name)
        opened = trained.on(val, device)
        return classify(trained.classifier, opened.source, opened.steps, device)

    def _report(self, device: torch.device) -> tuple[Plain, str]:
        tokens = self._evaluate("token", self.out / "val.tok", device)
        pixels = self._evaluate("pixel", self.out / "images/val", device)
        store, val, train = Store(self.out / "train.tok"), self._pixels("val"), self._pixels("train")
        folder, broken = train.folder, len(train.broken) + len(val.broken)
        assert isinstance(folder, ImageFolder)
        used = int((store.histogram() > 0).sum())
        psnr = json.loads((self.out / "tokenizer.run/results.json").read_bytes())["psnr"]
        results = {
            "seconds": round(sum(self.state["seconds"].values()), 1),
            "classes": len(store.classes),
            "images": {"train": len(store), "val": len(val), "quarantined": broken},
            "quick": self.quick,
            "jpeg": {"bytes": folder.bytes, "bytes_per_image": folder.bytes / len(folder)},
            "token": {
                "bytes": sum(store.sizes.values()),
                "bytes_per_image": sum(store.sizes.values()) / len(store),
                "parts": store.sizes,
                "accuracy": tokens.top(1),
                "top5": tokens.top(5),
            },
            "pixel": {"accuracy": pixels.top(1), "top5": pixels.top(5)},
            "within_noise": paired_within_noise(*(one.predicted == one.labels for one in (tokens, pixels))),
            "tokenizer": {"psnr": psnr, "codes": store.vocabulary, "codes_used": used, "grid": list(store.grid)},
            "step_seconds": self.state["seconds"],
            "software": f"tilework {__version__}, torch {torch.__version__}",
        }
        return results, self._page(results, tokens, pixels, store, val)

    def _page(
        self, results: Plain, tokens: Classification, pixels: Classification, store: Store, val: ImageSource
    ) -> str:
        jpeg, token = results["jpeg"], results["token"]
        share = token["bytes_per_image"] / jpeg["bytes_per_image"]
        relative = token["accuracy"] / max(1e-9, results["pixel"]["accuracy"])
        page = Page(
            "Tilework demo" + (" (a quick trial of a few steps)" if self.quick else ""),
            f"The same ViT, trained for the same number of steps from stored tokens and from pixels: "
            f"{relative:.0%} of the accuracy from {share:.1%} of the bytes"
            f"{' (the difference is within noise)' if results['within_noise'] else ''}.",
        )
        rows = [
            ["pixels (image files)", f"{jpeg['bytes_per_image']:,.0f} B", f"{jpeg['bytes'] / 1e6:,.2f} MB", "100 %"],
            ["tokens", f"{token['bytes_per_image']:,.0f} B", f"{token['bytes'] / 1e6:,.2f} MB", f"{share:.1%}"],
        ]
        accuracy = [f"{results['pixel']['accuracy']:.1%}", f"{token['accuracy']:.1%}"]
        error = 100 * (pixels.top(1) * (1 - pixels.top(1)) / max(1, results["images"]["val"])) ** 0.5
        page.heading("Storage and accuracy")
        page.table(
            ["trained from", "per image", "training set", "size vs files", "accuracy"],
            [[*row, value] for row, value in zip(rows, accuracy, strict=True)],
        )
        parts = ", ".join(f"{name} {size / 1e3:,.1f} kB" for name, size in token["parts"].items())
        page.text(
            f"{results['images']['train']:,} training and {results['images']['val']:,} validation images of "
            f"{results['classes']} classes. The size of the token store includes everything training needs: {parts}. "
            f"One run each: the standard error of accuracy is about {error:.1f} points, and seeds differ by as much."
        )
        if results["images"]["quarantined"]:
            page.text(
                f"{counted(results['images']['quarantined'], 'image')} cannot be read, left out of training: "
                f"see {self.out / 'tokenizer.run' / QUARANTINE}."
            )
        points = {"pixels": (jpeg["bytes_per_image"], results["pixel"]["accuracy"])}
        drawn = draw_trade({"tokens": (token["bytes_per_image"], token["accuracy"]), **points})
        page.plots([(drawn, "Accuracy by storage.")])
        page.heading("Training")
        logs = {f"from {name}s": _read_log(self.out / name / "log.jsonl") for name in ("token", "pixel")}
        loss = {name: [(line["step"], line["loss"]) for line in log if "loss" in line] for name, log in logs.items()}
        top1 = {
            n: [(line["step"], 100 * line["val_top1"]) for line in log if "val_top1" in line] for n, log in logs.items()
        }
        colours = {"from tokens": ORANGE, "from pixels": BLUE}  # as in the plot above
        page.plots(
            [
                (line_plot(loss, "step", "training loss", colours=colours), "Training loss."),
                (line_plot(top1, "step", "validation accuracy (%)", colours=colours), "Accuracy on validation images."),
            ]
        )
        page.legend(colours)
        page.text("Both runs see the same images for the same number of steps.")
        page.heading("Reconstruction from tokens")
        page.text(
            f"Each image is {store.grid[0]}x{store.grid[1]} codes out of {store.vocabulary} "
            f"({results['tokenizer']['codes_used']} in use). Reconstructed validation images have "
            f"{results['tokenizer']['psnr']:.1f} dB PSNR."
        )
        shown, pictures = self._pictures(store, val)
        write(self.out / "reconstructions.png", rows_of_pictures(pictures))
        names = [val.classes[int(tokens.labels[i])] for i in shown]
        page.cards(
            [
                Card([_bytes(part) for part in parts], name)
                for name, *parts in zip(names, *pictures.values(), strict=False)
            ]
        )
        page.text("Validation image, its codes (coloured by code vector), and the image decoded from the codes.")
        page.heading("Predictions on validation images")
        said = {
            name: [(c.classes[k], float(p[k])) for k, p in ((int(c.predicted[i]), c.probabilities[i]) for i in shown)]
            for name, c in (("tokens", tokens), ("pixels", pixels))
        }
        images = val.batch(shown).x.permute(0, 2, 3, 1).numpy()
        page.cards(
            [
                Card([images[i]], name, [(f"{m}: {a[i][0]} {a[i][1]:.0%}", a[i][0] == name) for m, a in said.items()])
                for i, name in enumerate(names)
            ]
        )
        for name, one in (("from tokens", tokens), ("from pixels", pixels)):
            page.heading(f"Confusion {name}")
            page.confusion(one.confusion, val.classes)
        page.text(f"{results['software']}, {results['seconds']:.0f} s in all.")
        return page.html()

    def _pictures(self, store: Store, val: ImageSource) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        """Indices of images to show, spread over the classes, and originals, codes and reconstructions."""
        order = epoch_order(0, 0, len(val))
        _, first = np.unique(val.folder.labels[order], return_index=True)
        rest = np.setdiff1d(np.arange(len(order)), first)
        shown = order[np.concatenate([np.sort(first), rest])[:12]]  # one of each class before a second one
        tokenizer, _ = load_tokenizer(self.out / "tokenizer")
        tokens = Store(self.out / "val.tok")
        ids = tokens.batch(shown[:10])
        rows = {
            "image": val.batch(shown[:10]).x.permute(0, 2, 3, 1).numpy(),
            "codes": code_pictures(ids, store.codebook.vectors),
            "decoded": tokenizer.decode(torch.from_numpy(tokens.used[ids])).permute(0, 2, 3, 1).numpy(),
        }
        return shown, rows


def _bytes(picture: np.ndarray) -> np.ndarray:
    """A picture in 0..255, whether it was that or in [0, 1]."""
    return picture if picture.dtype == np.uint8 else (255 * picture.clip(0, 1)).round().astype(np.uint8)


def _check_images(path: Path) -> None:
    """Refuse a folder that holds no images by class."""
    for part in _parts(path):
        ImageFolder.open(part)
    if not _parts(path):
        _open_to_split(path)


def _parts(images: Path) -> list[Path]:
    """train/ and val/ below a folder, if it has both."""
    parts = [images / "train", images / "val"]
    return parts if all(part.is_dir() for part in parts) else []


def split_folder(images: Path, out: Path, every: int = 5) -> None:
    """Links to the images of class folders: every fifth of each class in val/, the others in train/."""
    folder = _open_to_split(images)
    with new_directory(out) as root:
        for label, name in enumerate(folder.classes):
            index = np.flatnonzero(folder.labels == label)
            for rank, i in enumerate(index[epoch_order(0, label, len(index))].tolist()):
                part = "val" if rank % every == 0 else "train"
                path = folder.paths[i].resolve()
                link = root / part / name / f"{rank:06d}{path.suffix}"
                link.parent.mkdir(parents=True, exist_ok=True)
                os.symlink(path, link)


def _open_to_split(images: Path) -> ImageFolder:
    """Images of classes that can be divided."""
    folder = ImageFolder.open(images)
    if folder.classes == (UNLABELLED,):
        raise InputError(f"{images} has no classes", "give a folder with one sub-folder of images per class")
    for name, count in zip(folder.classes, np.bincount(folder.labels, minlength=len(folder.classes)), strict=True):
        if count < 2:
            what = f"class '{name}' of {images} has {counted(int(count), 'image')}"
            raise InputError(what, "add some: training and validation need one each")
    return folder


def _read_log(path: Path) -> list[Plain]:
    return [json.loads(line) for line in path.read_text().splitlines()]
