"""A decoder with rotary positions, RMS norm and SwiGLU has the logits of `transformers`' LLaMA."""

from __future__ import annotations

import pytest
import torch

from multihead.models.decoder.config import DecoderConfig
from multihead.models.decoder.network import DecoderLM

transformers = pytest.importorskip("transformers")

NAMES = {
    "self_attn.o_proj": "self_attention.output_projection",
    "mlp.gate_proj": "feed_forward.gate",
    "mlp.up_proj": "feed_forward.expand",
    "mlp.down_proj": "feed_forward.contract",
    "input_layernorm": "self_residual.norm",
    "post_attention_layernorm": "feed_forward_residual.norm",
}


def test_the_logits_are_those_of_llama() -> None:
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=11,
        hidden_size=8,
        intermediate_size=12,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        tie_word_embeddings=True,
        attn_implementation="eager",
    )
    theirs = transformers.LlamaForCausalLM(config).eval()
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter += 0.3 * torch.randn_like(parameter)
    sizes = {"vocab": 11, "width": 8, "inner": 12, "decoder_layers": 2, "heads": 2, "kv_heads": 1, "dropout": 0.0}
    plain = {"attention_bias": False, "feed_forward_bias": False, "embedding_scale": "none"}
    kinds = {"positions": "rotary", "norm_kind": "rms", "feed_forward": "swiglu", "norm_eps": config.rms_norm_eps}
    ours = DecoderLM(DecoderConfig(**sizes, **plain, **kinds)).eval()  # type: ignore[arg-type]
    given = {name.removeprefix("model."): tensor for name, tensor in theirs.state_dict().items()}
    own = dict(ours.named_parameters())
    with torch.no_grad():
        own["embedding.table.weight"].copy_(given["embed_tokens.weight"])
        own["norm.weight"].copy_(given["norm.weight"])
        for number in range(2):
            layer = f"layers.{number}."
            packed = [given[f"{layer}self_attn.{part}_proj.weight"] for part in "qkv"]
            own[f"{layer}self_attention.in_projection.weight"].copy_(torch.cat(packed))
            for old, new in NAMES.items():
                own[f"{layer}{new}.weight"].copy_(given[f"{layer}{old}.weight"])
        tokens = torch.randint(0, 11, (2, 9))
        torch.testing.assert_close(ours(tokens), theirs(tokens).logits, rtol=1e-4, atol=1e-4)
