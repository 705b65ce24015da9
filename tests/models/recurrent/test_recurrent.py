"""The recurrent translator: masks, loss, gradients, weights.

test_recurrent_equations.py tests that it computes its equations, test_recurrent_state.py that steps equal the whole
pass.
"""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from multihead.data.batching import Batch, collate
from multihead.data.store import ParallelStore
from multihead.kernels import random
from multihead.models.config import RecurrentConfig
from multihead.models.network import Network, token_loss
from multihead.models.recurrent.network import RecurrentTranslator
from multihead.training.config import TrainingConfig
from multihead.training.optimizer import Average, build_optimizer
from multihead.training.splitting import sequence_loss
from multihead.training.step import train_step

EXACT: dict[str, Any] = {"rtol": 1e-9, "atol": 1e-11}
SIZES: dict[str, Any] = {"source_vocab": 13, "target_vocab": 13, "width": 8, "dropout": 0.0}
WIRINGS: dict[str, dict[str, Any]] = {
    "before": {"attend": "before"},
    "after": {"attend": "after", "cell": "lstm", "score": "bilinear"},
    "fed": {"attend": "after", "input_feeding": True, "decoder_layers": 2, "score": "dot"},
}
NETWORKS: dict[str, dict[str, Any]] = {
    **WIRINGS,
    "hard": {"alignment": "sample"},
    "runs": {**WIRINGS["after"], "alignment": "segmentation"},
    "sparse": {**WIRINGS["fed"], "alignment": "entmax15"},
    "trees": {**WIRINGS["fed"], "encoder_attention": "tree"},
    "words": {"encoder_layers": 0, "encoder_attention": "softmax", "tie_output": False},
    "deep": {"encoder_layers": 2, "decoder_layers": 2, "cell": "lstm"},
}


def network(seed: int = 0, noise: float = 0.3, **changes: Any) -> RecurrentTranslator:
    """A model in float64 and evaluation mode, with random biases."""
    torch.manual_seed(seed)
    made = RecurrentTranslator(RecurrentConfig(**(SIZES | changes))).double().eval()
    with torch.no_grad():
        for parameter in made.parameters():
            if parameter.requires_grad:
                parameter += noise * torch.randn_like(parameter)
        for words in (made.encoder.words, made.target_words):
            words.table.weight[0].zero_()
    return made


@pytest.fixture(params=NETWORKS)
def model(request: pytest.FixtureRequest) -> RecurrentTranslator:
    return network(**NETWORKS[request.param])


# ------------------------------------------------------------------------------------------ what is seen


@pytest.mark.parametrize("extra", [0, 5])
def test_a_padded_batch_equals_its_sentences_one_by_one(small: Any, model: RecurrentTranslator, extra: int) -> None:
    source, lengths = small.padded(small.sources, extra)
    target, target_lengths = small.padded(small.targets, extra)
    together = model(source, lengths, target).logits
    for row, (one, other) in enumerate(zip(small.sources, small.targets, strict=True)):
        alone = model(*small.padded([one]), torch.tensor([other])).logits[0]
        torch.testing.assert_close(together[row, : target_lengths[row]], alone, **EXACT)


def test_what_stands_in_the_padding_is_never_seen(small: Any, model: RecurrentTranslator) -> None:
    source, lengths = small.padded(small.sources, 2)
    target, _ = small.padded(small.targets)
    padding = torch.arange(source.shape[1]) >= lengths[:, None]
    other = source.masked_fill(padding, 7)
    assert not torch.equal(other, source)
    assert torch.equal(model(other, lengths, target).logits, model(source, lengths, target).logits)


def test_the_future_changes_nothing_before_it(small: Any, model: RecurrentTranslator) -> None:
    source, lengths = small.padded(small.sources)
    target = torch.tensor([[1, 6, 4, 9, 3]] * len(small.sources))
    before = model(source, lengths, target).logits
    for changed in range(1, target.shape[1]):
        other = target.clone()
        other[:, changed] = 5
        after = model(source, lengths, other).logits
        assert torch.equal(after[:, :changed], before[:, :changed])
        assert (after[:, changed:] - before[:, changed:]).abs().amax(-1).min() > 1e-6  # all after it do change


