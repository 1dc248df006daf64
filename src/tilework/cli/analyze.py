"""`tilework analyze`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

from tilework.cli.arguments import Data, Device, Json, OptionalLocal, OptionalPath
from tilework.cli.output import progress_bar, show


def augment(
    *,
    data: Data,
    tokenizer: Path,
    adapter: Path,
    out: Path,
    runs: Annotated[tuple[Path, ...], arg(metavar="RUN ...", help_behavior_hint="(optional)")] = (),
    pixel_run: OptionalPath = None,
    images: OptionalPath = None,
    count: int = 8,
    device: Device = "auto",
    json: Json = False,
) -> None:
    """Show token augmentations as decoded images, and class separation after them.

    Writes one figure each for flip, affine, resized crop, mixup and CutMix (on code vectors, through TokenAdapt, and on
    pixels) and one for colour changes. With --runs also a 2-d projection of augmented features with the accuracy of a
    linear classifier on them, and the training curves.

    Try:
      tilework analyze augment --data val.tok --tokenizer tokenizer --adapter adapt/token_adapt --out views
      tilework analyze augment --data val.tok --tokenizer tokenizer --adapter adapt/token_adapt --runs run other
        --out views

    Args:
        data: Token store.
        tokenizer: Directory of the tokenizer that made the store; its decoder draws the images.
        adapter: Directory of a trained TokenAdapt.
        out: Directory for the figures and results.json.
        runs: Runs trained on codes of this tokenizer: features come from the first, curves from all.
        pixel_run: Run trained on pixels, for an extra panel; needs --images.
        images: Image folder for --pixel-run.
        count: Images per row.
    """
    from tilework.analysis.augment import augment_views
    from tilework.core.errors import ConfigError

    if (pixel_run is None) != (images is None):
        raise ConfigError("--pixel-run and --images need each other", "give both or neither")
    pixels = None if pixel_run is None or images is None else (pixel_run, images)
    show({"out": str(out), **augment_views(data, tokenizer, adapter, out, runs, pixels, count, device)}, json)


def align(
    run: Annotated[Positional[Path], arg(metavar="RUN")],
    /,
    *,
    data: Data,
    out: Path,
    tokenizer: OptionalLocal = None,
    count: int = 8,
    device: Device = "auto",
    json: Json = False,
) -> None:
    """Compare labels of mixed images (area, TransMix, TL-Align) with their tokens.

    Writes figures of mixing strategies, of label maps before and after TL-Align, and of the first image's share in the
    class token (or pooled tokens): measured by cosine similarity to the tokens of both images, and as estimated by
    TL-Align, TransMix and area. results.json holds the distance between labels and similarity for each block.

    Try:
      tilework analyze align runs/tl_align --data photos/val --out align
      tilework analyze align runs/token --data val.tok --tokenizer tokenizer --out align

    Args:
        run: Run of a ViT, T2T-ViT, PVT or Swin, trained with any label rule.
        data: Image folder or token store.
        out: Directory for the figures and results.json.
        tokenizer: Directory of the tokenizer, to draw codes as images.
        count: Number of mixed images to show.
    """
    from tilework.analysis.align import align_views

    show({"out": str(out), **align_views(run, data, out, tokenizer, count, device)}, json)


def stems(
    *,
    data: Data,
    val: Data,
    out: Path,
    stems: Annotated[tuple[str, ...], arg(metavar="NAME ...", help_behavior_hint="(optional)")] = (),
    runs: Annotated[tuple[Path, ...], arg(metavar="RUN ...", help_behavior_hint="(optional)")] = (),
    width: int = 384,
    size: tuple[int, int] = (224, 224),
    epochs: int = 10,
    samples: int = 0,
    count: int = 8,
    device: Device = "auto",
    json: Json = False,
) -> None:
    """Compare stems: reconstruction error from stem tokens, similarity of tokens.

    A decoder learns to reconstruct the input from the tokens of each frozen stem. Its validation error and the mean
    cosine similarity between tokens go into table.md, results.json and stems.png; MoTo layouts into layouts.png.

    Try:
      tilework analyze stems --data images/train --val images/val --stems plain intra moto --out stems
      tilework analyze stems --data train.tok --val val.tok --stems token_plain stem_adapter --runs run --out stems

    Args:
        data: Image folder or token store to train the decoders on.
        val: Image folder or token store to measure the decoders on.
        out: Directory for table.md, results.json and figures.
        stems: Names of stems to measure with random weights.
        runs: Runs whose trained stems to measure.
        width: Output channels of stems given by --stems.
        size: Image height and width in pixels for stems given by --stems.
        epochs: Training epochs of each decoder.
        samples: Training samples for the decoders, drawn at random; 0 for all.
        count: Images in layouts.png.
    """
    from tilework.analysis.stems import stem_views

    with progress_bar("decoder epochs", quiet=json) as progress:
        rows = stem_views(data, val, out, stems, runs, width, size, epochs, samples, count, device, progress)
    show({"out": str(out), **rows}, json)


def tokenizers(
    tokenizers: Annotated[Positional[tuple[Path, ...]], arg(metavar="TOKENIZER ...", help_behavior_hint="(required)")],
    /,
    *,
    data: Path,
    val: Path,
    out: Path,
    steps: int = 1200,
    seeds: int = 1,
    pixels: bool = False,
    limit: int = 500,
    settings: Annotated[tuple[str, ...], arg(metavar="KEY=VALUE ...", help_behavior_hint="(optional)")] = (),
    max_broken: float = 0.05,
    device: Device = "auto",
    json: Json = False,
) -> None:
    """Compare tokenizers: bits, stored bytes, PSNR, codebook usage, accuracy.

    Every tokenizer tokenizes the images, and the same small classifier is trained on its tokens with the same seeds.
    Writes table.md, results.json and accuracy-per-byte.png after every run. Repeat the command to resume.

    Try:
      tilework analyze tokenizers vq256 vq1024 dct50 --data photos/train --val photos/val --out tokenizers
      tilework analyze tokenizers vq256 dct50 --data photos/train --val photos/val --seeds 3 --pixels --out tokenizers

    Args:
        tokenizers: Directories of tokenizers; each directory's name labels its row.
        data: Folder of training images.
        val: Folder of validation images.
        out: Directory for token stores, runs, table.md, plot and results.json.
        steps: Training steps of each classifier.
        seeds: Number of seeds per row.
        pixels: Add a row trained on the image files.
        limit: Number of validation images to measure PSNR on.
        settings: Overrides for every classifier run, such as fit.batch=32.
        max_broken: Largest share of unreadable images that is accepted.
    """
    from tilework.experiments.tokenizers import TokenizerViews

    views = TokenizerViews(
        tokenizers, data, val, out, steps, seeds, pixels, limit, settings, max_broken, device, quiet=json
    )
    results = views.run()
    if not json:
        print((out / "table.md").read_text())
    show({"out": str(out), **(results if json else {})}, json)
