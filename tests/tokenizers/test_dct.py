"""DCT coefficients against the cosine sum written slowly, and against the JPEG files that Pillow writes."""

from __future__ import annotations

import io
from math import cos, pi, sqrt
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from tilework.augment import Embed, Flip, apply_all, output_shape
from tilework.augment.token_crop import TokenCrop
from tilework.core.batch import Batch, Shape, Target
from tilework.core.codebook import Codebook
from tilework.core.errors import ConfigError
from tilework.core.rng import Draws
from tilework.tokenizers import Dct, DctConfig, DctFlip, create_tokenizer, load_tokenizer, save_tokenizer
from tilework.tokenizers.dct import ZIGZAG, quantisation


def picture(height: int = 32, width: int = 48) -> Tensor:
    """Smooth colours with some detail, whole bytes in [0, 1], (1, 3, H, W)."""
    y, x = torch.meshgrid(torch.linspace(0, 1, height), torch.linspace(0, 1, width), indexing="ij")
    waves = [(3, 1), (1, 4), (5, 5)]
    bands = [0.5 + 0.4 * torch.sin(a * 6 * x + b * 5 * y) * torch.cos(9 * x * y) for a, b in waves]
    return (torch.stack(bands)[None] * 255).round() / 255


def slow_coefficients(block: np.ndarray) -> np.ndarray:
    """T.81, A.3.3, term by term. block: (8, 8) of one channel, shifted; returns (vertical, horizontal)."""
    found = np.zeros((8, 8))
    for v in range(8):
        for u in range(8):
            scale = (1 / sqrt(2) if u == 0 else 1) * (1 / sqrt(2) if v == 0 else 1) / 4
            for y in range(8):
                for x in range(8):
                    wave = cos((2 * x + 1) * u * pi / 16) * cos((2 * y + 1) * v * pi / 16)
                    found[v, u] += scale * wave * block[y, x]
    return found


@pytest.mark.parametrize(("quality", "keep"), [(50, 64), (90, 10)])
def test_codes_are_the_rounded_cosine_sums(quality: int, keep: int) -> None:
    image = picture()
    tokenizer = create_tokenizer("dct", quality=quality, keep=keep)
    ids = tokenizer.encode(image)
    assert ids.shape == (1, 4, 6, 3 * keep)
    red, green, blue = image[0].double().numpy() * 255
    luminance = 0.299 * red + 0.587 * green + 0.114 * blue
    channels = [luminance - 128, (blue - luminance) * 0.564334, (red - luminance) * 0.713267]
    steps = quantisation(quality).numpy()
    for channel, values in enumerate(channels):
        exact = slow_coefficients(values[8:16, 16:24].round()) / steps[min(channel, 1)]
        wanted = [exact[place] for place in ZIGZAG[:keep]]
        found = ids[0, 1, 2, channel * keep : (channel + 1) * keep] - (len(tokenizer.codebook) - 1) // 2
        assert np.abs(found.numpy() - np.array(wanted)).max() < 0.51


def test_zigzag_begins_and_ends_as_in_figure_a6() -> None:
    assert ZIGZAG[:10] == ((0, 0), (0, 1), (1, 0), (2, 0), (1, 1), (0, 2), (0, 3), (1, 2), (2, 1), (3, 0))
    assert ZIGZAG[-3:] == ((6, 7), (7, 6), (7, 7))
    assert len(set(ZIGZAG)) == 64


def jpeg(image: Tensor, quality: int) -> Image.Image:
    data = io.BytesIO()
    pixels = (image[0].permute(1, 2, 0) * 255).round().byte().numpy()
    Image.fromarray(pixels).save(data, "JPEG", quality=quality, subsampling=0)
    return Image.open(data)


@pytest.mark.parametrize("quality", [1, 10, 30, 50, 75, 95, 100])
def test_tables_are_those_of_libjpeg(quality: int) -> None:
    found = quantisation(quality).flatten(1).tolist()
    tables = jpeg(picture(), quality).quantization  # in zigzag order or by rows, as Pillow's version has it
    zigzag = [[table[8 * row + column] for row, column in ZIGZAG] for table in found]
    assert [list(tables[0]), list(tables[1])] in (found, zigzag)


@pytest.mark.parametrize("quality", [20, 50, 90])
def test_decoded_images_are_those_of_jpeg_files_but_for_rounding(quality: int) -> None:
    image = picture()
    tokenizer = create_tokenizer("dct", quality=quality)
    wanted = torch.from_numpy(np.array(jpeg(image, quality))).permute(2, 0, 1) / 255
    difference = (tokenizer.decode(tokenizer.encode(image))[0] - wanted).abs() * 255
    blocks = difference.unfold(1, 8, 8).unfold(2, 8, 8).amax((0, 3, 4)).flatten()
    assert difference.mean() < 1  # JPEG rounds colours once more
    assert (blocks < 2.5).float().mean() > 0.7  # in the others a coefficient near one half fell the other way


