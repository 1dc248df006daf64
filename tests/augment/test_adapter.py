"""A trained TokenAdapt: what it does between f and g against a loop, which codes it takes, its files."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from shutil import copytree
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load, save
from torch import Tensor
from torch.nn import functional as F

from published_seitpp import published_adapter
from tilework.augment.adapter import Adapter, load_adapter, save_adapter
from tilework.augment.affine import warp
from tilework.core.batch import Mix
from tilework.core.codebook import Codebook
from tilework.core.errors import ConfigError, DamageError, InputError, OutputError
from tilework.core.sealed import read_json
from tilework.layers.token_adapt import TokenAdaptNetwork

WEIGHTS, SETTINGS = "weights.safetensors", "token_adapt.json"
CODEBOOK = torch.randn(20, 5, generator=torch.Generator().manual_seed(9))
WHOLE = torch.eye(2, 3)
FLIP = torch.tensor([[-1.0, 0, 0], [0, 1, 0]])


def make_ids(count: int = 3, height: int = 8, width: int = 8) -> Tensor:
    return torch.randint(20, (count, height, width), generator=torch.Generator().manual_seed(count))


def vectors(ids: Tensor) -> Tensor:
    return CODEBOOK[ids].permute(0, 3, 1, 2)


def write_adapter(path: Path, codes: int = 0, codebook: Tensor = CODEBOOK) -> Path:
    torch.manual_seed(0)
    network = TokenAdaptNetwork(5, width=16, heads=2, codes=codes)
    network.fit_codes(codebook)
    save_adapter(path, network, codebook, {"name": "small", "sha256": "0f"})
    return path


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Written once, for tests to copy: files are safe on disk before they count as written, which takes its time."""
    root = tmp_path_factory.mktemp("adapters")
    write_adapter(root / "adapter")
    write_adapter(root / "numbered", codes=20)
    return root


@pytest.fixture
def saved(kept: Path, tmp_path: Path) -> Path:
    return Path(copytree(kept / "adapter", tmp_path / "adapter"))


@pytest.fixture
def numbered(kept: Path, tmp_path: Path) -> Path:
    """One that ends in logits of the codes."""
    return Path(copytree(kept / "numbered", tmp_path / "numbered"))


# use


@pytest.mark.parametrize("name", ["adapter", "numbered"])
@pytest.mark.parametrize("mixed", [False, True])
@pytest.mark.parametrize("size", [(8, 8), (6, 7)])
def test_codes_are_moved_and_mixed_between_f_and_g(kept: Path, size: tuple[int, int], mixed: bool, name: str) -> None:
    """One by one: f, the warp, a sum by shares, g, the likeliest code."""
    adapter = Adapter.open(kept / name, Codebook.of(CODEBOOK))
    g = torch.Generator().manual_seed(0)
    affine = WHOLE + 0.3 * torch.randn(3, 2, 3, generator=g)
    partner, own = torch.tensor([2, 0, 1]), torch.rand(3, 2 * size[0], 2 * size[1], generator=g)
    found = adapter(vectors(make_ids()), affine, size, Mix(partner, own) if mixed else None)
    grid = (2 * size[0], 2 * size[1])
    maps = [warp(adapter.network.f(vectors(make_ids())[i : i + 1]), affine[i : i + 1], grid) for i in range(3)]
    assert found.shape == (3, *size)
    for i in range(3):
        mine = own[i] * maps[i] + (1 - own[i]) * maps[partner[i]] if mixed else maps[i]
        assert torch.equal(found[i], adapter.network.g(mine, CODEBOOK)[0].argmax(-1))
    assert len(found.unique()) > 1


