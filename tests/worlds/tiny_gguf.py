"""Tiny random models of every architecture that learns, as GGUF files, with a real byte-level BPE tokenizer, a template, known weights.

The weights are random, so is what the models say; but they are exact: `TinyModel.state` holds the dequantised weights under
their Hugging Face names, the way `edge.models.decoder` wants them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import gguf
import numpy as np
from gguf.quants import dequantize, quantize

from edge.models.convert import add_shape
from edge.models.spec import DecoderSpec

CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
TOOL_TEMPLATE = (
    "{% if tools %}<|im_start|>system\nTools:\n{% for tool in tools %}{{ tool | tojson }}\n{% endfor %}"
    'A call is <tool_call>\n{"name": NAME, "arguments": OBJECT}\n</tool_call><|im_end|>\n{% endif %}'
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}"
    '{% for call in message.tool_calls or [] %}\n<tool_call>\n{"name": "{{ call.function.name }}", '
    '"arguments": {{ call.function.arguments | tojson }}}\n</tool_call>{% endfor %}<|im_end|>\n{% endfor %}'
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""One that reads tools and writes calls, as instruct models of the Qwen family have it."""
WINDOW = 6
"""Of local layers in tiny Gemma models: less than their tests' prompts."""
LAYERS = {"smollm3": 4, "gemma3": 6}
"""Every kind of layer occurs; other architectures have two alike."""
CONTROL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
WORDS = (" I", " need", " external", " assistance", "Step", " Step", "think", "answer", "user", "assistant", "In", " It")


@dataclass(frozen=True)
class TinyModel:
    """A written model: its file, shape and dequantised weights (Hugging Face names and layout, float32)."""

    path: Path
    architecture: str
    vocab: tuple[str, ...]
    state: dict[str, np.ndarray]
    width: int = 64
    layers: int = 2
    heads: int = 4
    kv_heads: int = 2
    ffn_width: int = 96
    context_length: int = 512
    rope_base: float = 10_000.0
    norm_eps: float = 1e-6

    @property
    def head_dim(self) -> int:
        """Heads of Qwen3 and Gemma 3 are wider together than the model."""
        return 24 if self.architecture in ("qwen3", "gemma3") else self.width // self.heads

    @property
    def spec(self) -> DecoderSpec:
        """The shape as the decoders take it."""
        sizes = (self.width, self.layers, self.heads, self.kv_heads, self.head_dim, self.ffn_width)
        rest = (self.context_length, self.rope_base, self.norm_eps, self.architecture == "qwen2", self.architecture == "gemma3")
        gemma = {"window": WINDOW, "local_rope_base": 700.0, "rope_divisor": 2.0} if self.architecture == "gemma3" else {}
        return DecoderSpec(self.architecture, len(self.vocab), *sizes, *rest, **gemma)  # type: ignore[arg-type]


def write_tiny_model(
    path: Path,
    architecture: str = "qwen2",
    seed: int = 1,
    quantised: bool = True,
    chat_template: str | None = CHAT_TEMPLATE,
    prompt_form: str | None = "compact",
    scale: float = 1.0,
    context_length: int = 512,
    control_tokens: Sequence[str] = CONTROL_TOKENS,
) -> TinyModel:
    """Write a random model. `scale` multiplies the output weights: larger makes the distributions sharper.

    `control_tokens`: the first one pads, or begins every prompt where it is `<s>`; the last one ends a text.
    """
    layers = LAYERS.get(architecture, 2)
    model = TinyModel(path, architecture, byte_level_vocabulary(control_tokens), {}, layers=layers, context_length=context_length)
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_name("tiny")
    add_shape(writer, model.spec)
    _write_tokenizer(writer, model.vocab, chat_template, control_tokens)
    if prompt_form is not None:
        writer.add_string("edge_agent.prompt_form", prompt_form)
    _write_weights(writer, model, np.random.Generator(np.random.Philox(seed)), quantised, scale)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return model