def test_every_word_of_the_source_is_seen(small: Any, model: RecurrentTranslator) -> None:
    source, lengths = small.padded(small.sources)
    target, _ = small.padded(small.targets)
    before = model(source, lengths, target).logits
    for place in range(source.shape[1]):
        other = source.clone()
        other[:, place] = 6 + (source[:, place] == 6).long()
        real = place < lengths
        assert (model(other, lengths, target).logits - before)[real].abs().amax((1, 2)).min() > 1e-9


def test_a_source_of_one_word_will_do(small: Any, model: RecurrentTranslator) -> None:
    output = model(*small.padded([(2,)]), torch.tensor([[1, 5, 4]]), need_weights=True)
    assert output.logits.isfinite().all()
    torch.testing.assert_close(output.weights.cross[0], torch.ones(1, 1, 3, 1).double(), **EXACT)


# ------------------------------------------------------------------------------------------ weights


def test_weights_can_be_seen_and_change_nothing(small: Any, model: RecurrentTranslator) -> None:
    (source, lengths), (target, _) = small.padded(small.sources, 1), small.padded(small.targets)
    plain, seen = model(source, lengths, target), model(source, lengths, target, need_weights=True)
    assert plain.weights is None
    torch.testing.assert_close(seen.logits, plain.logits, **EXACT)
    (cross,) = seen.weights.cross
    assert cross.shape == (len(source), 1, target.shape[1], source.shape[1])
    assert seen.weights.decoder == ()
    padding = torch.arange(source.shape[1]) >= lengths[:, None]
    assert not cross.masked_select(padding[:, None, None]).any()
    torch.testing.assert_close(cross.sum(-1), torch.ones(cross.shape[:-1]).double(), **EXACT)
    for own in seen.weights.encoder:
        trees = model.config.encoder_attention == "tree"
        assert own.shape == (len(source), 1, source.shape[1], source.shape[1] + trees)
        sums = own.sum(-1)[:, 0]
        torch.testing.assert_close(sums, (~padding).double(), **EXACT)


def test_weights_of_choices_are_one_hot_and_drawn_in_training_only(small: Any) -> None:
    model = network(alignment="sample")
    batch = (*small.padded(small.sources), small.padded(small.targets)[0])

    def chosen(seed: int) -> Tensor:
        torch.manual_seed(seed)
        (weights,) = model(*batch, need_weights=True).weights.cross
        assert set(weights.unique().tolist()) == {0.0, 1.0}
        return weights

    assert torch.equal(chosen(1), chosen(2))
    before = torch.get_rng_state()
    model(*batch)
    assert torch.equal(torch.get_rng_state(), before)
    model.train()
    assert torch.equal(chosen(1), chosen(1))
    assert not torch.equal(chosen(1), chosen(2))


@pytest.mark.parametrize("wiring", WIRINGS)
def test_choices_change_what_asks_later_where_the_settings_say_so(small: Any, wiring: str) -> None:
    model = network(alignment="sample", **WIRINGS[wiring]).train()
    words = model.target_words(small.padded(small.targets)[0])
    source, lengths = small.padded(small.sources)
    queries = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        state = model.decoder.start(model.encoder(source, lengths), lengths)
        queries.append(model.decoder.whole(words, state).queries)
    assert torch.equal(queries[0][:, 0], queries[1][:, 0])
    assert torch.equal(*queries) is not model.config.feeds_context


# ------------------------------------------------------------------------------------------ the loss


def some_pairs() -> Batch:
    sources, targets = [[5, 3, 7], [4], [9, 9]], [[6], [8, 3, 10, 4], [5, 5]]
    store = ParallelStore.from_lists(sources, targets)
    return collate(store, torch.arange(3).numpy(), pad_id=0, bos_id=1, eos_id=2)


