"""Names on the hub: what is fetched, what is refused, and that no token is shown or sent elsewhere.

Oracle: a stand-in server (hub_server.py) that the real client of huggingface_hub talks to.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save

from hub_server import STRANGER, TOKEN, WRONG, HubServer, serve_hub, use_hub
from tilework.cli.main import main
from tilework.core import hub as ours
from tilework.core.errors import DamageError, InputError, MachineError, OutputError
from tilework.core.files import sha256
from tilework.core.hub import fetch, local
from tilework.core.location import HubName, Url, hub_name, location, path_or_hub

TENSORS = save({"a": np.arange(3000, dtype=np.float32)})
TOKENIZER = {
    "tokenizer.json": b'{"version": 1}',
    "weights.safetensors": TENSORS,
    "train.py": b"print(1)",
    "x.bin": b"1",
}


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HubServer]:
    with serve_hub() as hub:
        use_hub(hub, tmp_path / "cache", monkeypatch)
        yield hub


def test_names() -> None:
    whole = HubName("hf://datasets/o-1/n.x@v1.0/a/b.safetensors")
    assert (whole.kind, whole.repo, whole.revision, whole.file) == ("dataset", "o-1/n.x", "v1.0", "a/b.safetensors")
    plain = HubName("hf://o/n")
    assert (plain.kind, plain.repo, plain.revision, plain.file, plain.pinned) == ("", "o/n", "", "", False)
    assert plain.at("a" * 40) == f"hf://o/n@{'a' * 40}"
    assert plain.at("a" * 40).pinned
    assert HubName("hf://o/n@refs/pr/3/x").revision == "refs/pr/3"
    assert hub_name("timm:resnet18.a1_in1k") == "hf://timm/resnet18.a1_in1k"
    assert hub_name("photos/train") is None
    assert path_or_hub("photos/train") == Path("photos/train")
    with pytest.raises(InputError, match="timm:resnet18 names no weights"):
        hub_name("timm:resnet18")


@pytest.mark.parametrize(
    "text",
    [
        "hf://o", "hf://", "hf://o/n/", "hf://o/n/../../x", "hf://o/n//x", "hf://../n", "hf://datasets/n", "hf://spaces/o/n",
        "hf://o/n@", "hf://o/n/a\\b", "hf://o/n/a\nb", "hf://user:SECRET@host/x", "hf://o/n?token=SECRET", "hf://o/a..b",
        "hf://o/n@../x", "https://o/n",
    ],
)  # fmt: skip
def test_other_names_are_refused_and_secrets_not_shown(text: str) -> None:
    with pytest.raises(InputError) as caught:
        HubName(text)
    assert "SECRET" not in str(caught.value)


def test_data_are_not_read_in_place() -> None:
    with pytest.raises(InputError, match="tilework pull hf://o/n"):
        location("hf://o/n")
    with pytest.raises(InputError, match="pass a URL as str"):
        location(Path("hf://o/n"))
    with pytest.raises(InputError):
        Url("hf://o/n")


def test_a_tokenizer_is_fetched_without_what_may_run(server: HubServer) -> None:
    commit = server.put("o/tok", TOKENIZER)
    found = fetch(HubName("hf://o/tok"))
    assert found.name == f"hf://o/tok@{commit}"
    assert sorted(file.name for file in found.path.iterdir()) == ["tokenizer.json", "weights.safetensors"]
    assert found.sha256 == {name: sha256(found.path / name) for name in ("tokenizer.json", "weights.safetensors")}
    assert (found.path / "weights.safetensors").read_bytes() == TENSORS
    before = len(server.requests)
    assert fetch(found.name) == found  # a commit never changes: the cache is enough
    assert len(server.requests) == before


def test_a_file_of_weights(server: HubServer) -> None:
    server.put("timm/net.tag", {"model.safetensors": TENSORS, "config.json": b"{}", "pytorch_model.bin": b"1"})
    found = fetch(HubName("hf://timm/net.tag"))
    assert found.path.name == "model.safetensors"
    assert found.path.with_name("config.json").is_file()
    server.put("o/many", {"a/b.safetensors": TENSORS, "pytorch_model.bin": b"1"})
    assert local(HubName("hf://o/many/a/b.safetensors")).read_bytes() == TENSORS
    with pytest.raises(InputError, match=r"no model\.safetensors.*name one of its files: a/b\.safetensors"):
        fetch(HubName("hf://o/many"))
    with pytest.raises(InputError, match="no safetensors file: files that may run code"):
        fetch(HubName("hf://o/many/pytorch_model.bin"))


def test_data_sets_are_found_and_folders(server: HubServer) -> None:
    commit = server.put("o/d", {f"sub/{name}": data for name, data in TOKENIZER.items()}, kind="dataset")
    found = fetch(HubName("hf://o/d/sub"))
    assert found.name == f"hf://datasets/o/d@{commit}/sub"
    assert (found.path / "weights.safetensors").is_file()
    assert set(found.sha256) == {"sub/tokenizer.json", "sub/weights.safetensors"}
    assert fetch(found.name) == found


def test_a_revision(server: HubServer) -> None:
    first = server.put("o/n", {"model.safetensors": TENSORS})
    server.put("o/n", {"model.safetensors": save({"b": np.zeros(2)})})
    assert local(HubName(f"hf://o/n@{first}")).read_bytes() == TENSORS
    with pytest.raises(InputError, match="has no revision 'v9'"):
        fetch(HubName("hf://o/n@v9"))


def test_private_missing_and_tokens(server: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    server.put("owner/secret", {"model.safetensors": TENSORS}, private=True)
    hidden = r"there is no hf://owner/(secret|none) that you may have read: check the name; if it is private, log in"
    for name in ("secret", "none"):
        with pytest.raises(InputError, match=hidden):
            fetch(HubName(f"hf://owner/{name}"))
    monkeypatch.setenv("HF_TOKEN", STRANGER)
    with pytest.raises(InputError, match=hidden):
        fetch(HubName("hf://owner/secret"))
    monkeypatch.setenv("HF_TOKEN", WRONG)
    with pytest.raises(InputError, match="the hub does not know your token") as caught:
        fetch(HubName("hf://owner/secret"))
    assert WRONG not in str(caught.value)
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    assert local(HubName("hf://owner/secret")).read_bytes() == TENSORS
    assert server.storage_tokens == [None]  # another host gets no token


def test_a_token_that_cannot_be_sent_is_not_shown(server: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    server.put("o/tok", TOKENIZER)
    monkeypatch.setenv("HF_TOKEN", "SECRET\x01\u20ac hf_SECRET")
    with pytest.raises(InputError) as caught:
        fetch(HubName("hf://o/tok"))
    assert "SECRET" not in str(caught.value)
    assert "\n" not in str(caught.value)


def test_names_are_said_exactly(server: HubServer) -> None:
    commit = server.put("timm/net.tag", {"model.safetensors": TENSORS, "config.json": b"{}"})
    digest = hashlib.sha256(TENSORS).hexdigest()
    want = f"hf://timm/net.tag@{commit} (SHA-256: model.safetensors {digest})"
    assert ours.exactly("timm:net.tag") == ours.exactly("hf://timm/net.tag") == want
    assert [ours.exactly(name) for name in ("efficientnet_lite0", "timm:net", "runs/x")] == [
        "efficientnet_lite0", "timm:net", "runs/x"
    ]  # fmt: skip
    found = fetch(HubName("hf://timm/net.tag"))
    assert fetch(found.name) == found  # from the cache


def test_offline(server: HubServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    server.put("o/tok", TOKENIZER)
    found = fetch(HubName("hf://o/tok"))
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    assert fetch(found.name) == found
    assert capsys.readouterr().err == ""
    with pytest.raises(InputError, match="hf://o/other cannot be read: no connection to the hub"):
        fetch(HubName("hf://o/other"))


def test_a_branch_from_the_cache_is_said(server: HubServer, capsys: pytest.CaptureFixture[str]) -> None:
    server.put("o/tok", TOKENIZER)
    found = fetch(HubName("hf://o/tok"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
        assert fetch(HubName("hf://o/tok")).path == found.path
    assert "the hub cannot be reached" in capsys.readouterr().err


@pytest.mark.parametrize("fault", ["cut", "long", "corrupt", "500"])
def test_downloads_that_fail_leave_nothing_that_is_taken(fault: str, server: HubServer) -> None:
    server.put("o/tok", TOKENIZER)
    server.faults["weights.safetensors"] = fault
    with pytest.raises((InputError, DamageError)) as caught:
        fetch(HubName("hf://o/tok"))
    assert "\n" not in str(caught.value)
    assert "http" not in str(caught.value)
    server.faults.clear()
    found = fetch(HubName("hf://o/tok"))
    assert (found.path / "weights.safetensors").read_bytes() == TENSORS


def test_names_that_lead_out_of_the_cache(server: HubServer, tmp_path: Path) -> None:
    server.put("o/evil", {"model.safetensors": TENSORS})
    for name in ("../../evil.safetensors", "/etc/evil.safetensors", "a/../../evil", "a\\..\\b"):
        server.names = [name, "model.safetensors"]
        with pytest.raises(InputError, match="invalid file name"):
            fetch(HubName("hf://o/evil"))
    assert not list(tmp_path.rglob("evil*"))


def test_sizes_are_bounded_before_a_byte_comes(server: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    server.put("o/tok", TOKENIZER)
    monkeypatch.setattr(ours, "LARGEST", 1000)
    with pytest.raises(DamageError, match="without a size that can be"):
        fetch(HubName("hf://o/tok"))
    monkeypatch.setattr(ours, "LARGEST", 1 << 30)
    monkeypatch.setattr(ours, "LARGEST_TEXT", 5)
    with pytest.raises(InputError, match="larger than such a file can be"):
        fetch(HubName("hf://o/tok"))
    monkeypatch.setattr(ours.shutil, "disk_usage", lambda path: type("Usage", (), {"free": 10}))
    with pytest.raises(OutputError, match="has room for 10"):
        fetch(HubName("hf://o/tok"))


def test_a_damaged_copy_is_fetched_again(server: HubServer) -> None:
    server.put("o/tok", TOKENIZER)
    found = fetch(HubName("hf://o/tok"))
    (found.path / "weights.safetensors").resolve().write_bytes(TENSORS[:-1] + b"?")
    assert fetch(HubName("hf://o/tok")) == found


def test_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> None:
        raise ImportError(name)

    monkeypatch.setattr(ours, "import_module", absent)
    with pytest.raises(MachineError, match=r"pip install 'tilework\[hub\]'"):
        fetch(HubName("hf://o/n"))


def test_stores_are_pulled_not_fetched(server: HubServer) -> None:
    server.put("o/s", {"manifest.json": json.dumps({}).encode()})
    with pytest.raises(InputError, match="is a token store: fetch it with 'tilework pull"):
        fetch(HubName("hf://o/s"))


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("tokenize {images} --tokenizer hf://o/none --out {out}", "there is no hf://o/none"),
        ("tokenize {images} --tokenizer hf://o --out {out}", "no name on the Hugging Face Hub"),
        ("tokenize {images} --out hf://o/n", "--out cannot be a URL: write to a local path, then 'tilework push' it"),
        ("train linear_cpu --data hf://o/n --out {out}", "fetch it with 'tilework pull hf://o/n"),
        ("predict hf://o/none {images}", "there is no hf://o/none"),
        ("pull hf://o/none --out {out}", "there is no hf://o/none"),
        ("pull hf://o/empty --out {out}", "holds no store, tokenizer, run or exported model"),
        ("push {images} hf://owner/x", "is nothing of Tilework"),
        ("push {images}/none hf://owner/x", "no such directory"),
        ("push {images} owner/x", "no name on the Hugging Face Hub"),
    ],
)
def test_careless_lines(
    line: str, said: str, server: HubServer, images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server.put("o/empty", {"README.md": b""})
    out = tmp_path / "out"
    with pytest.raises(SystemExit) as caught:
        main(line.format(images=images, out=out).split())
    shown = capsys.readouterr().err.strip()
    assert said in shown
    assert shown.count("\n") == 0
    assert caught.value.code == (4 if "--out hf" in line else 3)
    assert not list(tmp_path.glob("out*"))
