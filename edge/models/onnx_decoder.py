"""Writes a model's decoder as an ONNX graph with a key/value cache.

Inputs, axes R rows, T new tokens, S cached places, L layers, K key/value heads, d head width, r rank:
  ids [R, T] int64, positions [R, T] int64, bias [R, 1, 1, T, S + T] (added to attention scores: 0 where allowed, -inf where not),
  past_keys and past_values [L, R, K, S, d], and for each linear layer of the blocks NAME.lora_a [in, r] and NAME.lora_b [r, out].
Outputs: logits [R, V] after the last new token, keys and values [L, R, K, T, d] of the new tokens, to be put into the cache.

LoRA tensors are inputs rather than merged into the weights: a swap then costs no copy of the weights and no new session, takes effect
between two runs, and what is served is W x + B A x as in training. Weights are float32, dequantised from the GGUF file.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from edge.core.engines import ENGINES
from edge.core.errors import ModelFileError
from edge.models.gguf_reader import open_gguf
from edge.models.new_file import new_file
from edge.models.spec import DecoderSpec

OPSET = 17
IR_VERSION = 9
SOURCE_KEY = "edge_agent.source_sha256"
"""The graph's metadata hold the SHA-256 of the GGUF file here, so that it is never served in another one's place."""
LINEARS = (
    "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj", "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj",
)  # fmt: skip
_LARGEST_BYTES = 1 << 30


def export_onnx(gguf_path: Path, out: Path, *, force: bool = False) -> None:
    """Write the decoder of a GGUF file as ONNX; `out` appears complete or not at all. Raises ModelFileError, UsageError."""
    source = open_gguf(gguf_path)
    spec = source.computed_spec(ENGINES["onnx"])
    if 4 * source.parameters > _LARGEST_BYTES:
        raise ModelFileError(f"{gguf_path}: too large for one ONNX file (1 GiB of float32)", hint="serve it with llama.cpp")
    state = {name: values.numpy() for name, values in source.decoder_state(spec)}
    graph = _Graph(spec, state)
    graph.decoder(source.rope_frequencies(spec).numpy())
    proto = helper.make_graph(graph.nodes, "decoder", graph.inputs, graph.outputs, graph.weights)
    model = helper.make_model(proto, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION)
    with gguf_path.open("rb") as file:
        helper.set_model_props(model, {SOURCE_KEY: hashlib.file_digest(file, "sha256").hexdigest()})
    with new_file(out, force=force) as partial:
        partial.write_bytes(model.SerializeToString())


class _Graph:
    """Collects nodes and weights; each method adds an operation and returns the name of its result."""

    def __init__(self, spec: DecoderSpec, state: dict[str, NDArray[np.float32]]) -> None:
        self._spec = spec
        self._state = state
        self._known: set[str] = set()
        self.nodes: list[Any] = []
        self.weights: list[Any] = []
        self.inputs: list[Any] = []
        self.outputs: list[Any] = []

    def decoder(self, frequencies: NDArray[np.float32]) -> None:
        """The whole model."""
        spec = self._spec
        self._declare()
        cos, sin = self._angles(frequencies)
        past_k, past_v = (self._layers_of(name) for name in ("past_keys", "past_values"))
        x = self.op("Gather", self.parameter("model.embed_tokens.weight"), "ids")
        new_k, new_v = [], []
        for layer in range(spec.layers):
            root = f"model.layers.{layer}."
            angles = (cos, sin) if spec.is_rotated(layer) else None
            mixed, k, v = self._attention(root, self._norm(x, root + "input_layernorm"), angles, past_k[layer], past_v[layer])
            x = self.op("Add", x, mixed)
            normed = self._norm(x, root + "post_attention_layernorm")
            gate, up = self._linear(root + "mlp.gate_proj", normed), self._linear(root + "mlp.up_proj", normed)
            gated = self.op("Mul", self.op("Mul", gate, self.op("Sigmoid", gate)), up)
            x = self.op("Add", x, self._linear(root + "mlp.down_proj", gated))
            new_k.append(self.op("Unsqueeze", k, self.integers([0])))
            new_v.append(self.op("Unsqueeze", v, self.integers([0])))
        last = self.op("Gather", x, self.integers(-1), axis=1)
        head = "model.embed_tokens.weight" if spec.tied_embeddings else "lm_head.weight"
        self.op("Gemm", self._norm(last, "model.norm"), self.parameter(head), transB=1, result="logits")
        self.op("Concat", *new_k, axis=0, result="keys")
        self.op("Concat", *new_v, axis=0, result="values")

    def _attention(self, root: str, x: str, angles: tuple[str, str] | None, past_k: str, past_v: str) -> tuple[str, str, str]:
        """Grouped-query attention; the heads that share keys are laid out next to each other as more queries of those keys."""
        spec, name = self._spec, root + "self_attn."
        groups = spec.heads // spec.kv_heads
        q = self._heads(self._linear(name + "q_proj", x), spec.heads, name + "q_norm")
        k = self._heads(self._linear(name + "k_proj", x), spec.kv_heads, name + "k_norm")
        if angles is not None:
            q, k = self._rotated(q, *angles), self._rotated(k, *angles)
        v = self._heads(self._linear(name + "v_proj", x), spec.kv_heads, "")
        all_k, all_v = self.op("Concat", past_k, k, axis=2), self.op("Concat", past_v, v, axis=2)
        q = self.op("Mul", q, self.floats(spec.head_dim**-0.5))
        q = self.op("Reshape", q, self.integers([0, spec.kv_heads, -1, spec.head_dim]))
        scores = self.op("MatMul", q, self.op("Transpose", all_k, perm=[0, 1, 3, 2]))
        places = self.op("Shape", "bias", start=3, end=5)
        apart = self.op("Concat", self.integers([0, spec.kv_heads, groups]), places, axis=0)
        weights = self.op("Softmax", self.op("Add", self.op("Reshape", scores, apart), "bias"), axis=-1)
        weights = self.op("Reshape", weights, self.op("Shape", scores))
        length = self.op("Shape", "ids", start=1, end=2)
        per_head = self.op("Concat", self.integers([0, spec.heads]), length, self.integers([spec.head_dim]), axis=0)
        mixed = self.op("Reshape", self.op("MatMul", weights, all_v), per_head)
        joined = self.op(
            "Reshape", self.op("Transpose", mixed, perm=[0, 2, 1, 3]), self.integers([0, 0, spec.heads * spec.head_dim])
        )
        return self._linear(name + "o_proj", joined), k, v

    def _linear(self, name: str, x: str) -> str:
        """W x + b + B A x."""
        y = self.op("MatMul", x, self.weight(name + ".weight.T", self._state[name + ".weight"].T))
        y = self.op("Add", y, self.op("MatMul", self.op("MatMul", x, name + ".lora_a"), name + ".lora_b"))
        return self.op("Add", y, self.parameter(name + ".bias")) if name + ".bias" in self._state else y

    def _heads(self, x: str, heads: int, norm: str) -> str:
        """[R, T, heads * d] -> [R, heads, T, d], each head normalised where the model does that."""
        x = self.op("Reshape", x, self.integers([0, 0, heads, self._spec.head_dim]))
        if self._spec.family.qk_norm and norm:
            x = self._norm(x, norm)
        return self.op("Transpose", x, perm=[0, 2, 1, 3])

    def _norm(self, x: str, name: str) -> str:
        mean = self.op("ReduceMean", self.op("Mul", x, x), axes=[-1], keepdims=1)
        scale = self.op("Reciprocal", self.op("Sqrt", self.op("Add", mean, self.floats(self._spec.norm_eps))))
        return self.op("Mul", self.op("Mul", x, scale), self.parameter(name + ".weight"))

    def _rotated(self, x: str, cos: str, sin: str) -> str:
        half = self._spec.head_dim // 2
        first, second = self.ops("Split", 2, x, self.integers([half, half]), axis=3)
        turned = self.op("Sub", self.op("Mul", first, cos), self.op("Mul", second, sin))
        return self.op("Concat", turned, self.op("Add", self.op("Mul", second, cos), self.op("Mul", first, sin)), axis=3)

    def _angles(self, frequencies: NDArray[np.float32]) -> tuple[str, str]:
        """Cosine and sine [R, 1, T, d / 2]."""
        positions = self.op("Unsqueeze", self.op("Cast", "positions", to=TensorProto.FLOAT), self.integers([1, 3]))
        angles = self.op("Mul", positions, self.weight("rope_frequencies", frequencies))
        return self.op("Cos", angles), self.op("Sin", angles)

    def _layers_of(self, name: str) -> list[str]:
        layers = self.ops("Split", self._spec.layers, name, self.integers([1] * self._spec.layers), axis=0)
        return [self.op("Squeeze", layer, self.integers([0])) for layer in layers]

    def _declare(self) -> None:
        spec = self._spec
        cache: list[int | str] = [spec.layers, "R", spec.kv_heads, "S", spec.head_dim]
        new: list[int | str] = [spec.layers, "R", spec.kv_heads, "T", spec.head_dim]
        self.inputs += [helper.make_tensor_value_info(name, TensorProto.INT64, ["R", "T"]) for name in ("ids", "positions")]
        self.inputs.append(_floats("bias", ["R", 1, 1, "T", "S_and_T"]))
        self.inputs += [_floats(name, cache) for name in ("past_keys", "past_values")]
        for layer in range(spec.layers):
            for module in LINEARS:
                name = f"model.layers.{layer}.{module}"
                rows, columns = self._state[name + ".weight"].shape
                self.inputs += [_floats(name + ".lora_a", [columns, "r"]), _floats(name + ".lora_b", ["r", rows])]
        self.outputs = [_floats("logits", ["R", spec.vocab_size]), _floats("keys", new), _floats("values", new)]

    def op(self, kind: str, *operands: str, result: str = "", **attributes: Any) -> str:
        """Add a node with one result."""
        name = result or f"{kind}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, operands, [name], **attributes))
        return name

    def ops(self, kind: str, results: int, *operands: str, **attributes: Any) -> list[str]:
        """Add a node with several results."""
        names = [f"{kind}_{len(self.nodes)}_{index}" for index in range(results)]
        self.nodes.append(helper.make_node(kind, operands, names, **attributes))
        return names

    def parameter(self, name: str) -> str:
        """A parameter of the model under its own name."""
        return self.weight(name, self._state[name])

    def weight(self, name: str, values: NDArray[Any]) -> str:
        """A constant, stored once."""
        if name not in self._known:
            self._known.add(name)
            self.weights.append(numpy_helper.from_array(np.asarray(values, order="C"), name))
        return name

    def integers(self, values: int | list[int]) -> str:
        """A constant of int64."""
        return self.weight(f"int64:{values}", np.asarray(values, dtype=np.int64))

    def floats(self, value: float) -> str:
        """A constant of float32."""
        return self.weight(f"float32:{value!r}", np.asarray(value, dtype=np.float32))


def _floats(name: str, shape: Sequence[int | str]) -> Any:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
