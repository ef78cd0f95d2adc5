"""Writes trained weights as a GGUF file: Q8_0 matrices, tokenizer and chat template in the one file."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import gguf
import numpy as np
import torch
from gguf import GGMLQuantizationType, GGUFWriter
from tokenizers import Tokenizer
from torch import Tensor

from edge.core.files import replacing
from edge.models.convert import add_shape
from edge.models.decoder import DecoderSpec
from edge.models.spec import parameter_shapes, permute_rows, rotated_heads, stored_name
from tools.nano.data import SYSTEM_TEXT
from tools.nano.recipes import RECIPES
from tools.nano.tokenizer import CONTROL_TOKENS, END_OF_TEXT, TAG_TOKENS, TURN_END

CHAT_TEMPLATE = (
    "{{- '<|im_start|>system\\n" + SYSTEM_TEXT + "<|im_end|>\\n' -}}"
    "{%- for message in messages -%}{%- if message['role'] != 'system' -%}"
    "{{- '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' -}}"
    "{%- endif -%}{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}"
)
"""Always writes its own compact system text; other system messages are dropped, because the models never saw any."""

DESCRIPTIONS: Mapping[str, str] = {
    "nano-edge": "Solves short practice problems in at most four steps, or asks for help",
    "nano-edge-llama": "Solves short practice problems in at most four steps, or asks for help",
    "nano-cloud": "Solves practice problems of any level, carefully",
}


def export_weights(name: str, weights: Path, output: Path) -> None:
    """Write the weights file of a training run, with the tokenizer, as `output`, which is replaced in one step."""
    state = torch.load(weights, weights_only=True)["weights"]
    tokenizer = Tokenizer.from_file(str(weights.parent / "tokenizer.json"))
    spec = RECIPES[name].spec(tokenizer.get_vocab_size())
    write_gguf(name, spec, state, tokenizer, output)


def write_gguf(name: str, spec: DecoderSpec, state: Mapping[str, Tensor], tokenizer: Tokenizer, output: Path) -> None:
    """Write one GGUF file. `state` holds the decoder's parameters by name."""
    with replacing(output) as draft:
        writer = GGUFWriter(str(draft), spec.architecture)
        add_description(writer, name)
        add_shape(writer, spec)
        add_tokenizer(writer, tokenizer)
        for parameter in parameter_shapes(spec):
            add_tensor(writer, parameter, state[parameter], spec)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()


def add_description(writer: GGUFWriter, name: str) -> None:
    """Name, purpose, licence and kind of quantisation."""
    writer.add_name(name)
    writer.add_description(DESCRIPTIONS.get(name, name))
    writer.add_license("apache-2.0")
    writer.add_languages(["en"])
    writer.add_string("edge_agent.prompt_form", "compact")  # the chat template carries the system prompt
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_Q8_0)
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)


def add_tokenizer(writer: GGUFWriter, tokenizer: Tokenizer) -> None:
    """The vocabulary of a trained tokenizer, and the models' own chat template."""
    by_id = {index: token for token, index in tokenizer.get_vocab().items()}
    merges = json.loads(tokenizer.to_str())["model"]["merges"]
    add_vocabulary(writer, [by_id[index] for index in range(len(by_id))], merges, CHAT_TEMPLATE)


def add_vocabulary(writer: GGUFWriter, tokens: Sequence[str], merges: Iterable[Sequence[str]], chat_template: str) -> None:
    """Tokens in id order, their types, merges, end-of-turn and padding ids, and a chat template."""
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list(list(tokens))
    writer.add_token_types([token_type(token) for token in tokens])
    writer.add_token_merges([" ".join(pair) for pair in merges])
    writer.add_eos_token_id(tokens.index(TURN_END))
    writer.add_pad_token_id(tokens.index(END_OF_TEXT))
    writer.add_add_bos_token(False)
    writer.add_chat_template(chat_template)


def token_type(token: str) -> gguf.TokenType:
    """Control for turn marks, user-defined for tags (they render as text), normal for the rest."""
    if token in CONTROL_TOKENS:
        return gguf.TokenType.CONTROL
    return gguf.TokenType.USER_DEFINED if token in TAG_TOKENS else gguf.TokenType.NORMAL


def add_tensor(writer: GGUFWriter, parameter: str, values: Tensor, spec: DecoderSpec) -> None:
    """One tensor: matrices as Q8_0, vectors as float32; q and k rows in the order the architecture wants."""
    if heads := rotated_heads(parameter, spec):
        values = permute_rows(values, heads)
    array = values.detach().float().numpy()
    if array.ndim == 1:
        writer.add_tensor(stored_name(parameter, spec), array)
        return
    packed = gguf.quants.quantize(np.ascontiguousarray(array), GGMLQuantizationType.Q8_0)
    writer.add_tensor(stored_name(parameter, spec), packed, raw_dtype=GGMLQuantizationType.Q8_0)
