"""`tilework demo`."""

from __future__ import annotations

from pathlib import Path

from tilework.cli.arguments import Device, DryRun, Json, OptionalPath
from tilework.cli.output import show


def demo(
    out: Path = Path("demo-out"),
    images: OptionalPath = None,
    quick: bool = False,
    device: Device = "auto",
    dry_run: DryRun = False,
    json: Json = False,
) -> None:
    """Train a tokenizer, a ViT from tokens and one from pixels; write a report.

    Takes about 5 minutes on two cores with the built-in photographs.

    Try:
      tilework demo
      tilework demo --images my-photos --out my-demo

    Args:
        out: Directory for images, stores, runs and report.html; an unfinished demo there is resumed.
        images: Your own images instead of the built-in photographs: one sub-folder per class, or train/ and val/.
        quick: Train for 8 steps only, to check the installation.
    """
    if dry_run:
        show(_plan(out, images, quick), json)
        return
    from tilework.experiments.demo import Demo

    results = Demo(out, images, quick, device, quiet=json).run()
    if json:
        show(results, True)
        return
    files, tokens, pixels = results["jpeg"], results["token"], results["pixel"]
    ratio = files["bytes_per_image"] / tokens["bytes_per_image"]
    print(f"\nfrom pixels  {files['bytes_per_image']:8,.0f} B per image   accuracy {pixels['accuracy']:.1%}")
    print(f"from tokens  {tokens['bytes_per_image']:8,.0f} B per image   accuracy {tokens['accuracy']:.1%}   ", end="")
    noise = "; the difference in accuracy is within noise" if results["within_noise"] else ""
    print(f"({ratio:.0f} times smaller{noise})")
    print(f"\nReport: {out / 'report.html'}; all numbers: {out / 'results.json'}")


def _plan(out: Path, images: Path | None, quick: bool) -> dict[str, object]:
    from tilework.data.image_folder import ImageFolder
    from tilework.data.photographs import PHOTOGRAPHS
    from tilework.recipes import run_of

    plan: dict[str, object] = {"output": str(out)}
    if images is None:
        plan["images"] = f"crops of {len(PHOTOGRAPHS)} photographs inside scikit-image"
    else:
        train = images / "train" if (images / "train").is_dir() else images
        plan["images"] = f"{len(ImageFolder.open(train))} in {train}"
    for name in ("tokenizer", "token", "pixel"):
        fit = run_of(f"demo_{name}").fit
        plan[f"train {name}"] = f"{8 if quick else fit.steps} steps in batches of {fit.batch}"
    plan["time"] = "half a minute" if quick else "about 5 minutes on two cores"
    if images is not None:
        plan["time"] = f"{plan['time']}, and what it takes to read and validate your images"
    return plan
