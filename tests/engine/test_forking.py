"""A child that os.fork() made after a search or an update searches and trains with one thread, and does not hang."""

from __future__ import annotations

import sys

import processes
import pytest

from multihead.kernels.native import load_kernels

PROGRAM = """
import multiprocessing, os, signal, sys
import torch
from multihead.decoding.search import Search, Symbols
from multihead.decoding.task import SearchTask
from multihead.engine.search import Engine
from multihead.errors import ConfigurationError
from multihead.kernels.pointwise import add_norm
from multihead.models.config import TransformerConfig
from multihead.models.transformer import Transformer

torch.manual_seed(1)
torch.set_num_threads(2)
sizes = dict(width=32, heads=2, inner=64, encoder_layers=1, decoder_layers=1)
model = Transformer(TransformerConfig(source_vocab=50, target_vocab=50, **sizes)).eval()
engine, task = Engine(model), SearchTask(Symbols(2, 3, (0, 1, 2)), max_lengths=6)
sources = [[4 + n % 40, 5, 3] for n in range(30)]

def search():
    return engine.search(sources, task, Search(beam=2), workers=2)

def update():
    x = torch.randn(64, 512, generator=torch.Generator().manual_seed(1)).requires_grad_()
    gain = torch.ones(512)
    torch.autograd.backward(add_norm(x, x * 2, gain, gain, 1e-5, 0.0).normed.sum())
    return float((torch.ones(512, 512) @ x.grad.t()).sum()), bool((x.grad == x.grad).all())

class Sentences(torch.utils.data.Dataset):
    def __len__(self):
        return 8
    def __getitem__(self, number):
        return torch.tensor(engine.search([sources[number]], task, Search(beam=2))[0][0].tokens[:2])

found, trained = search(), update()
with engine.open(task, Search(beam=2), 6, 2) as running:
    running.add(0, sources[0], 6)
    child = os.fork()
    if not child:
        signal.alarm(60)
        status = 1
        try:
            assert torch.get_num_threads() == 1
            assert search() == found
            assert update()[1]
            assert float((torch.ones(600, 600) @ torch.ones(600, 600)).sum()) == 600.0 ** 3
            try:
                running.add(1, sources[1], 6)
            except ConfigurationError as error:
                status = 0 if "before os.fork()" in str(error) else 3
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0, "the child"
    (result,) = [own for _, own in running.run(10.0)]
    assert result == found[0]
assert search() == found and torch.get_num_threads() == 2

signal.alarm(100)
with multiprocessing.get_context("fork").Pool(2) as pool:
    assert pool.starmap(search, [()] * 3) == [found] * 3
rows = torch.utils.data.DataLoader(Sentences(), num_workers=2, multiprocessing_context="fork")
assert [tuple(row[0].tolist()) for row in rows] == [own[0].tokens[:2] for own in found[:8]]
"""


def test_a_forked_child_searches_and_trains_with_one_thread() -> None:
    if load_kernels().library is None:
        pytest.skip(load_kernels().reason)
    done = processes.run(
        [sys.executable, "-W", "ignore", "-c", PROGRAM], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