def test_the_map_is_that_of_pixels(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where f repeats each code vector and g finds the code of the mean, a flip is a flip of the grid."""
    monkeypatch.setattr(TokenAdaptNetwork, "f", lambda self, z: z.repeat_interleave(2, 2).repeat_interleave(2, 3))
    monkeypatch.setattr(
        TokenAdaptNetwork, "g", lambda self, s, book: -torch.cdist(F.avg_pool2d(s, 2).permute(0, 2, 3, 1), book[None])
    )
    ids = make_ids(2, 6, 8)
    found = Adapter.open(saved, Codebook.of(CODEBOOK))(vectors(ids), torch.stack([WHOLE, FLIP]), (6, 8))
    assert torch.equal(found, torch.stack([ids[0], ids[1].flip(-1)]))


def test_codes_are_those_of_the_store(saved: Path) -> None:
    """Numbers count within the cut, and are the likeliest of it alone."""
    cut = [11, 2, 3, 17]
    whole, few = Adapter.open(saved, Codebook.of(CODEBOOK)), Adapter.open(saved, Codebook.of(CODEBOOK[cut]))
    z, affine = vectors(make_ids()), WHOLE.repeat(3, 1, 1)
    found = few(z, affine, (8, 8))
    logits = whole.network.g(whole.network.f(z), CODEBOOK)
    assert torch.equal(found, logits[..., cut].argmax(-1))
    assert 1 < len(found.unique()) <= 4


@pytest.mark.parametrize("name", ["adapter", "numbered"])
def test_nothing_to_move(kept: Path, name: str) -> None:
    adapter = Adapter.open(kept / name, Codebook.of(CODEBOOK))
    mix = Mix(torch.arange(0), torch.ones(0, 12, 14))
    assert adapter(torch.empty(0, 5, 8, 8), torch.empty(0, 2, 3), (6, 7), mix).shape == (0, 6, 7)


def test_nothing_is_learnt_through_it(saved: Path) -> None:
    adapter = Adapter.open(saved, Codebook.of(CODEBOOK))
    assert not adapter.network.training
    assert not any(p.requires_grad for p in adapter.network.parameters())
    z = vectors(make_ids()).requires_grad_()
    assert not adapter(z, WHOLE.repeat(3, 1, 1), (8, 8)).requires_grad


# which codes


def test_it_needs_code_vectors(saved: Path) -> None:
    with pytest.raises(ConfigError, match="knows other codes"):
        Adapter.open(saved, Codebook.of(torch.zeros(20, 0)))


def other_codebooks() -> list[Tensor]:
    """A shift, one number off, one code more, fewer dimensions."""
    one_off = CODEBOOK.clone()
    one_off[4, 2] += 0.01
    return [CODEBOOK + 1, one_off, torch.cat([CODEBOOK, CODEBOOK[:1] * 2]), CODEBOOK[:, :4]]


def test_another_cut_of_the_codebook_is_fine_but_no_other_codebook(saved: Path) -> None:
    for rows in ([0], [19, 3, 7], list(range(20))):
        assert torch.equal(Adapter.open(saved, Codebook.of(CODEBOOK[rows])).vectors, CODEBOOK[rows])
    Adapter.open(saved, Codebook.of(CODEBOOK * (1 + 1e-7)))  # unit vectors come out a bit different on another device
    for other in other_codebooks():
        with pytest.raises(ConfigError, match=f"{saved} knows other codes than the data"):
            Adapter.open(saved, Codebook.of(other))


def test_logits_fit_the_same_codes_in_the_same_order_alone(numbered: Path) -> None:
    for same in (CODEBOOK, CODEBOOK * (1 + 1e-7)):
        assert Adapter.open(numbered, Codebook.of(same)).network.codes == 20
    swapped = CODEBOOK[[1, 0, *range(2, 20)]]
    for other in (CODEBOOK[:19], CODEBOOK[:1], CODEBOOK.flip(0), swapped):
        with pytest.raises(ConfigError, match=f"{numbered} ends in logits of another cut .*without model.codes"):
            Adapter.open(numbered, Codebook.of(other))
    for other in other_codebooks():
        with pytest.raises(ConfigError, match=f"{numbered} knows other codes"):
            Adapter.open(numbered, Codebook.of(other))


# files


def edit(path: Path, **changes: Any) -> None:
    settings = read_json(path / SETTINGS)
    (path / SETTINGS).write_text(json.dumps({**settings, **changes}))


def put_weights(path: Path, data: bytes) -> None:
    """Other weights with the right hash."""
    (path / WEIGHTS).write_bytes(data)
    edit(path, sha256=hashlib.sha256(data).hexdigest())


def refused(path: Path) -> None:
    with pytest.raises(DamageError) as caught:
        load_adapter(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("codes", [0, 20])
def test_round_trip(tmp_path: Path, codes: int) -> None:
    network = TokenAdaptNetwork(5, width=24, heads=3, codes=codes)
    network.fit_codes(CODEBOOK)
    save_adapter(tmp_path / "deep/adapter", network, CODEBOOK, {"name": "small", "sha256": "0f"})
    loaded, codebook = load_adapter(tmp_path / "deep/adapter")
    assert np.array_equal(codebook.vectors, CODEBOOK)
    assert (loaded.width, loaded.forth.attn.heads, loaded.codes) == (24, 3, codes)
    assert loaded.state_dict().keys() == network.state_dict().keys()
    for name, value in network.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], value)
    z = vectors(make_ids())
    assert torch.equal(loaded.g(loaded.f(z), CODEBOOK), network.eval().g(network.f(z), CODEBOOK))
    assert sorted(path.name for path in (tmp_path / "deep/adapter").iterdir()) == [SETTINGS, WEIGHTS]
    settings = read_json(tmp_path / "deep/adapter" / SETTINGS)
    assert settings["tokenizer"] == {"name": "small", "sha256": "0f"}
    with pytest.raises(OutputError, match="exists"):
        save_adapter(tmp_path / "deep/adapter", network, CODEBOOK, {})


def test_missing_directory_says_how_to_train_one(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no TokenAdapt in .*nowhere.*tilework train token_adapt"):
        Adapter.open(tmp_path / "nowhere", Codebook.of(CODEBOOK))


def test_missing_weights(saved: Path) -> None:
    (saved / WEIGHTS).unlink()
    refused(saved)


@pytest.mark.parametrize("place", [0, 8, 300, -1])
def test_flipped_bit_in_the_weights(saved: Path, place: int) -> None:
    data = bytearray((saved / WEIGHTS).read_bytes())
    data[place] ^= 1
    (saved / WEIGHTS).write_bytes(bytes(data))
    refused(saved)


@pytest.mark.parametrize("data", [b"", b"not weights at all", b"\xff" * 64])
def test_weights_that_are_no_safetensors(saved: Path, data: bytes) -> None:
    put_weights(saved, data)
    refused(saved)


@pytest.mark.parametrize(
    "change",
    [
        lambda t: t.pop("codebook"),
        lambda t: t.pop("mean"),
        lambda t: t.pop("inlet.weight"),
        lambda t: t.update(extra=torch.zeros(1)),
        lambda t: t.update(mean=torch.zeros(6)),
        lambda t: t.update(codebook=torch.zeros(20)),
        lambda t: t.update(codebook=torch.zeros(20, 6)),
    ],
)
def test_weights_of_another_network(saved: Path, change: Callable[[dict[str, Tensor]], object]) -> None:
    tensors = load((saved / WEIGHTS).read_bytes())
    change(tensors)
    put_weights(saved, save(tensors))
    refused(saved)


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "null", "3", '"text"', "{}", "\x00\x01", '{"version": 1}', pytest.param("[" * 10**5, id="deep")],
)
def test_settings_that_are_no_settings(saved: Path, text: str) -> None:
    (saved / SETTINGS).write_text(text)
    refused(saved)


def test_settings_that_are_no_text(saved: Path) -> None:
    (saved / SETTINGS).write_bytes(b"\xff\xfe\x80")
    refused(saved)


@pytest.mark.parametrize("size", [0, -16, 1 << 12, 1 << 40, 1e30, float("inf"), "wide", None, [16], 17, 32])
@pytest.mark.parametrize("name", ["code_dim", "width", "heads"])
def test_sizes_that_do_not_fit_or_are_none(saved: Path, name: str, size: object) -> None:
    edit(saved, **{name: size})
    refused(saved)


@pytest.mark.parametrize("codes", [-1, -20, 1, 19, 21, 1 << 21, 1 << 60, 1e30, float("inf"), "many", None, [20]])
def test_vocabularies_that_do_not_fit_or_are_none(numbered: Path, saved: Path, codes: object) -> None:
    for path in (numbered, saved):
        edit(path, codes=codes)
        refused(path)


def test_vectors_and_logits_are_not_taken_for_each_other(numbered: Path, saved: Path) -> None:
    edit(numbered, codes=0)
    edit(saved, codes=20)
    refused(numbered)
    refused(saved)


def test_settings_from_before_there_were_logits(saved: Path) -> None:
    settings = read_json(saved / SETTINGS)
    del settings["codes"]
    (saved / SETTINGS).write_text(json.dumps(settings))
    assert load_adapter(saved)[0].codes == 0


def test_other_version(saved: Path) -> None:
    edit(saved, version=2)
    with pytest.raises(DamageError, match="version 2, whose logits went by another distance: train it anew"):
        load_adapter(saved)
    edit(saved, version=4)
    with pytest.raises(DamageError, match="version 4, not 3"):
        load_adapter(saved)


def as_version_1(path: Path) -> None:
    """As it was written: one deviation for all channels, no temperature."""
    tensors = load((path / WEIGHTS).read_bytes())
    tensors.pop("log_temperature", None)
    put_weights(path, save({**tensors, "deviation": torch.tensor(2.5)}))
    edit(path, version=1)


def test_version_1_gives_the_same_codes(saved: Path) -> None:
    """Its logits by hand: one scale for all channels, distances over the root of their number."""
    as_version_1(saved)
    network = load_adapter(saved)[0]
    assert network.log_temperature == 0
    assert torch.equal(network.deviation, torch.full((5,), 2.5))
    ends: list[Tensor] = []
    network.outlet.register_forward_hook(lambda layer, taken, given: ends.append(given))
    logits = network.g(network.f(vectors(make_ids())), CODEBOOK)
    code = (CODEBOOK - network.mean) / 2.5
    torch.testing.assert_close(logits, (ends[0] @ code.T - code.square().sum(1) / 2) / 5**0.5)


def test_logits_of_version_1_are_refused_by_their_version(numbered: Path) -> None:
    """That network was no published one."""
    as_version_1(numbered)
    with pytest.raises(DamageError, match="version 1, which is no longer read: train it anew"):
        load_adapter(numbered)


# the weights that SeiT++ published


@pytest.mark.parametrize("old", [False, True])
@pytest.mark.parametrize("wrapped", [False, True])
def test_published_weights(tmp_path: Path, wrapped: bool, old: bool) -> None:
    """Each at its place; other weights of a whole model do not matter."""
    path, theirs = tmp_path / "tokenadapt.ckpt", published_adapter()
    others = {"blocks.0.norm1.weight": torch.ones(3)}
    weights = {"model": {**theirs, **others}, "epoch": 3} if wrapped else {**theirs, **others}
    torch.save(weights, path, _use_new_zipfile_serialization=not old)
    adapter = Adapter.open(path, Codebook.of(CODEBOOK))
    network = adapter.network
    assert (network.codes, network.width, network.forth.attn.heads) == (20, 64, 1)
    assert torch.equal(network.inlet.weight, theirs["conversion_function.0.weight"])
    assert torch.equal(network.outlet.bias, theirs["reverse_transform.1.bias"])
    back = "reverse_transform.0.transformer."
    assert torch.equal(network.back.attn.qkv.weight, theirs[f"{back}layers.0.0.fn.to_qkv.weight"])
    assert torch.equal(network.back.mlp.fc2.weight, theirs[f"{back}layers.0.1.fn.net.2.weight"])
    assert torch.equal(network.state_dict()["back_norm.weight"], theirs[f"{back}norm.weight"])
    learnt = [name for name in theirs if "pos_embedding" not in name]
    assert sum(p.numel() for p in network.parameters()) == sum(theirs[name].numel() for name in learnt)
    found = adapter(vectors(make_ids()), WHOLE.repeat(3, 1, 1), (8, 8))
    assert found.shape == (3, 8, 8)
    assert len(found.unique()) > 1


@pytest.mark.parametrize("rows", [19, 21])
def test_published_weights_for_another_vocabulary(tmp_path: Path, rows: int) -> None:
    torch.save(published_adapter(rows), tmp_path / "tokenadapt.ckpt")
    with pytest.raises(ConfigError, match=f"is for {rows} codes of 5 dimensions, the data have 20 of 5") as caught:
        Adapter.open(tmp_path / "tokenadapt.ckpt", Codebook.of(CODEBOOK))
    assert "\n" not in str(caught.value)


def changed(change: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
    weights = published_adapter()
    change(weights)
    return weights


@pytest.mark.parametrize(
    "weights",
    [
        [1, 2],
        {},
        {"model": 3},
        {"blocks.0.norm1.weight": torch.ones(3)},
        changed(lambda t: t.pop("reverse_transform.1.bias")),
        changed(lambda t: t.pop("conversion_function.1.to_pixel.1.bias")),
        changed(lambda t: t.pop("conversion_function.1.de_pos_embedding")),
        changed(lambda t: t["reverse_transform.0.en_pos_embedding"].add_(1)),
        changed(lambda t: t.update({"reverse_transform.2.weight": torch.ones(1)})),
        changed(lambda t: t.update({"conversion_function.0.bias": torch.ones(1)})),
        changed(lambda t: t.update({"conversion_function.0.weight": torch.ones(65, 5)})),
        changed(lambda t: t.update({"conversion_function.0.weight": torch.ones(5)})),
        changed(lambda t: t.update({"reverse_transform.1.bias": torch.zeros(1).expand(1 << 40)})),
        changed(lambda t: t.update({"reverse_transform.1.weight": torch.zeros(1).expand(20, 64)})),
    ],
)
def test_files_that_are_no_published_weights(tmp_path: Path, weights: object) -> None:
    path = tmp_path / "tokenadapt.ckpt"
    torch.save(weights, path)
    with pytest.raises((DamageError, InputError)) as caught:
        Adapter.open(path, Codebook.of(CODEBOOK))
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_published_weights_run_nothing(tmp_path: Path) -> None:
    class Evil:
        def __reduce__(self) -> tuple[Any, ...]:
            return (Path.touch, (tmp_path / "ran",))

    torch.save({**published_adapter(), "evil": Evil()}, tmp_path / "tokenadapt.ckpt")
    (tmp_path / "broken.ckpt").write_bytes(b"PK\x03\x04 nothing")
    for name in ("tokenadapt.ckpt", "broken.ckpt"):
        with pytest.raises(InputError, match="none of it was run"):
            Adapter.open(tmp_path / name, Codebook.of(CODEBOOK))
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("codes", [10, 30])
def test_logits_of_another_number_of_codes(tmp_path: Path, codes: int) -> None:
    save_adapter(tmp_path / "adapter", TokenAdaptNetwork(5, width=16, heads=2, codes=codes), CODEBOOK, {})
    with pytest.raises(DamageError):
        load_adapter(tmp_path / "adapter")
