"""`tilework tokenizer train`, `import`, `dct` and `card`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from tyro.conf import Positional, arg

from tilework.cli.arguments import Device, DryRun, Images, Json, Local, OptionalHub, OptionalPath, Settings
from tilework.cli.output import show

if TYPE_CHECKING:
    from tilework.tokenizers import Tokenizer

CARD = "card.json"
MEASURED = ("data", "images", "psnr", "ssim", "code_usage", "perplexity", "entropy_bytes_per_image")


def train_tokenizer(
    images: Images,
    settings: Settings = (),
    /,
    out: Path = Path("tokenizer"),
    val: OptionalPath = None,
    recipe: str = "demo_tokenizer",
    config: OptionalPath = None,
    device: Device = "auto",
    dry_run: DryRun = False,
    json: Json = False,
) -> None:
    """Train a tokenizer on a folder of images.

    Try:
      tilework tokenizer train photos/train --val photos/val --out tokenizer
      tilework tokenizer train photos/train size=[192,192] fit.steps=2000 --out tokenizer

    Args:
        out: Directory for the tokenizer; log and checkpoints go to OUT.run.
        val: Folder of validation images, to measure reconstruction on.
        recipe: Tokenizer recipe; see 'tilework recipes --search tokenizer'.
        config: YAML file that overrides settings of the recipe.
    """
    from tilework.core.config import resolve
    from tilework.core.errors import ConfigError, OutputError
    from tilework.objectives import ReconstructConfig
    from tilework.recipes import run_of
    from tilework.runs import plan, train
    from tilework.tokenizers import Tokenizer, save_tokenizer

    run = resolve(run_of(recipe), config, settings)
    if not isinstance(run.objective, ReconstructConfig):
        hint = "choose one of 'tilework recipes --search tokenizer'"
        raise ConfigError(f"recipe '{recipe}' does not train a tokenizer", hint)
    if out.exists():
        raise OutputError(f"{out} exists", "choose another --out or remove it")
    if dry_run:
        show(plan(run, images, val, device), json)
        return
    work = out.with_name(f"{out.name}.run")
    result = train(run, images, val, work, device, "tokenizer", quiet=json)
    assert isinstance(result.model, Tokenizer)
    if not result.leads:
        return
    save_tokenizer(out, result.model, run.model, run.size)
    show({"tokenizer": str(out), "run": str(work), **result.metrics}, json)


def import_tokenizer(
    checkpoint: Annotated[Positional[Local], arg(metavar="CHECKPOINT")],
    settings: Settings = (),
    /,
    *,
    out: Path,
    size: Annotated[tuple[int, int] | None, arg(metavar="H W", help_behavior_hint="(optional)")] = None,
    json: Json = False,
) -> None:
    """Import a published tokenizer checkpoint, recognised by its tensor names.

    Try:
      tilework tokenizer import vqgan_imagenet_f16_1024.ckpt --out vqgan
      tilework tokenize photos/train --tokenizer vqgan --out train.tok
      tilework tokenizer import fsq.pt levels=[8,8,8,6,5] --out fsq

    Args:
        checkpoint: Weights of VQGAN, ViT-VQGAN, LlamaGen, IBQ, Open-MAGVIT2, MaskGIT-VQ, TiTok, VAR, FSQ or VQ-VAE: a
            file, or hf://OWNER/NAME/FILE (safetensors only). No code in the file is executed.
        settings: Settings that tensor shapes do not determine, as key=value, if they differ from the published model.
        out: Directory for the tokenizer.
        size: Input height and width in pixels; by default the model's training size.
    """
    from tilework.core.errors import ConfigError, InputError, OutputError
    from tilework.tokenizers import save_tokenizer
    from tilework.tokenizers.foreign import load_foreign

    if out.exists():
        raise OutputError(f"{out} exists", "choose another --out or remove it")
    tokenizer, config, family = load_foreign(checkpoint, settings)
    size = size or tokenizer.size or family.size
    try:
        grid = tokenizer.grid(size)
    except InputError as error:
        raise ConfigError(error.what, "change --size") from error
    state = "tested on real weights" if family.tested else "untested on real weights: check its reconstructions first"
    save_tokenizer(out, tokenizer, config, size, f"{family.title}, from {checkpoint.name}; {state}")
    codes, dim = tokenizer.codebook.shape
    show({"tokenizer": str(out), "layout": family.title, "grid": list(grid), "codes": codes, "code_dim": dim,
          "loader": state}, json)  # fmt: skip


def make_dct(
    *,
    out: Path,
    quality: int = 50,
    keep: int = 64,
    size: Annotated[tuple[int, int], arg(metavar="H W")] = (128, 128),
    json: Json = False,
) -> None:
    """Make a tokenizer of quantised DCT coefficients, as in JPEG. No training.

    Try:
      tilework tokenizer dct --quality 50 --size 128 128 --out dct50
      tilework tokenize photos/train --tokenizer dct50 --out train.tok
      tilework train dct_cpu --data train.tok --val val.tok --out runs/dct

    Args:
        out: Directory for the tokenizer.
        quality: JPEG quality, 1 to 100.
        keep: Coefficients to keep per 8x8 block and colour channel, lowest frequencies first; 64 are all.
        size: Input height and width in pixels.
    """
    from tilework.core.errors import ConfigError, OutputError
    from tilework.tokenizers import DctConfig, save_tokenizer

    try:
        config = DctConfig(quality, keep)
    except ValueError as error:
        raise ConfigError(str(error), "change --quality or --keep") from error
    tokenizer = config.build(3, size, 0)
    if min(size) < 1 or size[0] % tokenizer.patch or size[1] % tokenizer.patch:
        what = f"--size {size[0]} {size[1]} does not divide into {tokenizer.patch} px blocks"
        raise ConfigError(what, f"give multiples of {tokenizer.patch}")
    if out.exists():
        raise OutputError(f"{out} exists", "choose another --out or remove it")
    save_tokenizer(out, tokenizer, config, size, f"DCT coefficients at JPEG quality {quality}, {keep} of 64 kept")
    values, codes = tokenizer.codebook.shape
    grid = [size[0] // tokenizer.patch, size[1] // tokenizer.patch]
    show({"tokenizer": str(out), "grid": grid, "codes_per_position": codes, "values": values}, json)


def make_teacher(
    images: Images,
    settings: Settings = (),
    /,
    *,
    out: Path,
    teacher: str = "efficientnet_lite0",
    weights: OptionalHub = None,
    size: Annotated[tuple[int, int], arg(metavar="H W")] = (224, 224),
    limit: int = 1000,
    device: Device = "auto",
    json: Json = False,
) -> None:
    """Make a tokenizer of a frozen network's feature map, with codes of these images.

    The map's principal components become codes by k-means; no training. What a code misses is handed to its
    neighbours (error diffusion), so that means over the image are kept.

    Try:
      tilework tokenizer teacher photos/train --out features
      tilework tokenizer teacher photos/train codes=2048 --size 256 256 --out fine
      tilework tokenizer teacher photos/train depth=2 codes=256 --out residual
      tilework tokenizer teacher photos/train stage=2 --out sixteenths
      tilework tokenizer teacher photos/train --teacher runs/pixels --size 112 112 --out own

    Args:
        settings: Of the tokenizer, as key=value: codes, code_dim, depth (codes of a position), pool (positions on a
            side that become one), stage (of the network's maps, fine to coarse), diffusion, quantiser=fsq with levels.
        out: Directory for the tokenizer.
        teacher: efficientnet_lite0 (from its Python package), timm:NAME with --weights, timm:NAME.WEIGHTS as on the
            hub, or a run or exported model on pixels, in a directory or as hf://OWNER/NAME.
        weights: File of the weights of a timm: network, or hf://OWNER/NAME/FILE.
        size: Input height and width in pixels; networks of convolutions take other multiples of the patch as well.
        limit: Number of images to fit codes to, spread evenly over the folder.
    """
    from tilework.core.config import resolve
    from tilework.core.distributed import pick_device
    from tilework.core.errors import ConfigError, OutputError
    from tilework.core.hub import exactly
    from tilework.data import ImageFolder
    from tilework.runs.teacher import open_teacher
    from tilework.tokenizers import TeacherCodesConfig, save_tokenizer
    from tilework.tokenizers.teacher_codes import fit, some_pixels

    if out.exists():
        raise OutputError(f"{out} exists", "choose another --out or remove it")
    if limit < 1 or min(size) < 1:
        raise ConfigError(f"--limit {limit} --size {size[0]} {size[1]} is out of range", "give positive numbers")
    folder = ImageFolder.open(images)
    config = resolve(TeacherCodesConfig(size=size), None, settings)
    tokenizer, config = open_teacher(teacher, weights, config)
    fit(tokenizer, some_pixels(folder, limit, config.size), pick_device(device))
    seen = f"codes of {min(limit, len(folder))} images of {images.name}"
    save_tokenizer(out, tokenizer.cpu(), config, config.size, f"feature map of {exactly(teacher)}, frozen; {seen}")
    values = {"tokenizer": str(out), "grid": list(tokenizer.grid(config.size)), "codes": config.codes,
              "code_dim": config.code_dim, "codes_per_position": config.depth}  # fmt: skip
    show(values, json)


def list_tokenizers(
    folders: Annotated[Positional[tuple[Path, ...]], arg(metavar="FOLDER ...")] = (Path("."),),
    /,
    json: Json = False,
) -> None:
    """List the tokenizers that come with Tilework and those in some folders.

    Try:
      tilework tokenizer list
      tilework tokenizer list tokenizers experiments

    Args:
        folders: Folders to look in, and in their sub-folders, two levels deep.
    """
    import json as text

    from tilework.core.errors import InputError
    from tilework.core.location import PACKAGED, TOKENIZER, packaged

    if missing := [folder for folder in folders if not folder.is_dir()]:
        raise InputError(f"no folder {missing[0]}", "give folders to look in, or none")
    found = {name: PACKAGED / name / TOKENIZER for name in packaged()}
    for folder in folders:
        for depth in ("", "*/", "*/*/"):
            found |= {str(file.parent): file for file in sorted(folder.glob(f"{depth}{TOKENIZER}"))}
    values = {}
    for name, file in found.items():
        try:
            settings = text.loads(file.read_bytes())
            card = file.with_name(CARD)
            measured = text.loads(card.read_bytes()) if card.is_file() else {}
            kept = {
                key: measured[key] for key in ("grid", "codes", "entropy_bytes_per_image", "psnr") if measured.get(key)
            }
            kind, size = settings["model"]["name"], "x".join(map(str, settings["size"]))
            values[name] = {"kind": kind, "size": f"{size} px", "origin": settings.get("origin", ""), **kept}
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
            values[name] = {"kind": "damaged"}
    show(values, json)


def card(
    tokenizer: Annotated[Positional[Path], arg(metavar="TOKENIZER")],
    images: Annotated[Positional[Path | None], arg(metavar="[IMAGES]", help_behavior_hint="(optional)")] = None,
    /,
    limit: int = 1000,
    max_broken: float = 0.05,
    device: Device = "auto",
    json: Json = False,
) -> None:
    """Describe a tokenizer; measure it on images: PSNR, SSIM, code usage, bits, speed.

    Try:
      tilework tokenizer card box
      tilework tokenizer card box photos/train
      tilework tokenizer card tokenizer photos/val

    Args:
        tokenizer: Directory of the tokenizer, where card.json and card.png are written, or box, the one in the
            package: its codes are fitted to the images first, as 'tilework tokenize' does, and nothing is written.
        images: Images to measure on: a folder or a label file.
        limit: Number of images to measure on, spread evenly over the folder.
        max_broken: Largest share of unreadable images that is accepted.
    """
    from dataclasses import asdict

    import numpy as np

    from tilework.core.distributed import pick_device
    from tilework.core.files import write, write_json
    from tilework.core.location import PACKAGED
    from tilework.data import ImageFolder, ImageSource
    from tilework.evaluation.reconstruction import reconstruction
    from tilework.report import rows_of_pictures
    from tilework.tokenizers import box
    from tilework.tokenizers.tokenizer import WEIGHTS

    chosen = pick_device(device)
    model, known = box.open_tokenizer(tokenizer)
    packaged = known.place is None  # the box
    about: dict[str, object] = {
        "tokenizer": known.name,
        "sha256": known.encoder or known.sha256,
        "origin": known.origin,
    }
    about |= box.ABOUT if packaged else {}
    about["weights_bytes"] = ((PACKAGED / box.NAME if packaged else tokenizer) / WEIGHTS).stat().st_size
    if images is None:
        form = {"size": list(known.size)} if packaged else _form(model, known.size)
        show({**about, **form, **_measured(tokenizer)}, json)
        return
    folder = ImageFolder.open(images)
    if packaged:
        model, known = box.fitted_box(folder, chosen)
    some = np.linspace(0, len(folder) - 1, min(limit, len(folder))).astype(np.int64)
    source = ImageSource.read(folder.take(some), known.size, max_broken)
    values = {**about, "data": str(images), **asdict(reconstruction(model, source, chosen))}
    if packaged:
        show(values, json)
        return
    shown = source.batch(np.linspace(0, len(source) - 1, min(10, len(source))).astype(np.int64)).x.to(chosen) / 255
    rows = {"image": shown} | ({"decoded": model.decode(model.encode(shown))} if model.decodes else {})
    pictures = {name: x.permute(0, 2, 3, 1).cpu().numpy() for name, x in rows.items()}
    write(tokenizer / "card.png", rows_of_pictures(pictures))
    write_json(tokenizer / CARD, values)
    show({**values, "written": f"{tokenizer / CARD}, {tokenizer / 'card.png'}"}, json)


def _form(model: Tokenizer, size: tuple[int, int]) -> dict[str, object]:
    """What a tokenizer makes of an image, as far as it can be told without one."""
    from math import ceil, log2, prod

    (codes, dim), grid = model.codebook.shape, model.grid(size)
    bits = prod(grid) * max(1, ceil(log2(codes)))
    return {"size": list(size), "grid": list(grid), "codes": codes, "code_dim": dim, "bits_per_image": bits,
            "has_decoder": model.decodes}  # fmt: skip


def _measured(tokenizer: Path) -> dict[str, object]:
    """What a card that was written before says."""
    import json

    try:
        told = json.loads((tokenizer / CARD).read_bytes())
        return {name: told[name] for name in MEASURED if name in told}
    except (OSError, ValueError, TypeError):
        return {}
