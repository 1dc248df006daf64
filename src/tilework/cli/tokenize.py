"""`tilework tokenize`."""

from __future__ import annotations

from pathlib import Path

from tilework.cli.arguments import Device, DryRun, Images, Json, OptionalPath
from tilework.cli.output import show


def tokenize(
    images: Images,
    /,
    tokenizer: Path,
    out: Path,
    like: OptionalPath = None,
    max_broken: float = 0.05,
    licence: str = "",
    codec: str = "auto",
    device: Device = "auto",
    dry_run: DryRun = False,
    json: Json = False,
) -> None:
    """Turn a folder of images into a token store.

    Try:
      tilework tokenize photos/train --tokenizer tokenizer --out train.tok
      tilework tokenize photos/val --tokenizer tokenizer --out val.tok --like train.tok

    Args:
        tokenizer: Directory of a trained tokenizer.
        out: The store to write.
        like: A store whose classes and codes this one takes over: for validation and transfer sets.
        max_broken: Share of unreadable images above which nothing is written.
        licence: Note on the terms of the images, kept in the store.
        codec: packed, rans, rans-context, or auto for the smallest of them; pairwise for archives (smaller, slower).
    """
    from time import monotonic

    import torch

    from tilework.core.distributed import pick_device
    from tilework.core.errors import InputError, OutputError
    from tilework.core.files import write_json
    from tilework.data import ImageFolder, ImageSource
    from tilework.store import Packed, Store, codecs
    from tilework.tokenizers import load_tokenizer
    from tilework.tokenizers.tokenize import tokenize as run
    from tilework.train.log import Bar, counted, notice

    if out.exists():
        raise OutputError(f"{out} exists", "choose another --out or remove it")
    place = pick_device(device)
    if codec != "auto":
        codecs[codec]  # an unknown name is refused before any work
    model, card = load_tokenizer(tokenizer)
    reference = Store(like) if like else None
    if reference is not None and reference.manifest.tokenizer.get("sha256") != card.sha256:
        raise InputError(f"{like} was made with another tokenizer than {tokenizer}", "use the same one")
    classes, used = (reference.classes, reference.used) if reference else (None, None)
    if dry_run:
        count = len(ImageFolder.open(images, classes))
        grid = [side // model.patch for side in card.size]
        record = Packed(grid[0] * grid[1], len(model.codebook)).size
        pixels = torch.rand(16, 3, *card.size, device=place)
        model.to(place).encode(pixels)
        begun = monotonic()
        model.encode(pixels).cpu()
        minutes = (monotonic() - begun) / len(pixels) * count / 60
        size = count * (record + 8) + model.codebook.numel() * 4
        show({"images": count, "grid": grid, "bytes": size, "estimated_minutes": minutes, "output": str(out)}, json)
        return
    bar = Bar("read", 1, quiet=True)

    def progress(title: str):  # type: ignore[no-untyped-def]
        def update(done: int, total: int) -> None:
            nonlocal bar
            if bar.title != title:
                bar.close()
                bar = Bar(title, total, quiet=json)
            bar.update(done)

        return update

    begun = monotonic()
    try:
        source = ImageSource.load(images, card.size, classes, max_broken, progress("read"))
        run(source, model, card, out, place, licence, codec, used, progress=progress("tokenize"))
    finally:
        bar.close()
    if source.broken:
        quarantine = out.with_name(f"{out.name}.quarantine.json")
        write_json(quarantine, [vars(broken) for broken in source.broken])
        notice(f"{counted(len(source.broken), 'image')} cannot be read: see {quarantine}", json)
    store = Store(out)
    show(
        {
            "store": str(out),
            "images": len(store),
            "quarantined": len(source.broken),
            "codec": store.manifest.codec,
            "bytes_per_image": sum(store.sizes.values()) / len(store),
            "images_per_s": len(store) / (monotonic() - begun),
        },
        json,
    )
