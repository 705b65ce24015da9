"""A text of a request is a document: its lines are translated with the lines before them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from multihead.bundle import Bundle
from multihead.decoding.search import Search
from multihead.models.config import TransformerConfig
from multihead.models.transformer import Transformer
from multihead.serving.requests import prepare
from multihead.serving.schema import ApiRequest
from multihead.serving.settings import ServeSettings
from multihead.text.context import in_context, learn_with_context, own_text
from multihead.translating.translator import Translator

if TYPE_CHECKING:
    from tests.serving.conftest import Servers

LINES = ["ein hund ruht", "das rennt", "das frisst", "", "eine katze rennt", "das ruht", "", "", "das rennt"]


def random_translator() -> Translator:
    tokenizer = learn_with_context(LINES * 3, 320, 2, 60)
    torch.manual_seed(5)
    size = len(tokenizer)
    config = TransformerConfig(
        source_vocab=size, target_vocab=size, width=16, heads=2, inner=32, encoder_layers=1, decoder_layers=1
    )
    search = Search(beam=2, min_length=4, max_length=8)
    return Translator(Bundle(Transformer(config).eval(), tokenizer, tokenizer, search))


def test_a_request_is_a_document(servers: Servers) -> None:
    translator = random_translator()
    tokenizer = translator.bundle.source_tokenizer
    asked = ApiRequest(text=["\n".join(LINES), "das rennt"])
    prepared = prepare(asked, translator, ServeSettings())
    assert prepared.read == [*filter(None, in_context(tokenizer, LINES)), "das rennt"]
    assert prepared.sentences == [own_text(text) for text in prepared.read]
    assert [row[:-1] for row in prepared.rows] == tokenizer.encode_batch(prepared.read)
    client = servers.start(lambda: translator).client
    reply = client.post(text=["\n".join(LINES), "das rennt"], alignment=True, guard="mark")
    lines = translator.translate(in_context(tokenizer, LINES))
    assert [text.split("\n") for text in reply.texts] == [lines, translator.translate(["das rennt"])]
    words = [line.split() for line in LINES]
    assert reply.json["translations"][0]["alignment"]["source_words"] == [word for line in words for word in line]
