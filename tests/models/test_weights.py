"""Weights of checkpoints: timm's give timm's logits, moves keep what they can, strangers are refused untouched."""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any
from zipfile import ZIP_DEFLATED, ZipFile

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from tilework.core.errors import ConfigError, InputError
from tilework.layers.positions import resize_positions
from tilework.layers.stems import PatchStemConfig
from tilework.models import Model, Resnet, ResnetConfig, VitConfig, adopt, create_model, read_weights
from tilework.tokenizers.foreign import _tensors

TINY = VitConfig(width=16, depth=2, heads=2, stem=PatchStemConfig(patch=4))


def vit(seed: int = 0, grid: tuple[int, int] = (16, 16), classes: int = 5, **changes: Any) -> Model:
    torch.manual_seed(seed)
    return VitConfig(**{**vars(TINY), **changes}).build(3, grid, classes)


def state(model: Model) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def assert_untouched_refusal(
    model: Model, tensors: dict[str, Tensor], match: str, error: type[Exception] = ConfigError
) -> None:
    before = state(model)
    with pytest.raises(error, match=match):
        adopt(model, tensors)
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())


# against timm


@pytest.mark.parametrize(
    ("name", "ours", "settings", "changes", "file"),
    [
        ("vit_tiny_patch16_224", "vit_ti", {}, {}, "x.pth"),
        ("deit_small_patch16_224", "deit_s", {}, {}, "x.safetensors"),
        (
            "vit_tiny_patch16_224",
            "vit_ti",
            {"global_pool": "avg", "class_token": True},
            {"pool": "mean"},
            "x.safetensors",
        ),
    ],
)
def test_logits_are_those_of_timm(
    timm: Any, tmp_path: Path, name: str, ours: str, settings: dict[str, Any], changes: dict[str, Any], file: str
) -> None:
    torch.manual_seed(0)
    theirs = timm.create_model(name, num_classes=10, **settings).eval()
    for parameter in theirs.parameters():
        parameter.data += 0.02 * torch.randn_like(parameter)  # biases and norms too
    weights = theirs.state_dict()
    save_file(weights, tmp_path / file) if file.endswith("safetensors") else torch.save(
        {"model": weights}, tmp_path / file
    )
    model = create_model(ours, classes=10, **changes).eval()
    assert isinstance(model, Model)
    adopted = adopt(model, read_weights(tmp_path / file))
    assert adopted.kept == tuple(model.state_dict())
    assert adopted.resized == adopted.replaced == ()
    x = torch.randn(1, 3, 224, 224)
    with torch.no_grad():
        assert torch.allclose(model(x).logits, theirs(x), atol=1e-4)


@pytest.mark.parametrize(("old", "new"), [((14, 14), (24, 24)), ((14, 14), (7, 10)), ((6, 9), (4, 4))])
def test_positions_are_resized_as_by_timm(timm: Any, old: tuple[int, int], new: tuple[int, int]) -> None:
    positions = torch.randn(1, 1 + old[0] * old[1], 8)
    theirs = timm.layers.resample_abs_pos_embed(positions, list(new), list(old), num_prefix_tokens=1, antialias=False)
    assert torch.allclose(resize_positions(positions, old, new), theirs, atol=1e-5)


# moves between models


@pytest.mark.parametrize("config", [TINY, ResnetConfig(depth=18, width=8)], ids=["vit", "resnet"])
@pytest.mark.parametrize("to_tokens", [True, False])
def test_between_pixels_and_tokens_all_but_the_stem_is_kept(config: VitConfig | ResnetConfig, to_tokens: bool) -> None:
    pixels, tokens = config.build(3, (16, 16), 5), config.for_tokens().build(6, (8, 8), 5)
    source, target = (pixels, tokens) if to_tokens else (tokens, pixels)
    before = state(target)
    adopted = adopt(target, source.state_dict())
    assert adopted.replaced == tuple(name for name in before if name.startswith(target.stem_names))
    assert adopted.resized == ()
    assert set(adopted.kept) == before.keys() - set(adopted.replaced)
    for name, tensor in target.state_dict().items():
        assert torch.equal(tensor, before[name] if name in adopted.replaced else source.state_dict()[name])


