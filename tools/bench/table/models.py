"""The measured models: real shapes with random weights, and the bundled one in other forms. A random model is written once as
half-precision GGUF, quantised by llama.cpp itself, and written for transformers with the same weights, so that every engine has the same
model. Its last norm is scaled so that its distributions have the entropy of a language model's rather than of noise.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edge.core.files import replacing
from tools.integrations.trl.bundled import write_hf_folder
from tools.nano.tokenizer import CONTROL_TOKENS, TAG_TOKENS

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from edge.models.decoder import DecoderSpec

CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
SHAPES: Mapping[str, Mapping[str, int]] = {
    "qwen2.5-0.5b": {"width": 896, "layers": 24, "heads": 14, "kv_heads": 2, "head_dim": 64, "ffn_width": 4864},
    "qwen2.5-1.5b": {"width": 1536, "layers": 28, "heads": 12, "kv_heads": 2, "head_dim": 128, "ffn_width": 8960},
    "llama-3.2-3b": {"width": 3072, "layers": 28, "heads": 24, "kv_heads": 8, "head_dim": 128, "ffn_width": 8192},
    "tiny": {"width": 256, "layers": 2, "heads": 4, "kv_heads": 2, "head_dim": 64, "ffn_width": 512},
}
"""Shapes of Qwen2.5 and Llama 3.2, whose embeddings are tied, and one for trying the bench out."""
VOCABULARY = {"qwen2.5-0.5b": 151_936, "qwen2.5-1.5b": 151_936, "llama-3.2-3b": 128_256, "tiny": 4096}
CONTEXT_TOKENS = 2048
WEIGHT_STD = 0.02
LOGIT_STD = 3.5
"""Standard deviation of a random model's logits; some 7 nats of entropy over Qwen2.5's vocabulary."""
_LOOKED_AT = 1 << 20
LARGE_WIDTH = 512
"""Wider models are written in half precision for transformers."""
QUANTISATIONS = {"F16": 1, "Q4_0": 2, "Q8_0": 7, "Q4_K_M": 15}
"""llama.cpp's numbers for the file types."""


def spec_of(shape: str) -> DecoderSpec:
    """The decoder of a named shape. Raises KeyError."""
    from edge.models.decoder import DecoderSpec

    sizes = SHAPES[shape]
    return DecoderSpec(
        "llama" if shape.startswith("llama") else "qwen2",
        vocab_size=VOCABULARY[shape],
        width=sizes["width"],
        layers=sizes["layers"],
        heads=sizes["heads"],
        kv_heads=sizes["kv_heads"],
        head_dim=sizes["head_dim"],
        ffn_width=sizes["ffn_width"],
        context_length=CONTEXT_TOKENS,
        rope_base=1e6,
    )


def identity(path: Path) -> str:
    """Distinguishes two versions of a file without reading gigabytes: size, beginning and end."""
    size = path.stat().st_size
    with path.open("rb") as file:
        digest = hashlib.sha256(str(size).encode() + file.read(_LOOKED_AT))
        file.seek(max(0, size - _LOOKED_AT))
        digest.update(file.read())
    return digest.hexdigest()[:12]


def gguf_file(folder: Path, name: str, quantisation: str) -> Path:
    """The path of a model in some quantisation."""
    return folder / f"{name}-{quantisation.lower()}.gguf"


def make_random(folder: Path, shape: str, quantisations: Sequence[str], transformers: bool) -> list[Path]:
    """Write the missing files of a random model; the half-precision file is removed unless it was requested. Returns the files."""
    wanted = [gguf_file(folder, shape, kind) for kind in quantisations]
    peer = folder / f"{shape}-transformers"
    if not all(file.exists() for file in wanted) or (transformers and not peer.exists()):
        folder.mkdir(parents=True, exist_ok=True)
        spec, half = spec_of(shape), gguf_file(folder, shape, "F16")
        if not half.exists():
            progress(f"{shape}: random weights")
            write_random_gguf(spec, half)
        for kind, file in zip(quantisations, wanted, strict=True):
            if not file.exists():
                progress(f"{shape}: {kind}")
                quantise(half, file, kind)
        if transformers and not peer.exists():
            progress(f"{shape}: for transformers")
            write_hf_folder(half, peer, "bfloat16" if spec.width > LARGE_WIDTH else "float32")
        if "F16" not in quantisations:
            half.unlink()
    return [*wanted, *([peer] if transformers else [])]