def permute_rows(weight: np.ndarray, heads: int) -> np.ndarray:
    """Half-split rotary order to llama.cpp's interleaved order of a llama file: row j of a head's halves becomes row 2j, 2j + 1."""
    rows = weight.shape[0]
    return weight.reshape(heads, 2, rows // heads // 2, *weight.shape[1:]).swapaxes(1, 2).reshape(weight.shape)


def byte_level_vocabulary(control_tokens: Sequence[str] = CONTROL_TOKENS) -> tuple[str, ...]:
    """256 byte tokens, merged words with all their prefixes, and the control tokens at the end."""
    tokens = [*_byte_letters().values()]
    for word in WORDS:
        letters = _as_letters(word)
        tokens += [letters[:length] for length in range(2, len(letters) + 1)]
    unique = list(dict.fromkeys(tokens))
    return (*unique, *control_tokens)


def _byte_letters() -> dict[int, str]:
    """GPT-2's printable stand-ins for the 256 bytes: visible Latin-1 characters for themselves, the rest from U+0100 on."""
    visible = {*range(33, 127), *range(161, 173), *range(174, 256)}
    letters, spare = {}, 256
    for byte in range(256):
        letters[byte] = chr(byte if byte in visible else spare)
        spare += byte not in visible
    return letters


def _as_letters(text: str) -> str:
    letters = _byte_letters()
    return "".join(letters[byte] for byte in text.encode())


def _merges(vocab: tuple[str, ...], control_tokens: Sequence[str] = CONTROL_TOKENS) -> list[str]:
    """Each merged token grows by one letter from the prefix before it, so one merge rule per token makes them all reachable."""
    merged = sorted((token for token in vocab if token not in control_tokens and len(token) > 1), key=len)
    return [f"{token[:-1]} {token[-1]}" for token in merged]


def _write_tokenizer(
    writer: gguf.GGUFWriter, vocab: tuple[str, ...], chat_template: str | None, control_tokens: Sequence[str]
) -> None:
    normal, control = gguf.TokenType.NORMAL, gguf.TokenType.CONTROL
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list(list(vocab))
    writer.add_token_types([control if token in control_tokens else normal for token in vocab])
    writer.add_token_merges(_merges(vocab, control_tokens))
    writer.add_eos_token_id(vocab.index(control_tokens[-1]))
    begins = control_tokens[0] == "<s>"
    (writer.add_bos_token_id if begins else writer.add_pad_token_id)(vocab.index(control_tokens[0]))
    writer.add_add_bos_token(begins)
    if chat_template is not None:
        writer.add_chat_template(chat_template)


def _write_weights(writer: gguf.GGUFWriter, model: TinyModel, random: np.random.Generator, quantised: bool, scale: float) -> None:
    architecture = next(kind for kind, name in gguf.MODEL_ARCH_NAMES.items() if name == model.architecture)
    names = gguf.get_tensor_name_map(architecture, model.layers)
    for name, shape in _shapes(model).items():
        values = _random_values(name, shape, random, scale, model.spec.tied_embeddings)
        kind = gguf.GGMLQuantizationType.Q8_0 if quantised and len(shape) == 2 else gguf.GGMLQuantizationType.F32
        stored = quantize(_in_file_order(model, name, values), kind)
        writer.add_tensor(names.get_name(name, try_suffixes=(".weight", ".bias")), stored, raw_dtype=kind)
        plain = quantize(values, kind)
        model.state[name] = dequantize(plain, kind).reshape(shape).astype(np.float32)
    if model.spec.tied_embeddings:
        model.state["lm_head.weight"] = model.state["model.embed_tokens.weight"]


def _in_file_order(model: TinyModel, name: str, values: np.ndarray) -> np.ndarray:
    if model.architecture not in ("llama", "smollm3") or not name.endswith(("q_proj.weight", "k_proj.weight")):
        return values
    return np.ascontiguousarray(permute_rows(values, model.heads if "q_proj" in name else model.kv_heads))


def _random_values(
    name: str, shape: tuple[int, ...], random: np.random.Generator, scale: float, tied: bool = False
) -> np.ndarray:
    if "norm" in name:
        return (1.0 + 0.1 * random.normal(size=shape)).astype(np.float32)
    gain = scale * 3.0 if name == ("model.embed_tokens.weight" if tied else "lm_head.weight") else 1.0
    return (random.normal(size=shape) * gain / np.sqrt(shape[-1])).astype(np.float32)


def _shapes(model: TinyModel) -> dict[str, tuple[int, ...]]:
    vocab, width, ffn = len(model.vocab), model.width, model.ffn_width
    q_width, kv_width = model.heads * model.head_dim, model.kv_heads * model.head_dim
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (vocab, width)}
    for layer in range(model.layers):
        root = f"model.layers.{layer}."
        shapes[root + "input_layernorm.weight"] = (width,)
        for part, rows in (("q", q_width), ("k", kv_width), ("v", kv_width)):
            shapes[f"{root}self_attn.{part}_proj.weight"] = (rows, width)
            if model.architecture == "qwen2":
                shapes[f"{root}self_attn.{part}_proj.bias"] = (rows,)
        if model.architecture in ("qwen3", "gemma3"):
            shapes[root + "self_attn.q_norm.weight"] = shapes[root + "self_attn.k_norm.weight"] = (model.head_dim,)
        shapes[root + "self_attn.o_proj.weight"] = (width, q_width)
        norms = ("pre_feedforward", "post_feedforward") if model.architecture == "gemma3" else ()
        shapes |= {f"{root}{norm}_layernorm.weight": (width,) for norm in ("post_attention", *norms)}
        shapes[root + "mlp.gate_proj.weight"] = shapes[root + "mlp.up_proj.weight"] = (ffn, width)
        shapes[root + "mlp.down_proj.weight"] = (width, ffn)
    shapes["model.norm.weight"] = (width,)
    if model.architecture != "gemma3":
        shapes["lm_head.weight"] = (vocab, width)
    return shapes


def write_unlearned_model(path: Path) -> Path:
    """A random model of the architecture phi3, which llama.cpp serves and no decoder here computes."""
    vocab, random, width, ffn = byte_level_vocabulary(), np.random.Generator(np.random.Philox(3)), 64, 96
    writer = gguf.GGUFWriter(path, "phi3")
    for add, value in (
        (writer.add_context_length, 256), (writer.add_embedding_length, width), (writer.add_block_count, 2),
        (writer.add_feed_forward_length, ffn), (writer.add_head_count, 4), (writer.add_head_count_kv, 4),
        (writer.add_rope_dimension_count, 16),
    ):  # fmt: skip
        add(value)
    writer.add_layer_norm_rms_eps(1e-5)
    _write_tokenizer(writer, vocab, CHAT_TEMPLATE, CONTROL_TOKENS)
    matrices = {
        "attn_qkv": (3 * width, width),
        "attn_output": (width, width),
        "ffn_up": (2 * ffn, width),
        "ffn_down": (width, ffn),
    }
    shapes: dict[str, tuple[int, ...]] = {
        "token_embd": (len(vocab), width),
        "output": (len(vocab), width),
        "output_norm": (width,),
    }
    for layer in range(2):
        shapes |= {f"blk.{layer}.{name}": shape for name, shape in matrices.items()}
        shapes |= {f"blk.{layer}.{norm}": (width,) for norm in ("attn_norm", "ffn_norm")}
    for name, shape in shapes.items():
        writer.add_tensor(f"{name}.weight", _random_values(name, shape, random, 1.0))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