def loss_of(model: RecurrentTranslator, smoothing: float = 0.1, seed: int = 0) -> Any:
    batch = some_pairs()
    torch.manual_seed(seed)
    return model.loss(batch.source, batch.source_lengths, batch.target_input, batch.target_output, smoothing=smoothing)


def test_hidden_is_the_state_before_the_output_projection(small: Any, model: RecurrentTranslator) -> None:
    assert isinstance(model, Network)
    assert model.output.bias is None
    (source, lengths), (target, _) = small.padded(small.sources), small.padded(small.targets)
    hidden = model.hidden(source, lengths, target)
    torch.testing.assert_close(model.output(hidden), model(source, lengths, target).logits, **EXACT)


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_the_loss_is_that_of_the_logits_token_by_token(model: RecurrentTranslator, smoothing: float) -> None:
    """In evaluation, sampled positions are the arg-max, and there is no REINFORCE term."""
    batch, loss = some_pairs(), loss_of(model, smoothing)
    logits = model(batch.source, batch.source_lengths, batch.target_input).logits
    total, nll, correct = 0.0, 0.0, 0
    for row, wanted in zip(logits.log_softmax(-1), batch.target_output, strict=True):
        for log_probabilities, token in zip(row, wanted, strict=True):
            if token != 0:
                one = -log_probabilities[token].item()
                nll, total = nll + one, total + (1 - smoothing) * one - smoothing * log_probabilities.mean().item()
                correct += bool(log_probabilities.argmax() == token)
    assert [loss.total.item(), loss.nll.item()] == pytest.approx([total, nll], rel=1e-9)
    assert loss.correct.item() == correct


@pytest.mark.parametrize("baseline", ["none", "moving"])
@pytest.mark.parametrize("wiring", WIRINGS)
def test_drawn_positions_are_reinforced(wiring: str, baseline: Any) -> None:
    """The gradient of CE - sum_t (R_t - B_t) log p(z_t) - w H_t, each term from the choices of the same seed."""
    moving, weight = baseline == "moving", 0.3
    level = -2.0 if moving else 0.0
    options = {"alignment": "sample", "baseline": baseline, "entropy_weight": weight}
    model, batch = network(**WIRINGS[wiring], **options).train(), some_pairs()
    assert model.baseline is not None
    model.baseline.fill_(-2.0)
    loss = loss_of(model, seed=5)

    torch.manual_seed(5)
    encoded = model.encoder(batch.source, batch.source_lengths)
    state = model.decoder.start(encoded, batch.source_lengths)
    decoded = model.decoder.whole(model.target_words(batch.target_input), state, need_weights=True)
    real = batch.target_output != 0
    value, rewards = torch.zeros(()).double(), []
    logits = model.output(decoded.states)
    for row in range(len(real)):
        count = int(real[row].sum())
        losses = nn.functional.cross_entropy(
            logits[row, :count], batch.target_output[row, :count], reduction="none", label_smoothing=0.1
        )
        query, key = decoded.queries[row, None, :count], encoded.states[row, None, : batch.source_lengths[row]]
        log_p = model.decoder.attention.score(query, key)[0].log_softmax(-1)
        for t in range(count):
            chosen = int(decoded.weights[row, t].argmax())
            later = losses.detach()[t:] if model.config.feeds_context else losses.detach()[t : t + 1]
            advantage = -later.sum() - level * len(later)
            entropy = -(log_p[t].exp() * log_p[t]).sum()
            value = value + losses[t] - advantage * log_p[t, chosen] - weight * entropy
        rewards += (-losses).tolist()
    parameters = [p for p in model.parameters() if p.requires_grad]
    found, expected = (torch.autograd.grad(total, parameters) for total in (loss.total, value))
    for mine, other in zip(found, expected, strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-8, atol=1e-10)
    plain = token_loss(decoded.states, model.output, batch.target_output, 0, 0.1)
    assert [part.item() for part in loss[:3]] == pytest.approx([part.item() for part in plain[:3]])
    assert model.baseline.item() == -2.0  # until the update is applied
    model.follow_loss(-sum(rewards) / len(rewards))
    assert model.baseline.item() == pytest.approx(0.9 * level + 0.1 * sum(rewards) / len(rewards) if moving else -2)


