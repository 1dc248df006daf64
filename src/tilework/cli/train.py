"""`tilework train`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from tyro.conf import Positional, arg

from tilework.cli.arguments import NONE, Classes, Data, Device, DryRun, Given, Json, OptionalHub, OptionalPath, Settings
from tilework.cli.output import show

if TYPE_CHECKING:
    from tilework.runs import Chain, Run


def with_classes(base: Run | Chain, level: str | None) -> list[str]:
    """The setting that --classes stands for, of a run or of every run of a chain."""
    if level is None:
        return []
    links = getattr(base, "links", None)
    return [f"classes={level}"] if links is None else [f"links.{link.name}.run.classes={level}" for link in links]


def train(
    recipe: Annotated[Positional[str], arg(metavar="RECIPE")],
    settings: Settings = (),
    /,
    *,
    data: tuple[Data, ...],
    val: Annotated[tuple[Data, ...], arg(help_behavior_hint="(optional)")] = (),
    out: Data,
    start: OptionalHub = None,
    artefacts: Given = NONE,
    config: OptionalPath = None,
    small: Annotated[bool, arg(help_behavior_hint="")] = False,
    classes: Classes = None,
    find_lr: Annotated[bool, arg(help_behavior_hint="")] = False,
    tensorboard: Annotated[bool, arg(help_behavior_hint="")] = False,
    device: Device = "auto",
    dry_run: DryRun = False,
    json: Json = False,
) -> None:
    """Train a model by a recipe or a chain of recipes. Repeat to resume.

    Try:
      tilework train demo_token --data train.tok --val val.tok --out runs/token
      tilework train demo_token fit.steps=2000 model.width=192 --data train.tok --val val.tok --out runs/wide
      tilework train seit_tokens_cpu --start runs/token --data flowers.tok --val flowers-val.tok --out runs/flowers
      tilework train seit_pixels_cpu --start hf://owner/name --data photos/train --val photos/val --out runs/tuned
      tilework train seit_to_pixels_cpu --data train.tok photos/train --val none photos/val --out runs/chain
      tilework train seit_vit_b augment.cutmix.probability=0.5 --small --data train.tok --val val.tok --out runs/half
      tilework train seit_to_pixels_cpu links.pretrain.run.fit.steps=600 --data train.tok photos/train --out runs/short
      tilework train demo_token --data https://host/train.tok --val https://host/val.tok --out runs/remote
      tilework train plain_pixel_cpu --classes top --data photos/train.csv --val photos/val.csv --out runs/listed
      tilework train demo_token --find-lr --data train.tok --out runs/none
      torchrun --nproc-per-node 2 -m tilework train demo_token --data train.tok --val val.tok --out runs/two
      TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 torchrun --max-restarts 3 --nproc-per-node 2 -m tilework train demo_token
        --data s3://bucket/train.tok --out s3://bucket/runs/elastic

    Args:
        recipe: Name of a recipe or a chain; see 'tilework recipes'.
        data: Token store (path or URL) or image folder to train on; for a chain one per run of the chain.
        val: Token store or image folder to evaluate on; for a chain one per run, 'none' for no evaluation.
        out: Directory for settings, log, checkpoints and results; or a URL of a bucket, which every checkpoint goes to.
        start: Run, exported model or checkpoint file to initialise weights from (timm's ViT and DeiT, and SeiT++'s
            masked token modelling, too), or on the hub: hf://OWNER/NAME[@REVISION][/FILE], timm:NAME.WEIGHTS. The run
            keeps commit and SHA-256.
        config: YAML file that overrides settings of the recipe.
        find_lr: Do not train: raise the learning rate over 100 steps and suggest one (range test; Smith, 2017).
        tensorboard: Write the log for TensorBoard too, into OUT/tensorboard.
        small: Train the small form of the recipe: 128 px images or 16x16 codes, minutes on two cores.
    """
    from tilework.core.config import resolve
    from tilework.core.errors import ConfigError
    from tilework.core.location import Url
    from tilework.recipes import find
    from tilework.runs import Chain, check_links, equip, plan, train_chain, try_rates
    from tilework.runs import train as run_recipe

    known, given = find(recipe, small), artefacts.found()
    recipe, base = known.name, known.run
    settings = (*settings, *with_classes(base, classes))
    validation = [None if str(path) == "none" else path for path in val] or [None] * len(data)
    if find_lr and (isinstance(base, Chain) or dry_run):
        raise ConfigError("--find-lr is about a single run", "leave --dry-run out, and give a recipe that is no chain")
    if isinstance(base, Chain):
        if isinstance(out, Url):
            raise ConfigError("the --out of a chain cannot be a URL", "write to a local path, then copy it")
        if tensorboard:
            raise ConfigError("--tensorboard is for a single run", "leave it out: every link has a log.csv")
        chain = resolve(equip(base, given), config, settings)
        if dry_run:
            check_links(chain, data, validation, start)
            plans = zip(chain.links, data, validation, strict=True)
            show({link.name: plan(link.run, path, val, device) for link, path, val in plans}, json)
            return
        result = train_chain(chain, data, validation, out, device, recipe, quiet=json, start=start)
    else:
        run = resolve(equip(base, given), config, settings)
        if len(data) != 1 or len(validation) != 1:
            raise ConfigError(f"recipe '{recipe}' is a single run, not a chain", "give one path to --data and --val")
        if find_lr:
            found = try_rates(run, data[0], device, start)
            show(found if json else {k: v for k, v in found.items() if not isinstance(v, list)}, json)
            return
        if dry_run:
            show(plan(run, data[0], validation[0], device, start), json)
            return
        result = run_recipe(
            run, data[0], validation[0], out, device, recipe, quiet=json, start=start, tensorboard=tensorboard
        )
    if result.leads:
        show({"run": str(out), "seconds": result.seconds, **result.summary}, json)
