"""BERT against its equations; independence of rows; loss."""

import math

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file

from multihead.configuration import build
from multihead.errors import ConfigurationError, ShapeError
from multihead.models.bert import huggingface as bert_exchange
from multihead.models.bert.config import BERT_PRESETS, BertConfig
from multihead.models.bert.network import Bert

SIZES = {"vocab": 50, "width": 24, "layers": 3, "heads": 4, "inner": 40, "max_positions": 12}
LENGTHS = torch.tensor([9, 3, 6, 1])


def bert(seed=0, **wishes):
    """A network in float64 without dropout, whose parameters all have an effect."""
    torch.manual_seed(seed)
    model = Bert(BertConfig(**{**SIZES, "dropout": 0.0, "attention_dropout": 0.0, **wishes}))
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.4)
    return model.double().eval()


def batch(seed=1, lengths=LENGTHS):
    """Tokens, lengths and segments, with arbitrary values in the padding."""
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(0, SIZES["vocab"], (len(lengths), int(lengths.max())), generator=generator)
    return tokens, lengths, torch.randint(0, 2, tokens.shape, generator=generator)


def plain(tensors, tokens, segments, layers, heads):
    """One row without padding, from the equations and tensors with Hugging Face's names."""

    def linear(name, x):
        return x @ tensors[f"{name}.weight"].T + tensors[f"{name}.bias"]

    def norm(name, x):
        centred = x - x.mean(-1, keepdim=True)
        scaled = centred / (centred.square().mean(-1, keepdim=True) + 1e-12).sqrt()
        return scaled * tensors[f"{name}.weight"] + tensors[f"{name}.bias"]

    def gelu(x):
        return x * 0.5 * (1 + torch.erf(x / math.sqrt(2)))

    place = "bert.embeddings"
    x = tensors[f"{place}.word_embeddings.weight"][tokens] + tensors[f"{place}.token_type_embeddings.weight"][segments]
    x = norm(f"{place}.LayerNorm", x + tensors[f"{place}.position_embeddings.weight"][: len(tokens)])
    for layer in (f"bert.encoder.layer.{number}" for number in range(layers)):
        q, k, v = (linear(f"{layer}.attention.self.{name}", x) for name in ("query", "key", "value"))
        found = []
        for head in torch.arange(x.shape[1]).chunk(heads):
            scores = q[:, head] @ k[:, head].T / math.sqrt(len(head))
            found.append(scores.softmax(-1) @ v[:, head])
        attended = linear(f"{layer}.attention.output.dense", torch.cat(found, -1))
        x = norm(f"{layer}.attention.output.LayerNorm", x + attended)
        inner = linear(f"{layer}.output.dense", gelu(linear(f"{layer}.intermediate.dense", x)))
        x = norm(f"{layer}.output.LayerNorm", x + inner)
    pooled = linear("bert.pooler.dense", x[0]).tanh()
    ready = norm("cls.predictions.transform.LayerNorm", gelu(linear("cls.predictions.transform.dense", x)))
    words = ready @ tensors[f"{place}.word_embeddings.weight"].T + tensors["cls.predictions.bias"]
    return words, linear("cls.seq_relationship", pooled)


def test_it_computes_the_equations_of_the_paper(tmp_path):
    """Uses the names of the other format, so that these are tested, too."""
    model, (tokens, lengths, segments) = bert(), batch()
    bert_exchange.write(tmp_path, model)
    tensors = load_file(tmp_path / "model.safetensors")
    with torch.no_grad():
        words, follows = model(tokens, lengths, segments)
    for row, length in enumerate(lengths.tolist()):
        expected = plain(tensors, tokens[row, :length], segments[row, :length], SIZES["layers"], SIZES["heads"])
        torch.testing.assert_close(words[row, :length], expected[0])
        torch.testing.assert_close(follows[row], expected[1])


def test_rows_do_not_talk_and_padding_is_not_read():
    model, (tokens, lengths, segments) = bert(), batch()
    with torch.no_grad():
        together = model.encode(tokens, lengths, segments)
        for row, length in enumerate(lengths.tolist()):
            place = slice(row, row + 1), slice(0, length)
            alone = model.encode(tokens[place], lengths[row : row + 1], segments[place])
            torch.testing.assert_close(together.states[place], alone.states)
            torch.testing.assert_close(together.pooled[row], alone.pooled[0])


def test_without_segments_everything_is_the_first():
    model, (tokens, lengths, segments) = bert(), batch()
    with torch.no_grad():
        assert torch.equal(
            model.encode(tokens, lengths).states, model.encode(tokens, lengths, torch.zeros_like(segments)).states
        )