def test_all_coefficients_of_the_best_quality_give_the_image_back() -> None:
    image, tokenizer = picture(), create_tokenizer("dct", quality=100)
    assert ((tokenizer.decode(tokenizer.encode(image)) - image).abs() * 255).max() < 4  # colours are rounded, too


def test_extreme_images_stay_within_the_codes() -> None:
    tokenizer = create_tokenizer("dct", quality=100)
    checks = (torch.arange(16)[:, None] + torch.arange(16)) % 2
    for image in (torch.zeros(1, 3, 16, 16), torch.ones(1, 3, 16, 16), checks.float().expand(1, 3, 16, 16)):
        ids = tokenizer.encode(image)
        assert ids.min() >= 0
        assert ids.max() < len(tokenizer.codebook)
        assert (tokenizer.decode(ids) - image).abs().max() < 0.02


def test_networks_see_numbers_of_the_size_of_one() -> None:
    tokenizer = create_tokenizer("dct", quality=50)
    vectors = tokenizer.vectors(tokenizer.encode(picture(64, 64)))
    codebook = tokenizer.codebook
    assert vectors.abs().max() < 12
    assert 0.2 < vectors[..., 0].std() < 3
    g = torch.arange(192)
    assert torch.allclose(vectors, codebook[tokenizer.encode(picture(64, 64)), g])


def test_files_keep_the_settings(tmp_path: Path) -> None:
    config = DctConfig(quality=30, keep=6)
    save_tokenizer(tmp_path / "dct", config.build(3, (32, 48), 0), config, (32, 48))
    tokenizer, card = load_tokenizer(tmp_path / "dct")
    assert isinstance(tokenizer, Dct)
    assert (tokenizer.config, card.size) == (config, (32, 48))
    assert torch.equal(tokenizer.encode(picture()), config.build(3, (0, 0), 0).encode(picture()))


@pytest.mark.parametrize("settings", [{"quality": 0}, {"quality": 101}, {"keep": 0}, {"keep": 65}])
def test_senseless_settings_are_refused(settings: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="quality"):
        DctConfig(**settings)


def batch_of(tokenizer: Dct, image: Tensor) -> Batch:
    index = torch.arange(len(image))
    return Batch(tokenizer.encode(image).permute(0, 3, 1, 2), Target.hard(index), index)


@pytest.mark.parametrize("keep", [64, 5])
def test_a_flip_of_coefficients_is_a_flip_of_the_image(keep: int) -> None:
    tokenizer = DctConfig(quality=80, keep=keep).build(3, (0, 0), 0)
    batch = batch_of(tokenizer, picture())
    flip = DctFlip(probability=1.0).build(Codebook.of(tokenizer.codebook.detach()))
    found = apply_all([flip], batch, Draws(0, 0, batch.index)).x
    decoded = tokenizer.decode(found.permute(0, 2, 3, 1))
    assert torch.allclose(decoded, tokenizer.decode(tokenizer.encode(picture())).flip(-1), atol=1e-5)
    still = DctFlip(probability=0.0).build(Codebook.of(tokenizer.codebook.detach()))
    assert torch.equal(apply_all([still], batch, Draws(0, 0, batch.index)).x, batch.x)


def test_a_flip_of_places_alone_is_refused() -> None:
    assert output_shape([DctFlip(), Embed()], Shape("stacks", 3, (32, 32))).stage == "map"
    assert output_shape([Embed(), Flip()], Shape("ids", 3, (32, 32))).stage == "map"
    with pytest.raises(ConfigError, match="use 'dct_flip'"):
        assert output_shape([Embed(), Flip()], Shape("stacks", 3, (32, 32))).stage == "map"
    with pytest.raises(ConfigError, match="'dct_flip' takes stacks"):
        output_shape([DctFlip()], Shape("ids", 3, (32, 32)))
    with pytest.raises(ConfigError, match="needs DCT coefficients"):
        DctFlip().build(Codebook.of(torch.zeros(4, 32)))


def test_embedding_dequantises_and_crops_interpolate() -> None:
    tokenizer = DctConfig(quality=50, keep=4).build(3, (0, 0), 0)
    batch = batch_of(tokenizer, picture())
    embedded = apply_all([Embed().build(Codebook.of(tokenizer.codebook.detach()))], batch, Draws(0, 0, batch.index)).x
    assert torch.allclose(embedded.permute(0, 2, 3, 1), tokenizer.vectors(tokenizer.encode(picture())))
    whole = TokenCrop((4, 6), area=(1.0, 1.0), aspect=(1.5, 1.5)).build(Codebook.of(tokenizer.codebook.detach()))
    assert torch.allclose(apply_all([whole], batch, Draws(0, 0, batch.index)).x, embedded, atol=1e-5)
