"""Published layouts are recognised, and what is loaded computes what was published.

Oracle: tests/published_tokenizers.py, written from the files it names; sizes from the pages of the published files.
None of these families ever met real weights here, and their cards say so.
"""

from __future__ import annotations

from math import prod
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

import published_tokenizers as published
from tilework.core.errors import ConfigError, InputError
from tilework.models.model import ModelConfig
from tilework.tokenizers import (
    FsqVaeConfig,
    Magvit2Config,
    MaskgitVqConfig,
    TitokConfig,
    VarConfig,
    VqganConfig,
    create_tokenizer,
)
from tilework.tokenizers.foreign import load_foreign
from tilework.tokenizers.titok import SideConfig

SIDES = {"encoder": SideConfig(64, 2), "decoder": SideConfig(128, 1)}
PAINTER = MaskgitVqConfig(32, (1, 2), 2, 10, 5)
CASES: dict[str, tuple[Any, ModelConfig]] = {
    "LlamaGen": (published.LlamaGen(), VqganConfig(32, (1, 2), 2, (1,), 8, 12, 6, match="cosine")),
    "IBQ (": (published.Ibq(), VqganConfig(32, (1, 2), 4, (1,), 8, 12, 6, match="product")),
    "VAR": (published.Var(), VarConfig(32, (1, 2), 2, (1,), 12, 32)),
    "MaskGIT": (published.MaskgitVq(), MaskgitVqConfig(32, (1, 2), 2, 12, 6)),
    "Open-MAGVIT2": (published.Magvit2(), Magvit2Config(32, (1, 2, 2), 2, 7)),
    "TiTok": (published.Titok(), TitokConfig(6, 12, 4, 8, 2, **SIDES, painter=PAINTER)),
    "TiTok ": (published.TitokVq8k(), TitokConfig(6, 12, 4, 8, 2, **SIDES, painter=None)),
    "FSQ": (published.Fsq(), FsqVaeConfig(8, (8, 5, 5, 5))),
}


def save(path: Path, tensors: dict[str, Any]) -> Path:
    torch.save(tensors, path)
    return path


