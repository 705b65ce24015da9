"""What stands beside a CTranslate2 model: tokenizers, and an example."""

from __future__ import annotations

import json
from pathlib import Path

from multihead.interop.formats.parts import TranslatorParts
from multihead.text.hugging_face import HuggingFaceTokenizer
from multihead.text.sentencepiece import SentencePieceTokenizer
from multihead.text.tokenizer import Tokenizer


def write_tokenizers(parts: TranslatorParts, folder: Path) -> None:
    """Write the files of `tokenizer_files`: for ``tokenizers``, or for ``sentencepiece``."""
    source, target = parts.source_tokenizer, parts.target_tokenizer
    for name, tokenizer in zip(tokenizer_files(source, target), (source, target), strict=True):
        if isinstance(tokenizer, SentencePieceTokenizer):
            (folder / name).write_bytes(tokenizer.model)
        elif isinstance(tokenizer, HuggingFaceTokenizer):
            (folder / name).write_text(
                json.dumps(tokenizer.content, ensure_ascii=False), encoding="utf-8", newline="\n"
            )
        else:
            tokenizer.save(folder / name)


def tokenizer_files(source: Tokenizer, target: Tokenizer) -> tuple[str, str]:
    """The names of both files; one name twice if both sides have the same tokenizer."""
    if source.digest == target.digest:
        name = "sentencepiece.model" if isinstance(source, SentencePieceTokenizer) else "tokenizer.json"
        return name, name
    pieces = (isinstance(source, SentencePieceTokenizer), isinstance(target, SentencePieceTokenizer))
    return (
        "source.spm" if pieces[0] else "source.tokenizer.json",
        "target.spm" if pieces[1] else "target.tokenizer.json",
    )


def readme(parts: TranslatorParts, quantization: str, positions: int) -> str:
    """The content of README.md, with a program that translates."""
    source, target, search = parts.source_tokenizer, parts.target_tokenizer, parts.generation
    names = tokenizer_files(source, target)
    never = [[target.vocabulary[i]] for i in target.forbidden_in_output if i != target.unk_id]
    languages = f"{parts.source_language or 'source'} to {parts.target_language or 'target'}"
    pieces = isinstance(source, SentencePieceTokenizer)
    first = [source.vocabulary[i] for i in source.prefix]
    forced = [target.vocabulary[i] for i in target.prefix]
    library = "sentencepiece" if pieces else "tokenizers"
    load = "sentencepiece.SentencePieceProcessor(model_file={!r})" if pieces else "tokenizers.Tokenizer.from_file({!r})"
    cut = "source.encode(text, out_type=str)" if pieces else "source.encode(text, add_special_tokens=False).tokens"
    show = (
        'target.decode(tokens).replace("▁", " ").strip()'
        if pieces
        else "target.decode([target.token_to_id(token) for token in tokens])"
    )
    alpha = f"    length_penalty={search.alpha},\n" if search.divides_by_power else ""
    other = (
        ""
        if search.divides_by_power
        else f"The model's own search divides by ((5 + |y|) / 6)^{search.alpha:g} (Wu et al. 2016), CTranslate2 by "
        "|y|^`length_penalty`, by default 1, whose best value must be found on a text of its own.\n"
    )
    return (
        f"# Translator for CTranslate2, {languages}\n\n{parts.config.summary}; weights in {quantization}.\n\n"
        f"```python\nimport ctranslate2\nimport {library}\n\n"
        'translator = ctranslate2.Translator(".")\n'
        f"source = {load.format(names[0])}\ntarget = {load.format(names[1])}\n\n"
        'texts = ["..."]\n'
        "results = translator.translate_batch(\n"
        f"    [{f'{first} + ' if first else ''}{cut} for text in texts],\n"
        + (f"    target_prefix=[{forced}] * len(texts),\n" if forced else "")
        + f"    beam_size={search.beam},\n{alpha}    disable_unk=True,\n    suppress_sequences={never},\n)\n"
        "for result in results:\n"
        f"    tokens = result.hypotheses[0]{f'[{len(forced)}:]' if forced else ''}\n    print({show})\n```\n\n"
        f"The model has {positions:,} positions: keep `max_input_length` and `max_decoding_length` at that or below.\n"
        f"{other}"
    )
