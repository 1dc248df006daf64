"""`tilework analyze`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

from tilework.cli.arguments import Data, Device, Json, OptionalPath
from tilework.cli.output import progress_bar, show


def augment(
    *,
    data: Data,
    tokenizer: Path,
    adapter: Path,
    out: Path,
    runs: Annotated[tuple[Path, ...], arg(metavar="RUN ...")] = (),
    pixel_run: OptionalPath = None,
    images: OptionalPath = None,
    count: int = 8,
    device: Device = "auto",
    json: Json = False,
) -> None:
    """Show what augmentations do to codes: decoded, and to the features of a classifier.

    Writes a picture for flip, affine, resized crop, mixup and CutMix (of codes as they are, through TokenAdapt, of
    pixels), one for changes of colour, and for runs a picture of how well classes separate after augmentation, with
    the accuracy of a linear classifier, and their curves.

    Try:
      tilework analyze augment --data val.tok --tokenizer tokenizer --adapter adapt/token_adapt --out views
      tilework analyze augment --data val.tok --tokenizer tokenizer --adapter adapt/token_adapt --runs run other
        --out views

    Args:
        data: Token store.
        tokenizer: Directory of its tokenizer, which decodes.
        adapter: Directory of a trained TokenAdapt.
        out: Directory for the pictures and results.json.
        runs: Runs on such codes; features are the first one's, curves those of all.
        pixel_run: Run on pixels, for a panel to compare with; needs --images.
        images: Folder of images for it.
        count: Pictures in a row.
    """
    from tilework.analysis.augment import augment_views
    from tilework.core.errors import ConfigError

    if (pixel_run is None) != (images is None):
        raise ConfigError("--pixel-run and --images go together", "give both or none")
    pixels = None if pixel_run is None or images is None else (pixel_run, images)
    show({"out": str(out), **augment_views(data, tokenizer, adapter, out, runs, pixels, count, device)}, json)


def align(
    run: Annotated[Positional[Path], arg(metavar="RUN")],
    /,
    *,
    data: Data,
    out: Path,
    tokenizer: OptionalPath = None,
    count: int = 8,
    device: Device = "auto",
    json: Json = False,
) -> None:
    """Show what is in the tokens of mixed images, layer by layer, and what their labels say.

    Writes pictures of mixing strategies, of label maps before and after TL-Align, and of the share of the first image
    in what the head reads (the class token of a ViT, or the mean of all positions): by similarity to the tokens of both
    images, by TL-Align, TransMix and area; results.json has how far labels lie from the similarity, for each block.

    Try:
      tilework analyze align runs/tl_align --data photos/val --out align
      tilework analyze align runs/token --data val.tok --tokenizer tokenizer --out align

    Args:
        run: Run of a ViT, T2T-ViT, PVT or Swin, trained with any label rule.
        data: Image folder or token store.
        out: Directory for the pictures and results.json.
        tokenizer: Directory of the tokenizer, to show what codes stand for.
        count: Mixtures shown.
    """
    from tilework.analysis.align import align_views

    show({"out": str(out), **align_views(run, data, out, tokenizer, count, device)}, json)


def stems(
    *,
    data: Data,
    val: Data,
    out: Path,
    stems: Annotated[tuple[str, ...], arg(metavar="NAME ...")] = (),
    runs: Annotated[tuple[Path, ...], arg(metavar="RUN ...")] = (),
    width: int = 384,
    size: tuple[int, int] = (224, 224),
    epochs: int = 10,
    samples: int = 0,
    count: int = 8,
    device: Device = "auto",
    json: Json = False,
) -> None:
    """Measure what stems let through and how much their tokens differ.

    A decoder learns to restore the input from the tokens of each frozen stem; its error on other samples and the mean
    cosine between tokens go into table.md, results.json and stems.png. Stems with MoTo are drawn too: layouts.png.

    Try:
      tilework analyze stems --data images/train --val images/val --stems plain intra moto --out stems
      tilework analyze stems --data train.tok --val val.tok --stems token_plain stem_adapter --runs run --out stems

    Args:
        data: Images or token store to train the decoders on.
        val: The same, to judge them on.
        out: Directory for table, results.json and figures.
        stems: Stems by name, with random weights.
        runs: Runs whose trained stems to look at.
        width: Channels of the named ones.
        size: Of images, in pixels, for the named ones.
        epochs: Of training each decoder.
        samples: Of the data that decoders learn from, drawn at random; 0 for all.
        count: Pictures of MoTo's layouts.
    """
    from tilework.analysis.stems import stem_views

    with progress_bar("passes", quiet=json) as progress:
        rows = stem_views(data, val, out, stems, runs, width, size, epochs, samples, count, device, progress)
    show({"out": str(out), **rows}, json)


def tokenizers(
    tokenizers: Annotated[Positional[tuple[Path, ...]], arg(metavar="TOKENIZER ...")],
    /,
    *,
    data: Path,
    val: Path,
    out: Path,
    steps: int = 1200,
    seeds: int = 1,
    pixels: bool = False,
    limit: int = 500,
    settings: Annotated[tuple[str, ...], arg(metavar="KEY=VALUE ...")] = (),
    max_broken: float = 0.05,
    device: Device = "auto",
    json: Json = False,
) -> None:
    """Compare tokenizers on one image folder: bits, stored bytes, PSNR, code usage, and accuracy.

    Each stores the images and trains the same small classifier from the same seeds. Writes table.md, results.json and
    accuracy-per-byte.png after every run; stopped, the same command goes on.

    Try:
      tilework analyze tokenizers vq256 vq1024 dct50 --data photos/train --val photos/val --out tokenizers
      tilework analyze tokenizers vq256 dct50 --data photos/train --val photos/val --seeds 3 --pixels --out tokenizers

    Args:
        tokenizers: Directories of tokenizers; their names are those of the rows.
        data: Folder of training images.
        val: Folder of validation images.
        out: Directory for stores, runs, table, plot and results.json.
        steps: Of training each classifier.
        seeds: Runs of each row, the same seeds for all.
        pixels: Add a row of the image files themselves.
        limit: Validation images that PSNR is measured on.
        settings: Settings over every classifier's run, such as fit.batch=32.
        max_broken: Share of unreadable images above which a folder is refused.
    """
    from tilework.experiments.tokenizers import TokenizerViews

    views = TokenizerViews(
        tokenizers, data, val, out, steps, seeds, pixels, limit, settings, max_broken, device, quiet=json
    )
    results = views.run()
    if not json:
        print((out / "table.md").read_text())
    show({"out": str(out), **(results if json else {})}, json)
