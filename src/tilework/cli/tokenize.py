"""`tilework tokenize`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from tyro.conf import Positional, arg

from tilework.cli.arguments import Classes, Device, DryRun, Json, KeepOrder, OptionalData, OptionalLocal, OptionalPath
from tilework.cli.output import progress_bar, show

if TYPE_CHECKING:
    from tilework.data.image_folder import Images as Opened
    from tilework.tokenizers.image_codes import Tokenizing


def tokenize(
    images: Annotated[Positional[Path], arg(metavar="IMAGES")],
    /,
    *,
    out: Path,
    tokenizer: OptionalLocal = None,
    codes: Literal["auto", "pooled", "corners", "grid"] = "auto",
    like: OptionalData = None,
    new_classes: Annotated[bool, arg(help_behavior_hint="")] = False,
    labels: OptionalPath = None,
    classes: Classes = None,
    frame: Literal["auto", "cover", "squash"] = "auto",
    size: Annotated[str, arg(metavar="HxW", help_behavior_hint="(the tokenizer's)")] = "",
    tiles: Annotated[bool, arg(help_behavior_hint="")] = False,
    masks: Annotated[bool, arg(help_behavior_hint="")] = False,
    mask_step: int = 1,
    boxes: Annotated[bool, arg(help_behavior_hint="")] = False,
    views: int = 1,
    area: tuple[float, float] = (0.35, 1.0),
    seed: int = 0,
    shard: Annotated[str, arg(metavar="I/N", help_behavior_hint="(optional)")] = "",
    engine: Literal["here", "ray"] = "here",
    max_broken: float = 0.05,
    licence: str = "",
    codec: str = "auto",
    keep_order: KeepOrder = False,
    device: Device = "auto",
    dry_run: DryRun = False,
    json: Json = False,
) -> None:
    """Tokenize images from a folder, tar or Parquet files into a token store.

    Repeat the command to resume.

    Without --tokenizer, the one that comes with Tilework is used (a frozen EfficientNet-Lite0, seen: ImageNet-1k), with
    codes fitted to these images; they lie in the store, and --like takes them over. By default they are codes of the
    network's features pooled over the image, under 100 bytes and best for a classifier ('tilework train linear_cpu');
    --codes corners looks at the whole image and at its four corners: as many bytes, five times the work, and as good or
    a point better (docs/results.md);
    --codes grid keeps 7x7 codes of positions, which crops, mixtures by area and ViTs need.

    Try:
      tilework tokenize photos/train --out train.tok
      tilework tokenize photos/val --out val.tok --like train.tok
      tilework tokenize photos/train --codes grid --out train.tok
      tilework tokenize photos/train --tokenizer tokenizer --out train.tok
      tilework tokenize 'shards/*.tar' --tokenizer tokenizer --out train.tok
      tilework tokenize photos/val --tokenizer tokenizer --out val.tok --like train.tok
      tilework tokenize flowers/train --tokenizer tokenizer --out flowers.tok --like train.tok --new-classes
      tilework tokenize photos/train --tokenizer tokenizer --out train.tok --frame squash
      tilework tokenize photos/train --tokenizer tokenizer --out many.tok --views 5
      tilework tokenize camvid/train --tokenizer tokenizer --out camvid.tok --masks --size 176x240 --frame squash
      tilework tokenize bccd/ImageSets/Main/train.txt --tokenizer tokenizer --out cells.tok --boxes --frame squash
      tilework tokenize photos/train --tokenizer tokenizer --out big.tok --shard 3/8
      tilework tokenize photos/train --tokenizer tokenizer --out big.tok --engine ray

    Args:
        images: Folder with one sub-folder of images per class, or a label file; or tar (WebDataset) or Parquet files:
            one, a folder of them, or a quoted pattern; with --masks a folder of images and masks, or a CSV of pairs;
            with --boxes a COCO file, or a list of VOC (ImageSets/Main/train.txt).
        out: Store to write.
        tokenizer: Directory of a trained tokenizer, or hf://OWNER/NAME; box: the one that comes with Tilework, with
            codes of its own.
        codes: What the tokenizer that comes with Tilework keeps: pooled features of the image, their mean over five
            views of it (corners), or a grid of codes; auto: pooled, or grid with --size, --tiles, --masks or --boxes.
        like: Store whose class numbers and set of used codes to take over, for validation sets.
        new_classes: With --like: take over the codes alone, for images of other classes (transfer).
        labels: Label file (CSV, TSV or lines 'PATH LABEL') instead of one sub-folder per class.
        frame: cover: the centre of the image, short side resized; squash: the whole image, aspect not kept (SeiT);
            auto: that of --like, squash for --codes corners, else cover.
        size: Height and width of images in pixels, if not those that the tokenizer was trained on.
        tiles: Encode tiles of the tokenizer's own size side by side, for tokenizers that know positions.
        masks: Keep the class masks of the images, without loss, as column 'mask'.
        mask_step: Keep every so many pixels of the masks, along each side.
        boxes: Keep the boxes of the images' objects, in their pixels, as column 'boxes'.
        views: Number of random crops per image; 1: one centre crop.
        area: Smallest and largest area of a random crop, as a share of the image.
        seed: Seed of the crops.
        shard: Tokenize only the I-th of N parts (0/8 to 7/8), for job arrays; then run 'tilework seal'.
        engine: Run in this process, or on a Ray cluster (at RAY_ADDRESS, on this machine, or started for this command).
            All machines must see images and output under the same paths.
        max_broken: Largest share of unreadable images that is accepted.
        licence: Licence note to keep in the store.
        codec: packed, rans, rans-context, mix, auto (the smallest of these), or pairwise (slow).
    """
    from dataclasses import replace
    from time import monotonic

    import numpy as np
    import torch

    from tilework.core.distributed import pick_device
    from tilework.core.errors import ConfigError, InputError, UnknownClassError
    from tilework.data.image_files import Frame
    from tilework.data.image_folder import ImageFolder
    from tilework.data.open_images import open_images
    from tilework.store import Store, codecs
    from tilework.store.finish import refuse_existing
    from tilework.tokenizers.box import FRAMES, Form, box_like, fitted_box, kept_box, open_tokenizer
    from tilework.tokenizers.image_codes import Tokenizing
    from tilework.tokenizers.ray_engine import spool_on_ray
    from tilework.tokenizers.receipts import quarantine_of
    from tilework.tokenizers.tokenize import open_spool, parse_share, parse_size, spool_share
    from tilework.tokenizers.tokenize import tokenize as run
    from tilework.train.log import counted, notice

    share, sides = parse_share(shard) if shard else None, parse_size(size) if size else None
    if share is not None and engine != "here":
        raise ConfigError(f"--shard does not work with --engine {engine}", "drop one: Ray splits the work itself")
    if views < 1 or not 0 < area[0] <= area[1] <= 1:
        what = f"--views {views} --area {area[0]:g} {area[1]:g} is out of range"
        raise ConfigError(what, "give at least 1 view and areas above 0 and at most 1, smallest first")
    if mask_step < 1 or (mask_step > 1 and not masks):
        raise ConfigError(f"--mask-step {mask_step}", "give 1 or more, with --masks")
    if views > 1 and (masks or boxes or tiles):
        raise ConfigError(f"--masks, --boxes and --tiles do not work with {views} views", "drop one")
    if views > 1 and (frame == "squash" or codes == "corners"):
        what = "--codes corners" if codes == "corners" else "--frame squash"
        raise ConfigError(f"{what} does not work with {views} views", "drop one: random crops keep the aspect")
    if codes != "auto" and (tokenizer is not None or like is not None):
        raise ConfigError(f"--codes {codes} does not work with {'--tokenizer' if tokenizer else '--like'}", "drop one")
    if new_classes and like is None:
        raise ConfigError("--new-classes does not work without --like", "drop it: the classes are those of the images")
    needs_grid = bool(size) or tiles or masks or boxes
    if codes in ("pooled", "corners") and needs_grid:
        what = f"--codes {codes} does not work with --size, --tiles, --masks or --boxes"
        raise ConfigError(what, "drop one, or give --codes grid")
    refuse_existing(out)
    chosen = torch.device(device) if engine == "ray" and device != "auto" else pick_device(device)  # the workers' own
    if codec != "auto":
        codecs[codec]  # an unknown name is refused before any work
    reference = Store(like) if like else None
    asked: Frame | None = None if frame == "auto" else frame
    filled = asked or (reference.manifest.frame if reference else "cover")
    if views > 1 and filled == "squash":
        raise ConfigError(f"{like} has squashed images, and random crops keep the aspect", "drop --views or --like")
    known, used = (reference.classes, reference.used) if reference else (None, None)
    kept = "mask" if masks else "boxes" if boxes else ""
    columns = [column.name for column in reference.manifest.columns] if reference else []
    if new_classes or (kept and kept not in columns):
        known = None  # the codes alone, from a store of other images
    try:
        folder = open_images(images, labels, known, classes or "leaf")
    except UnknownClassError as error:
        hint = f"{error.hint}, or add --new-classes to take over only the codes of {like}"
        raise InputError(error.what, hint) from error
    if tokenizer is not None and reference is not None:
        made_by, vectors = reference.manifest.tokenizer, reference.codebook.vectors
        model, card = open_tokenizer(tokenizer, str(like), made_by, vectors)
    elif tokenizer is not None:
        model, card = open_tokenizer(tokenizer)
        used = np.arange(len(model.codebook)) if card.encoder else None
    elif reference is not None:
        model, card = box_like(str(like), reference.manifest.tokenizer, reference.codebook.vectors)
    elif share is not None or engine != "here":
        what = "several processes need a tokenizer with the same codes"
        raise ConfigError(what, f"make it with 'tilework tokenizer teacher {images} --out DIR' and add --tokenizer DIR")
    else:
        form: Form = "grid" if needs_grid else "pooled" if codes == "auto" else codes
        kept_codes = kept_box(out)
        if kept_codes and kept_codes[1].form not in ("", form):
            what = f"{out} was begun with --codes {kept_codes[1].form}, and now --codes {form} is asked for"
            raise InputError(what, "choose another --out")
        model, card = kept_codes or fitted_box(
            folder, chosen, asked or FRAMES[form], lambda text: notice(text, json), form
        )
        filled = asked or FRAMES[card.form or "grid"]  # a grid after all, where there are too few images
        used = np.arange(len(model.codebook))  # all of them, so that the store can encode further images
    own = card.size
    card = replace(card, size=sides) if sides else card
    if reference is not None and reference.manifest.tokenizer.get("sha256") != card.sha256:
        raise InputError(f"{like} was made with another tokenizer than {tokenizer}", "use the same one")
    if reference is not None and filled != reference.manifest.frame:
        raise InputError(f"{like} was made with another frame than {frame}", f"give --frame {reference.manifest.frame}")
    original = folder.bytes if isinstance(folder, ImageFolder) else 0
    for note in folder.notes if isinstance(folder, ImageFolder) else ():
        notice(note, json)
    step, parts_of = mask_step if masks else 0, own if tiles else None
    job = Tokenizing(model, card, chosen, licence, views, area, seed, frame=filled, tiles=parts_of, mask_step=step,
                     boxes=boxes)  # fmt: skip
    if dry_run:
        show(_plan(job, folder, out), json)
        return
    if engine == "ray":
        notice("starting Ray, or connecting to its cluster", json)
    begun = monotonic()
    with progress_bar("tokenize", quiet=json, unit="images") as progress:
        if share is not None:
            spool = open_spool(folder, job, out)
            spool_share(folder, job, spool, *share, max_broken, progress)
            parts = len(range(share[0], spool.plan.parts, share[1]))
            show({"spool": str(spool.path), "share": shard, "parts": parts, "then": f"tilework seal {out}"}, json)
            return
        broken = run(
            folder,
            job,
            out,
            codec,
            used,
            max_broken,
            progress,
            spool_on_ray if engine == "ray" else None,
            not keep_order,
        )
    if broken:
        notice(f"{counted(len(broken), 'image')} cannot be read: see {quarantine_of(out)}", json)
    store = Store(out)
    show(
        {
            "store": str(out),
            "images": len(store),
            "quarantined": len(broken),
            **({"skipped_files": sum(folder.skipped.values())} if isinstance(folder, ImageFolder) else {}),
            "codec": store.manifest.codec,
            "codes": store.vocabulary,
            "bytes_per_image": sum(store.sizes.values()) / len(store),
            "parts": store.sizes,
            **({"mask_bytes_per_image": store.column_bytes("mask") / len(store)} if masks else {}),
            **({"box_bytes_per_image": store.column_bytes("boxes") / len(store)} if boxes else {}),
            **({"original_bytes_per_image": original / len(folder)} if original else {}),
            **({"times_smaller": original / len(folder) * len(store) / sum(store.sizes.values())} if original else {}),
            "images_per_s": len(folder) / (monotonic() - begun),
        },
        json,
    )


def _plan(job: Tokenizing, folder: Opened, out: Path) -> dict[str, object]:
    """Estimated cost, from a few images."""
    from time import monotonic

    import numpy as np

    from tilework.store import Packed
    from tilework.tokenizers.image_codes import try_batch

    plan = job.plan(folder)
    record = Packed(int(np.prod(plan.grid)), plan.vocabulary).size
    some = np.linspace(0, len(folder) - 1, min(32, len(folder))).astype(np.int64)
    try_batch(folder, job, some[:2])
    begun = monotonic()
    broken = try_batch(folder, job, some)
    seconds = (monotonic() - begun) / len(some)
    size = len(folder) * job.views * (record + 4) + plan.vocabulary * job.tokenizer.codebook.shape[1] * 4
    return {
        "images": len(folder),
        "classes": len(folder.classes),
        "unreadable_in_sample": f"{broken} of {len(some)}",
        "grid": list(plan.grid),
        "views": job.views,
        "parts": f"{plan.parts} of {job.part} images",
        "bytes_at_most": size,
        "estimated_minutes_on_one_core": seconds * len(folder) / 60,
        "output": str(out),
    }