def task(tokens, seed=2):
    """Chosen words of each row, the original tokens, and next-sentence labels of each kind."""
    generator = torch.Generator().manual_seed(seed)
    chosen = (torch.rand(tokens.shape, generator=generator) < 0.5) & (torch.arange(tokens.shape[1]) < LENGTHS[:, None])
    chosen[:, 0] = True
    return chosen, tokens.roll(1, 0), torch.tensor([1, 0, -1, 1])


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_the_loss_is_what_the_heads_say_of_the_chosen_words_and_of_the_pairs(smoothing):
    model, read = bert(), batch()
    chosen, originals, follows = task(read[0])
    words, pairs = model(*read)
    wanted, logits = originals[chosen], words[chosen]
    asked = torch.tensor([0, 1, 0, 0])  # 0 = it follows, for the head; of the third row nothing is asked
    of_pairs = F.cross_entropy(pairs, asked, reduction="none") * torch.tensor([1, 1, 0, 1]) * chosen.sum(1)
    expected = F.cross_entropy(logits, wanted, reduction="sum", label_smoothing=smoothing) + of_pairs.sum()
    found = model.loss(*read, chosen, originals, follows, smoothing=smoothing)
    torch.testing.assert_close(found.total, expected)
    torch.testing.assert_close(found.nll, F.cross_entropy(logits, wanted, reduction="sum"))
    assert found.correct == (logits.argmax(-1) == wanted).sum()
    for one, other in zip(gradients(model, found.total), gradients(model, expected), strict=True):
        torch.testing.assert_close(one, other)


def gradients(model, total):
    return torch.autograd.grad(total, list(model.parameters()), retain_graph=True)


def test_the_loss_of_a_batch_is_the_sum_over_its_rows():
    model, read = bert(), batch()
    inputs = (*read, *task(read[0]))
    whole = model.loss(*inputs, smoothing=0.1)
    rows = [model.loss(*(part[row : row + 1] for part in inputs), smoothing=0.1) for row in range(len(LENGTHS))]
    for place in range(3):
        torch.testing.assert_close(whole[place], sum(found[place] for found in rows))


def test_of_rows_without_pairs_the_pooler_learns_nothing_but_has_a_gradient():
    model, read = bert(), batch()
    chosen, originals, follows = task(read[0])
    model.loss(*read, chosen, originals, torch.full_like(follows, -1), smoothing=0.0).total.backward()
    for parameter in (*model.pooler.parameters(), *model.follows.parameters()):
        assert parameter.grad is not None
        assert not parameter.grad.any()
    assert model.embedding.tokens.weight.grad.any()


def test_what_is_too_long_is_refused():
    model = bert()
    assert model.encode(torch.ones(1, 12, dtype=torch.long), torch.tensor([12])).states.shape == (1, 12, 24)
    with pytest.raises(ShapeError, match="rows of 13 tokens, but this model has 12 positions"):
        model.encode(torch.ones(1, 13, dtype=torch.long), torch.tensor([13]))


def test_dropout_changes_training_alone():
    torch.manual_seed(0)
    model, (tokens, lengths, _) = Bert(BertConfig(**SIZES)), batch()
    model.train()
    assert not torch.equal(model.encode(tokens, lengths).states, model.encode(tokens, lengths).states)
    model.eval()
    assert torch.equal(model.encode(tokens, lengths).states, model.encode(tokens, lengths).states)


def test_first_values():
    torch.manual_seed(0)
    model = Bert(BertConfig(vocab=2000, width=64, layers=1, heads=2, inner=512, initial_deviation=0.03))
    for name, parameter in model.named_parameters():
        if parameter.dim() > 1 and parameter.numel() > 4000:
            assert parameter.std().item() == pytest.approx(0.03, rel=0.05), name
        elif name.endswith("bias"):
            assert not parameter.any(), name
        elif parameter.dim() == 1:
            assert (parameter == 1).all(), name


# --------------------------------------------------------------------------- settings


def test_base_is_the_paper_s_size():
    with torch.device("meta"):
        model = Bert(BertConfig(vocab=30_522, **BERT_PRESETS["base"]))
    encoder = sum(
        parameter.numel() for name, parameter in model.named_parameters() if name.startswith(("embedding", "encoder"))
    )
    assert encoder == 30_522 * 768 + 514 * 768 + 2 * 768 + 12 * (4 * 769 * 768 + 769 * 3072 + 3073 * 768 + 4 * 768)


@pytest.mark.parametrize("name", BERT_PRESETS)
def test_every_preset_is_whole(name):
    config = BertConfig(vocab=100, **BERT_PRESETS[name])
    assert config.width % config.heads == 0
    assert str(config.width) in config.summary


@pytest.mark.parametrize(
    ("wishes", "words"),
    [({"heads": 5}, "multiple of heads"), ({"padding_id": 50}, "padding_id must be an entry"), ({"width": 0}, "width")],
)
def test_what_cannot_be(wishes, words):
    with pytest.raises(ConfigurationError, match=words):
        build(BertConfig, {**SIZES, **wishes}, "the settings")