@pytest.mark.parametrize("classes", [7, 0])
def test_other_classes_leave_the_head_fresh(classes: int) -> None:
    source, target = vit(0), vit(1, classes=classes)
    before = state(target)
    adopted = adopt(target, source.state_dict())
    assert adopted.replaced == (("head.weight", "head.bias") if classes else ())
    for name, tensor in target.state_dict().items():
        assert torch.equal(tensor, before[name] if name in adopted.replaced else source.state_dict()[name])


def test_another_grid_resizes_the_positions() -> None:
    source, target = vit(0), vit(1, grid=(24, 32))
    adopted = adopt(target, source.state_dict())
    assert adopted.resized == ("pos_embed",)
    assert adopted.replaced == ()
    expected = resize_positions(source.state_dict()["pos_embed"], (4, 4), (6, 8))
    assert torch.equal(target.state_dict()["pos_embed"], expected)


def test_oblong_grid_of_the_checkpoint_is_told() -> None:
    weights = vit(0, grid=(8, 24)).state_dict()  # 2x6
    assert_untouched_refusal(vit(1), weights, "positions for 12 tokens, not for 3x3: tell the grid")
    target = vit(1)
    assert adopt(target, weights, grid=(2, 6)).resized == ("pos_embed",)
    assert torch.equal(target.state_dict()["pos_embed"], resize_positions(weights["pos_embed"], (2, 6), (4, 4)))
    oblong = vit(0, grid=(8, 32)).state_dict()  # 2x8: as many places as 4x4
    assert adopt(target, oblong, grid=(2, 8)).resized == ("pos_embed",)
    assert adopt(vit(1), vit(0).state_dict(), grid=(4, 4)).resized == ()


@pytest.mark.parametrize(("old", "new"), [("class", "mean"), ("mean", "class")])
def test_another_pooling_takes_the_last_norm_along(old: str, new: str) -> None:
    source, target = vit(0, pool=old), vit(1, pool=new)
    names = {"class": "norm", "mean": "fc_norm"}
    source.state_dict()[f"{names[old]}.weight"].uniform_()
    adopted = adopt(target, source.state_dict())
    assert f"{names[new]}.weight" in adopted.kept
    assert torch.equal(target.state_dict()[f"{names[new]}.weight"], source.state_dict()[f"{names[old]}.weight"])


def test_batch_norms_without_counters_are_taken() -> None:
    source, target = (ResnetConfig(depth=18, width=8).build(3, (32, 32), 5) for _ in range(2))
    assert isinstance(source, Resnet)
    weights = {name: t for name, t in source.state_dict().items() if not name.endswith("num_batches_tracked")}
    assert adopt(target, weights).replaced == ()
    assert torch.equal(target.conv1.weight, source.conv1.weight)


# refusals


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"depth": 3}, "as 'blocks.2.norm1.weight' is unknown here"),
        ({"depth": 1}, "as 'blocks.1.norm1.weight' is missing there"),
        ({"mlp_ratio": 2.0}, r"as 'blocks.0.mlp.fc1.weight' is \(32, 16\) there and \(64, 16\) here"),
        ({"width": 8}, r"as 'cls_token' is \(1, 1, 8\) there and \(1, 1, 16\) here"),
    ],
)
def test_another_model_is_refused(changes: dict[str, Any], words: str) -> None:
    assert_untouched_refusal(vit(1), vit(0, **changes).state_dict(), f"a checkpoint of another model, {words}: set the")


def test_another_architecture_is_refused() -> None:
    assert_untouched_refusal(vit(), ResnetConfig(depth=18, width=8).build(3, (32, 32), 5).state_dict(), "another model")


def test_integers_are_no_weights() -> None:
    weights = {**vit(0).state_dict(), "norm.bias": torch.ones(16, dtype=torch.int64)}
    assert_untouched_refusal(vit(1), weights, "'norm.bias' is torch.int64 there and torch.float32 here")


def test_distilled_deit_is_refused() -> None:
    weights = {**vit(0).state_dict(), "dist_token": torch.zeros(1, 1, 16), "head_dist.weight": torch.zeros(5, 16)}
    assert_untouched_refusal(vit(1), weights, "distilled DeiT", InputError)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("name", ["norm.bias", "pos_embed"])
def test_weights_that_are_not_finite_are_refused(name: str, value: float) -> None:
    weights = state(vit(0))
    weights[name].view(-1)[3] = value
    assert_untouched_refusal(vit(1), weights, f"'{name}' of the checkpoint is not finite", InputError)


# files


