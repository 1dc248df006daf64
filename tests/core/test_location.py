"""Paths and URLs: what is taken as which, what is refused, and that no secret is shown."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import pytest

from tilework.core.errors import InputError
from tilework.core.location import SCHEMES, Url, location


@pytest.mark.parametrize("text", ["train.tok", "/a/b", "a::b", "C:/x", "a:b", "", "./http/x", "http:"])
def test_paths_are_paths(text: str) -> None:
    assert location(text) == Path(text)
    assert location(Path(text)) == Path(text)


@pytest.mark.parametrize(
    "text",
    [
        "https://host/train.tok",
        "http://127.0.0.1:8000/a/b.tok/",
        "http://[::1]:80/x",
        "s3://my.bucket-1/some key/ü.tok",
        "gs://bucket/x",
        "memory://x.tok",
        "HTTPS://Host/X",
        "https://host",
        "https://host/a%20b/x..y",
    ],
)
def test_urls_stay_as_written(text: str) -> None:
    url = location(text)
    assert isinstance(url, Url)
    assert (str(url), url.scheme) == (text, text.split(":")[0].lower())
    assert json.loads(json.dumps(url)) == text
    again = pickle.loads(pickle.dumps(url))
    assert (again, type(again)) == (url, Url)


@pytest.mark.parametrize(
    "text",
    [
        "file:///etc/passwd",
        "ftp://host/x",
        "simplecache::s3://bucket/x",
        "zip://a.tok::https://host/x.zip",
        "filecache::https://host/x",
        "data://x",
        "://x",
    ],
)
def test_other_schemes_are_refused_with_the_list(text: str) -> None:
    with pytest.raises(InputError, match=", ".join(SCHEMES)):
        location(text)


@pytest.mark.parametrize(
    "text",
    [
        "https://host/a::b",
        "https://host/a/../b",
        "https://host/..",
        "https://host/./b",
        "https://host/a\nb",
        "https://host\\x/b",
        "https:///x",
        "https://ho st/x",
        "https://host/https://other/x",
        "s3://",
        "memory:///x",
        "https://host:port/x",
    ],
)
def test_urls_that_mean_something_else_are_refused(text: str) -> None:
    with pytest.raises(InputError, match="invalid host or path"):
        location(text)


@pytest.mark.parametrize(
    "text",
    [
        "https://user:SECRET@host/x.tok",
        "https://SECRET@host/x.tok",
        "https://user:SEC/RET@host/x.tok",
        "https://host/x.tok?X-Amz-Signature=SECRET",
        "https://host/x.tok#SECRET",
        "s3://key:SECRET@bucket/x.tok",
        "https://user:SECRET/x.tok",
        "https://user:SECRET?@host/x",
        "SECRET:SECRET@x://host/x",
    ],
)
def test_secrets_are_refused_and_not_shown(text: str) -> None:
    with pytest.raises(InputError) as caught:
        location(text)
    assert "SEC" not in str(caught.value)
    assert "RET" not in str(caught.value)


def test_a_url_that_was_made_a_path_is_refused() -> None:
    with pytest.raises(InputError, match="pass a URL as str"):
        location(Path("https://host/x.tok"))