@pytest.mark.parametrize("name", list(CASES))
def test_published_layouts_compute_what_was_published(name: str, tmp_path: Path) -> None:
    family, config = CASES[name]
    w = published.weights(family.layout)
    found, settings, recognised = load_foreign(save(tmp_path / "x.bin", w))
    assert recognised.title.startswith(name.strip())
    assert settings == config
    assert not recognised.tested
    x = torch.rand(2, 3, *family.size, generator=torch.Generator().manual_seed(1))
    with torch.inference_mode():
        features = family.features(w, x)
        torch.testing.assert_close(found.features(x), features, rtol=1e-4, atol=1e-4)
        ids = family.ids(w, features)
        assert torch.equal(found.encode(x), ids)
        assert ids.shape[1:] == found.grid(family.size)
        assert len(ids.unique()) > 2
        image = family.pixels(w, ids)
        torch.testing.assert_close(found.decode(ids), image.clamp(0, 1), rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(found.pixels(found.codebook[ids]), image, rtol=1e-4, atol=1e-4)


WRAPPED = {
    "LlamaGen": lambda w: {"model": w, "steps": 3},
    "IBQ (": lambda w: {"state_dict": {**w, "loss.discriminator.weight": torch.zeros(2)}},
    "Open-MAGVIT2": lambda w: {"state_dict": {**w, "loss.discriminator.weight": torch.zeros(2)}, "epoch": 1},
    "FSQ": lambda w: {"model_state_dict": {f"module.{k}": v for k, v in w.items()}},
}


@pytest.mark.parametrize("name", list(WRAPPED))
def test_wrappers_of_the_published_files(name: str, tmp_path: Path) -> None:
    w = published.weights(CASES[name][0].layout)
    torch.save(WRAPPED[name](w), tmp_path / "x.pt")
    assert load_foreign(tmp_path / "x.pt")[1] == CASES[name][1]


def test_safetensors(tmp_path: Path) -> None:
    save_file(published.weights(published.Titok.layout), tmp_path / "model.safetensors")
    assert load_foreign(tmp_path / "model.safetensors")[1] == CASES["TiTok"][1]


@pytest.mark.parametrize("name", ["IBQ (", "Open-MAGVIT2"])
def test_averaged_weights_win(name: str, tmp_path: Path) -> None:
    """As `init_from_ckpt` reads them: names without dots behind `model_ema.`."""
    family = CASES[name][0]
    raw, average = published.weights(family.layout), published.weights(family.layout, seed=5)
    beside = {f"model_ema.{k.replace('.', '')}": v for k, v in average.items()}
    beside |= {"model_ema.decay": torch.tensor(0.999), "model_ema.num_updates": torch.tensor(-1, dtype=torch.int)}
    found, _, _ = load_foreign(save(tmp_path / "x.ckpt", {"state_dict": {**raw, **beside}}))
    x = torch.rand(1, 3, *family.size)
    torch.testing.assert_close(found.features(x), family.features(average, x), rtol=1e-4, atol=1e-4)


def megabytes(layout: published.Layout) -> float:
    return sum(4 * prod(shape) for shape in layout.values()) / 1e6


F16, F8 = (1, 1, 2, 2, 4), (1, 2, 2, 4)
SMALL, BASE, LARGE = (512, 8), (768, 12), (1024, 24)


@pytest.mark.parametrize(
    ("config", "layout", "published_size", "copies"),
    [  # MB of the published files, in 32-bit floats
        (VqganConfig(multiples=F8, attention=(3,), codes=16384, code_dim=8, match="cosine"),
         published.llamagen_layout(128, F8, 256, 16384, 8), 281, 1),  # vq_ds8_c2i.pt
        (MaskgitVqConfig(), published.maskgit_layout(128, F16, 1024, 256), 218, 1),  # maskgit-vqgan-imagenet
        (Magvit2Config(), published.magvit2_layout(128, F16, 4, 18), 921, 2),  # imagenet_256_L.ckpt, with averages
        ("titok_s_128", published.titok_layout(128, 4096, 12, SMALL, SMALL), 334.8, 1),  # 83.7 million parameters
        ("titok_b_64", published.titok_layout(64, 4096, 12, BASE, BASE), 819, 1),
        ("titok_bl_64_vq8k", published.titok_layout(64, 8192, 64, BASE, LARGE, painter=None), 1560, 1),
        ("titok_sl_256_vq8k", published.titok_layout(256, 8192, 64, SMALL, LARGE, painter=None), 1320, 1),
    ],
)  # fmt: skip
def test_published_sizes(config: Any, layout: published.Layout, published_size: float, copies: int) -> None:
    with torch.device("meta"):
        model = create_tokenizer(config) if isinstance(config, str) else config.build(3, (256, 256), 0)
    ours = sum(4 * p.numel() for p in model.parameters()) / 1e6
    kept = megabytes({k: v for k, v in layout.items() if k != "quantize.codebook_used"})
    assert ours == pytest.approx(kept)
    assert copies * megabytes(layout) == pytest.approx(published_size, rel=0.005)


def test_published_lengths() -> None:
    with torch.device("meta"):
        assert VarConfig().build(3, (0, 0), 0).grid((256, 256)) == (680,)
        assert create_tokenizer("titok_l_32").grid((256, 256)) == (32,)
        assert Magvit2Config().build(3, (0, 0), 0).codebook.shape == (262144, 18)
        llamagen = VqganConfig(codes=16384, code_dim=8, match="cosine").build(3, (0, 0), 0)
        assert llamagen.grid((256, 256)) == (16, 16)


# what shapes do not say


def test_var_takes_other_scales(tmp_path: Path) -> None:
    path = save(tmp_path / "x.pth", published.weights(published.Var.layout))
    found, _, _ = load_foreign(path, ["scales=[1,2,4]"])
    assert found.size == (8, 8)
    assert found.encode(torch.rand(1, 3, 8, 8)).shape == (1, 21)
    with pytest.raises(InputError, match="8x8"):
        found.encode(torch.rand(1, 3, 16, 16))


def test_levels_of_five_channels_must_be_given(tmp_path: Path) -> None:
    path = save(tmp_path / "x.pt", published.weights(published.fsq_layout(8, 5)))
    with pytest.raises(ConfigError, match=r"levels=\[8,5,5,5\]"):
        load_foreign(path)
    assert len(load_foreign(path, ["levels=[7,5,5,5,5]"])[0].codebook) == 4375
    with pytest.raises(InputError, match=r"enc\.blocks\.6"):
        load_foreign(path, ["levels=[8,6,5]"])


# hostile files


def test_no_number_in_a_name_is_believed(tmp_path: Path) -> None:
    for case in ("IBQ (", "TiTok", "Open-MAGVIT2", "MaskGIT"):
        w = published.weights(CASES[case][0].layout)
        old = next(k for k in w if ".block.1." in k or ".transformer.1." in k or ".mid.1." in k)
        far = old.replace(".1.", ".999999999.")
        with pytest.raises(InputError, match="999999999"):
            load_foreign(save(tmp_path / "x.ckpt", {**w, far: w[old]}))


def test_shapes_larger_than_their_bytes_are_refused(tmp_path: Path) -> None:
    w = published.weights(published.Titok.layout)
    w["latent_tokens"] = torch.zeros(1).expand(1 << 40, 64)
    with pytest.raises(InputError, match="fewer bytes"):
        load_foreign(save(tmp_path / "x.bin", w))


def test_too_many_bits_are_refused_before_allocation(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="codes"):
        load_foreign(save(tmp_path / "x.ckpt", published.weights(published.magvit2_layout(32, (1, 2), 1, 40))))
    with pytest.raises(ConfigError, match="70 bits"):
        load_foreign(save(tmp_path / "x.ckpt", published.weights(published.magvit2_layout(32, (1, 2), 1, 70))))


@pytest.mark.parametrize("name", list(CASES))
def test_any_tensor_that_lacks_or_differs_is_named(name: str, tmp_path: Path) -> None:
    w = published.weights(CASES[name][0].layout)
    counted = {"quantize.codebook_used", "quantize.ema_vocab_hit_SV"}
    keys = sorted(w.keys() - counted)
    for key in (keys[len(keys) // 3],):
        with pytest.raises((InputError, ConfigError)):
            load_foreign(save(tmp_path / "x.ckpt", {k: v for k, v in w.items() if k != key}))
        with pytest.raises((InputError, ConfigError)):
            load_foreign(save(tmp_path / "x.ckpt", {**w, key: torch.zeros(0)}))


@pytest.mark.filterwarnings("ignore")
def test_torchscript_is_refused(tmp_path: Path) -> None:
    """NVIDIA's Cosmos tokenizers are programs, not tensors."""
    torch.jit.script(torch.nn.Linear(2, 2)).save(tmp_path / "encoder.jit")
    with pytest.raises(InputError, match="none of it was run"):
        load_foreign(tmp_path / "encoder.jit")