def test_the_moving_baseline_is_kept_with_the_parameters_and_trained_by_none() -> None:
    model = network(alignment="sample").train()
    assert model.baseline is not None
    assert dict(model.named_parameters())["baseline"] is model.baseline
    optimizer, average = build_optimizer(model, TrainingConfig(updates=1)), Average(model, 0.9)
    assert all(model.baseline is not p for group in optimizer.param_groups for p in group["params"])
    loss_of(model).total.backward()
    optimizer.step()
    assert model.baseline.item() == 0.0
    model.follow_loss(3.0)
    average.update(1)
    moved = model.baseline.item()
    assert moved == pytest.approx(-0.3)
    assert average.model.baseline is not None
    assert moved < average.model.baseline.item() < 0
    loss_of(model.eval())
    assert model.baseline.item() == moved
    assert network(alignment="softmax").baseline is None
    model.load_state_dict(network(alignment="sample", baseline="none").state_dict())  # as fine-tuning may set it anew


# ------------------------------------------------------------------------------------------ training


@pytest.mark.parametrize("alignment", ["softmax", "sample", "straight_through", "gumbel", "segmentation"])
@pytest.mark.parametrize("score", ["additive", "dot", "scaled_dot", "bilinear", "low_rank"])
@pytest.mark.parametrize("wiring", WIRINGS)
def test_every_parameter_is_trained(wiring: str, score: str, alignment: str) -> None:
    """One update with every decoder, score and alignment, half of them in each precision."""
    changes = {**WIRINGS[wiring], "score": score, "alignment": alignment, "dropout": 0.1, "tie_embeddings": False}
    changes["encoder_attention"] = ("none", "softmax", "tree")[len(score) % 3]
    model = network(noise=0.0, **changes).float().train()
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=bool((len(score) + len(alignment)) % 2)):
        loss = loss_of(model)
    loss.total.backward()
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            assert parameter.grad is not None, name
            assert parameter.grad.isfinite().all(), name
            assert parameter.grad.any(), name


@pytest.mark.parametrize("name", NETWORKS)
def test_in_half_precision_the_loss_is_nearly_the_same(name: str) -> None:
    model = network(noise=0.1, **{**NETWORKS[name], "alignment": "softmax", "width": 32}).float().train()
    exact = loss_of(model).total
    with torch.autocast("cpu", dtype=torch.bfloat16):
        rounded = loss_of(model).total
    assert rounded.dtype == torch.float32
    assert rounded.item() == pytest.approx(exact.item(), rel=0.02)
    assert rounded.item() != exact.item()


def test_dropout_acts_in_training_only_and_from_the_current_generator(small: Any) -> None:
    model = network(dropout=0.3, decoder_layers=2, encoder_layers=2)
    batch = (*small.padded(small.sources), small.padded(small.targets)[0])
    quiet = network(dropout=0.0, decoder_layers=2, encoder_layers=2)(*batch).logits
    assert torch.equal(model(*batch).logits, quiet)
    model.train()
    results = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        results.append(model(*batch).logits)
    assert torch.equal(results[0], results[1])
    assert not torch.equal(results[0], results[2])
    assert not torch.equal(results[0], quiet)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-10), (torch.float32, 1e-5)])