@pytest.mark.parametrize("ending", ["pt", "pth", "ckpt", "bin"])
@pytest.mark.parametrize("wrapper", [None, "model", "state_dict", "model_ema"])
def test_wrapped_and_prefixed_files_are_unwrapped(tmp_path: Path, ending: str, wrapper: str | None) -> None:
    tensors = {"module.a": torch.ones(2, dtype=torch.float16), "module.b": torch.arange(3)}
    path = tmp_path / f"x.{ending}"
    torch.save(tensors if wrapper is None else {wrapper: tensors, "epoch": 3}, path)
    read = read_weights(path)
    assert list(read) == ["a", "b"]
    assert (read["a"].dtype, read["b"].dtype) == (torch.float32, torch.int64)
    assert read["a"].tolist() == [1, 1]


def test_averaged_weights_come_first(tmp_path: Path) -> None:
    torch.save({"model": {"a": torch.zeros(1)}, "model_ema": {"a": torch.ones(1)}}, tmp_path / "x.pt")
    assert read_weights(tmp_path / "x.pt")["a"].item() == 1


def test_bfloat16_safetensors_are_widened(tmp_path: Path) -> None:
    save_file({"a": torch.full((2,), 0.5, dtype=torch.bfloat16)}, tmp_path / "x.safetensors")
    assert read_weights(tmp_path / "x.safetensors")["a"].dtype == torch.float32


class Hostile:
    """A pickle that would make a folder."""

    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.target),)


@pytest.mark.parametrize("form", ["torch", "pickle"])
def test_hostile_pickle_runs_nothing(tmp_path: Path, form: str) -> None:
    path, target = tmp_path / "x.pth", tmp_path / "made"
    content = {"model": {"a": torch.ones(1)}, "args": Hostile(target)}
    torch.save(content, path) if form == "torch" else path.write_bytes(pickle.dumps(content, protocol=2))
    with pytest.raises(InputError, match="none of it was run") as refusal:
        read_weights(path)
    assert not target.exists()
    assert "\n" not in str(refusal.value)
    if form == "pickle":
        pickle.loads(path.read_bytes())  # it would have
        assert target.exists()


@pytest.mark.parametrize("content", [[torch.ones(1)], torch.ones(1), {}, {"a": 1}, {1: torch.ones(1)}, {"a": {"b": 1}}])
def test_files_without_weights_are_refused(tmp_path: Path, content: Any) -> None:
    torch.save(content, tmp_path / "x.pt")
    with pytest.raises(InputError):
        read_weights(tmp_path / "x.pt")


def test_odd_tensors_are_refused(tmp_path: Path) -> None:
    for tensor in (torch.eye(2).to_sparse(), torch.empty(2, device="meta")):
        torch.save({"a": tensor}, tmp_path / "x.pt")
        with pytest.raises(InputError):
            read_weights(tmp_path / "x.pt")


@pytest.mark.parametrize("name", ["x.pt", "x.safetensors", "x.npz"])
def test_damaged_and_foreign_files_are_refused_in_one_line(tmp_path: Path, name: str) -> None:
    with pytest.raises(InputError, match="no file"):
        read_weights(tmp_path / name)
    for content in (b"", b"not a checkpoint", bytes(range(256)) * 9):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(InputError) as refusal:
            read_weights(tmp_path / name)
        assert "\n" not in str(refusal.value)


def test_few_bytes_that_claim_many_numbers_are_refused(tmp_path: Path) -> None:
    many = torch.zeros(1, dtype=torch.float16).expand(16_000, 16_000)
    for name, found in (("flat", {"a.weight": many}), ("deep", {"model": {"a": [many]}})):
        torch.save(found, tmp_path / f"{name}.pt")
        with pytest.raises(InputError, match="in fewer bytes"):
            read_weights(tmp_path / f"{name}.pt")


def test_compressed_archives_are_refused(tmp_path: Path) -> None:
    torch.save({"a.weight": torch.zeros(1000, 1000)}, tmp_path / "plain.pt")
    with ZipFile(tmp_path / "plain.pt") as plain, ZipFile(tmp_path / "packed.pt", "w", ZIP_DEFLATED) as packed:
        for entry in plain.infolist():
            packed.writestr(entry.filename, plain.read(entry))
    assert (tmp_path / "packed.pt").stat().st_size < 100_000
    for read in (read_weights, _tensors):
        assert read(tmp_path / "plain.pt")["a.weight"].shape == (1000, 1000)
        with pytest.raises(InputError, match="compressed"):
            read(tmp_path / "packed.pt")
