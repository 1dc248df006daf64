"""The adversarial loss against VQGAN's two steps written slowly: two losses, two backward passes, weights by hand."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path

import pytest
import torch

from small_data import write_images
from tilework.core.batch import Batch, Target
from tilework.core.config import resolve
from tilework.core.errors import ConfigError
from tilework.core.rng import Draws
from tilework.models.model import ModelConfig
from tilework.objectives import AdversarialConfig, Reconstruct, ReconstructConfig
from tilework.objectives.adversarial import PatchDiscriminator, hinge_losses
from tilework.recipes import recipes
from tilework.runs import train
from tilework.tokenizers import DctConfig, VitVqConfig, VitVqganConfig, VqganConfig, VqVaeConfig
from tilework.tokenizers.vit_vqgan import TransformerConfig

SMALL = VitVqConfig(patch=4, codes=12, code_dim=4, width=16, depth=1, heads=2)


def objective(config: ModelConfig = SMALL, **settings: float) -> Reconstruct:
    torch.manual_seed(0)
    chosen = AdversarialConfig(**{"weight": 0.5, "start": 2, "width": 4, "layers": 2, **settings})
    return ReconstructConfig(adversarial=chosen, revive_every=0).build(config.build(3, (16, 16), 0))


def batch() -> Batch:
    x = torch.rand(4, 3, 16, 16, generator=torch.Generator().manual_seed(1))
    return Batch(x, Target.hard(torch.zeros(4, dtype=torch.int64)), torch.arange(4))


def at(step: int) -> Draws:
    return Draws(0, 0, torch.arange(4), step)


def begun(one: Reconstruct) -> Reconstruct:
    one(batch(), at(0))  # its first look at data
    with torch.no_grad():  # last layers start at zero; here they matter
        one.model.last_layer.normal_(0, 0.05)
    return one


def test_hinge_losses_by_hand() -> None:
    real, fake = torch.tensor([2.0, 0.5, -1.0]), torch.tensor([-3.0, 0.0, 1.0])
    assert hinge_losses(real, fake).item() == pytest.approx(((0 + 0.5 + 2) / 3 + (0 + 1 + 2) / 3) / 2)


def test_gradients_are_those_of_two_steps() -> None:
    one = begun(objective())
    slow = deepcopy(one)
    one(batch(), at(3))["loss"].backward()

    x, judge = batch().x, slow.adversarial.discriminator
    found = slow.model.quantiser(slow.model.features(x))
    restored = slow.model.pixels(found.vectors)
    error = (restored - x).square().mean()
    fooled = -judge(restored).mean()
    last = slow.model.to_pixels[1].weight
    norms = [torch.autograd.grad(loss, last, retain_graph=True)[0].square().sum().sqrt() for loss in (error, fooled)]
    weight = 0.5 * (norms[0] / (norms[1] + 1e-4)).item()
    (error + weight * fooled + found.codebook + 0.25 * found.commitment).backward()
    wanted = {f"model.{name}": p.grad.clone() for name, p in slow.model.named_parameters()}
    slow.zero_grad()  # what the first step left in the discriminator does not count
    real, fake = judge(x), judge(restored.detach())
    ((torch.relu(1 - real).mean() + torch.relu(1 + fake).mean()) / 2).backward()
    wanted |= {f"adversarial.discriminator.{name}": p.grad for name, p in judge.named_parameters()}

    grads = {name: p.grad for name, p in one.named_parameters()}
    assert grads.keys() == wanted.keys()
    for name, grad in grads.items():
        torch.testing.assert_close(grad, wanted[name], rtol=1e-4, atol=1e-7, msg=name)
    logged = one(batch(), at(3))
    assert logged["adversarial_weight"].item() == pytest.approx(weight, rel=1e-4)
    assert not logged["adversarial_weight"].requires_grad
    assert logged["fooled"].item() == pytest.approx(fooled.item(), rel=1e-4)


def test_the_weight_is_clipped() -> None:
    one = begun(objective(most=0.01))
    assert one(batch(), at(3))["adversarial_weight"].item() == pytest.approx(0.5 * 0.01)


def test_before_its_start_there_is_no_loss_but_a_gradient_for_every_process() -> None:
    one, plain = begun(objective()), objective()
    plain.load_state_dict(one.state_dict())
    plain.adversarial = None
    out = one(batch(), at(1))
    assert out["loss"].item() == pytest.approx(plain(batch(), at(1))["loss"].item())
    out["loss"].backward()
    assert all(p.grad is not None and not p.grad.any() for p in one.adversarial.parameters())


def test_the_discriminator_is_the_published_one() -> None:
    judge = PatchDiscriminator()
    assert [m.out_channels for m in judge.layers if isinstance(m, torch.nn.Conv2d)] == [64, 128, 256, 512, 1]
    assert judge(torch.rand(2, 3, 256, 256)).shape == (2, 1, 30, 30)  # patches of 70 px
    kernels = 16 * (3 * 64 + 64 * 128 + 128 * 256 + 256 * 512 + 512)
    assert sum(p.numel() for p in judge.parameters()) == kernels + 64 + 1 + 2 * (128 + 256 + 512)


@pytest.mark.parametrize(
    "config",
    [
        VqVaeConfig(width=8, blocks=1, hidden=4, codes=12, code_dim=4),
        VqganConfig(width=32, multiples=(1, 1), blocks=1, attention=(), latent=4, codes=12, code_dim=4),
        VitVqganConfig(patch=4, grid=(4, 4), codes=12, code_dim=4, encoder=TransformerConfig(16, 1, 2, 16),
                       decoder=TransformerConfig(16, 1, 2, 16)),
    ],
)  # fmt: skip
def test_every_tokenizer_has_a_last_layer_that_decides_the_pixels(config: ModelConfig) -> None:
    one = begun(objective(config))
    out = one(batch(), at(3))
    assert out["adversarial_weight"] > 0
    out["loss"].backward()
    assert one.model.last_layer.grad.any()


def test_what_has_no_decoder_to_train_is_refused() -> None:
    with pytest.raises(ConfigError, match="nothing to train"):
        objective(DctConfig())
    with pytest.raises(ConfigError, match=r"lower objective\.adversarial\.start"):
        ReconstructConfig(adversarial=AdversarialConfig(start=10)).check((), 10)
    with pytest.raises(ValueError, match="positive"):
        AdversarialConfig(weight=0)


def test_a_recipe_trains_in_parts_of_batches_and_resumes(tmp_path: Path) -> None:
    images = write_images(tmp_path / "images")
    sizes = ["model.width=16", "model.heads=2", "model.codes=16", "objective.adversarial.start=2"]
    sizes += ["objective.adversarial.width=4", "size=[32,32]", "fit.steps=5", "fit.batch=8", "fit.accumulate=2"]
    run = resolve(recipes["small_tokenizer_gan"].run, None, [*sizes, "fit.save_every=3", "fit.keep=3"])
    whole = train(run, images, None, tmp_path / "run", quiet=True).model.state_dict()
    assert all(value.isfinite().all() for value in whole.values())
    place = tmp_path / "run/checkpoints"
    (place / "latest").write_text("step-00000003\n")  # as if it had been stopped there
    again = train(run, images, None, tmp_path / "run", quiet=True).model.state_dict()
    assert all(torch.equal(value, again[name]) for name, value in whole.items())