def make_readable(folder: Path, source: Path) -> Path:
    """A model that can read as a transformers folder with its own tokenizer, named by the identity of the source."""
    folder.mkdir(parents=True, exist_ok=True)
    return write_hf_folder(source, folder / f"{source.stem}-{identity(source)}-hf")


def quantise(source: Path, target: Path, kind: str) -> None:
    """llama.cpp's own quantisation, in one step. Raises ModelFileError. Rows that K-quants do not fit become another type, as always."""
    import llama_cpp

    from edge.core.errors import ModelFileError
    from edge.inference.gguf_model import ENGINE_LOG

    ENGINE_LOG.install()
    ENGINE_LOG.forget()
    params = llama_cpp.llama_model_quantize_default_params()
    params.ftype, params.allow_requantize, params.nthread = QUANTISATIONS[kind], True, 0
    with replacing(target) as draft:
        if code := llama_cpp.llama_model_quantize(str(source).encode(), str(draft).encode(), params):
            raise ModelFileError(f"{source}: llama.cpp could not quantise it to {kind} ({ENGINE_LOG.last_error() or code})")


# -- random weights ------------------------------------------------------------------------------------------------------------------


def random_tensors(spec: DecoderSpec) -> Iterator[tuple[str, NDArray[np.float32]]]:
    """Every parameter by name, each from its own stream; norms are one, biases zero. Values fit half precision."""
    import numpy as np

    from edge.models.spec import parameter_shapes

    last_norm = LOGIT_STD / (WEIGHT_STD * spec.width**0.5)
    for number, (name, shape) in enumerate(parameter_shapes(spec).items()):
        if name.endswith(".bias"):
            yield name, np.zeros(shape, dtype=np.float32)
        elif len(shape) == 1:
            yield name, np.full(shape, last_norm if name == "model.norm.weight" else 1.0, dtype=np.float32)
        else:
            drawn = np.random.default_rng([1, number]).standard_normal(shape, dtype=np.float32)
            yield name, (drawn * np.float32(WEIGHT_STD)).astype(np.float16).astype(np.float32)


def write_random_gguf(spec: DecoderSpec, path: Path) -> None:
    """One half-precision GGUF file, a tensor in memory at a time."""
    import gguf
    import numpy as np

    from edge.models.convert import add_shape
    from edge.models.spec import parameter_shapes, stored_name
    from tools.nano.export import add_vocabulary

    with replacing(path) as draft:
        writer = gguf.GGUFWriter(str(draft), spec.architecture)
        writer.add_name(path.stem)
        writer.add_string("edge_agent.prompt_form", "compact")
        writer.add_file_type(gguf.LlamaFileType.MOSTLY_F16)
        add_shape(writer, spec)
        tokens = made_up_tokens(spec.vocab_size)
        add_vocabulary(writer, tokens, [tokens[:2]], CHAT_TEMPLATE)
        for name, shape in parameter_shapes(spec).items():
            kind = np.dtype(np.float16 if len(shape) == 2 else np.float32)
            writer.add_tensor_info(stored_name(name, spec), shape, kind, int(np.prod(shape)) * kind.itemsize)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
        for _, values in random_tensors(spec):
            writer.write_tensor_data(values.astype(np.float16) if values.ndim == 2 else values)
        writer.close()


# -- a vocabulary of the real size ---------------------------------------------------------------------------------------------------


def made_up_tokens(size: int) -> list[str]:
    """256 byte letters, one merged pair, the tags, filling, and control tokens at the end; `size` tokens in all."""
    from tokenizers.pre_tokenizers import ByteLevel

    letters = sorted(ByteLevel.alphabet())
    merged = letters[0] + letters[1]
    fixed = [*letters, merged, *TAG_TOKENS]
    filling = [f"<{number}>" for number in range(size - len(fixed) - len(CONTROL_TOKENS))]
    return [*fixed, *filling, *CONTROL_TOKENS]


def progress(text: str) -> None:
    """Print a progress line."""
    print(text, flush=True)


def measure(job: dict[str, Any]) -> dict[str, list[str]]:
    """Make one model's files for the job."""
    folder, kinds, peer = Path(job["folder"]), job["quantisations"], job["transformers"]
    if "source" in job:
        files = [make_readable(folder, Path(job["source"]))]
    else:
        files = make_random(folder, job["shape"], kinds, peer)
    return {"files": [str(file) for file in files]}