@pytest.mark.parametrize("wiring", WIRINGS)
def test_pieces_of_a_batch_add_up_to_it(wiring: str, dtype: torch.dtype, tolerance: float) -> None:
    """Rows draw what they draw in the whole batch, however it is split (contract 9)."""
    deep = {"encoder_layers": 3, "decoder_layers": 3, "dropout": 0.4}
    model, batch = network(**{**WIRINGS[wiring], **deep}).to(dtype).train(), some_pairs()

    def loss(start: int, stop: int) -> float:
        with random.step(5, first_row=start):
            return sequence_loss(model, batch.part(start, stop), 0.1).total.item()

    assert loss(0, 1) + loss(1, 3) == pytest.approx(loss(0, 3), rel=tolerance)


@pytest.mark.parametrize("remake", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
def test_a_copy_is_a_model_of_its_own(model: RecurrentTranslator, remake: Any) -> None:
    other = remake(model)
    assert loss_of(other).total.item() == loss_of(model).total.item()
    assert (other.output.weight is other.target_words.table.weight) is model.config.tie_output
    with torch.no_grad():
        for parameter in other.parameters():
            parameter += 0.1
    assert loss_of(other).total.item() != loss_of(model).total.item()


# ------------------------------------------------------------------------------------------ first values


def built(seed: int = 0, **changes: Any) -> RecurrentTranslator:
    """A new model, unchanged."""
    torch.manual_seed(seed)
    return RecurrentTranslator(RecurrentConfig(**(SIZES | changes)))


@pytest.mark.parametrize("cell", ["gru", "lstm"])
def test_recurrent_matrices_are_orthogonal_and_others_xavier_gate_by_gate(cell: Any) -> None:
    model = built(width=64, cell=cell, decoder_layers=2)
    layers = [module for module in model.modules() if isinstance(module, (nn.GRU, nn.LSTM))]
    assert len(layers) == 3
    for layer in layers:
        size = layer.hidden_size
        for name, parameter in layer.named_parameters():
            gates = list(parameter.detach().split(size))  # type: ignore[no-untyped-call]
            assert len(gates) == {"gru": 3, "lstm": 4}[cell]
            if "weight_hh" in name:
                for gate in gates:
                    torch.testing.assert_close(gate @ gate.t(), torch.eye(size), atol=1e-5, rtol=0)
            elif "weight_ih" in name:
                for gate in gates:
                    bound = (6 / sum(gate.shape)) ** 0.5
                    assert 0.95 * bound < gate.abs().max() <= bound
            else:
                forgets = cell == "lstm" and "bias_ih" in name
                assert [gate.unique().tolist() for gate in gates] == [
                    [float(forgets and index == 1)] for index in range(len(gates))
                ]


def test_one_seed_one_model() -> None:
    one, same, other = built(3), built(3), built(4)
    for name, value in one.state_dict().items():
        assert torch.equal(value, same.state_dict()[name]), name
        assert torch.equal(value, other.state_dict()[name]) == (value.dim() == 1 and "energy" not in name), name


@pytest.mark.parametrize("tie_output", [True, False])
@pytest.mark.parametrize("tie_embeddings", [True, False])
@pytest.mark.parametrize("copied", [False, True])
def test_the_padding_row_is_zero_and_stays_zero(tie_embeddings: bool, tie_output: bool, copied: bool) -> None:
    model = built(tie_embeddings=tie_embeddings, tie_output=tie_output)
    if copied:
        model = copy.deepcopy(model)
    tables = [words.table.weight for words in (model.encoder.words, model.target_words)]
    assert (tables[0] is tables[1]) is tie_embeddings
    assert (tables[1] is model.output.weight) is tie_output
    before = [table.detach().clone() for table in tables]
    settings = TrainingConfig(updates=3)
    optimizer = build_optimizer(model, settings)
    for step in range(1, settings.updates + 1):
        train_step(model, optimizer, [some_pairs(), some_pairs()], settings, step, 1e-2)
    for table, was in zip(tables, before, strict=True):
        assert not table[0].any()
        assert not torch.equal(table[5], was[5])  # the others are trained
