"""Runs compiled code on random shapes, and makes its allocations fail.

Each configuration is drawn with its number as the seed. Its result is compared with the plain form (kernels) or with
the same search on another number of threads (engine). ``--sanitize`` compiles both libraries with the address
sanitizer, the undefined-behavior sanitizer and checked containers, and counts their allocations. In every second
configuration the n-th allocation fails, alone or with all that follow. Compiled code must then report the failure and
release everything. A report of a sanitizer ends the program with a status other than 0.

    python tools/try_native.py --count 200
    python tools/try_native.py --count 10000 --sanitize

`tests/engine/test_native_hostile.py` runs both.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import os
import random
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from multihead.attention.backends.short import packed_short_attention, short_attention, takes
from multihead.attention.biases import ALiBi
from multihead.attention.masks import Causal, EndToEnd, Padding
from multihead.decoding.search import MEANS, Search, Symbols
from multihead.decoding.shortlist import Shortlist
from multihead.decoding.task import SearchTask
from multihead.engine.drafting import DraftedSearch
from multihead.engine.ensemble import EngineEnsemble
from multihead.engine.forcing import force
from multihead.engine.search import CompiledSearch, Engine
from multihead.engine.weights import DECODING, PRECISIONS
from multihead.errors import MultiheadError, SurroundingsError
from multihead.kernels import native, pointwise
from multihead.kernels.linear import linear_cross_entropy
from multihead.kernels.native import KERNELS, levels
from multihead.kernels.random import dropout, packed_at, step
from multihead.kernels.soft_targets import SoftTargets
from multihead.models.config import TransformerConfig
from multihead.models.transformer import Transformer

FLAGS = (
    *("-std=c++17", "-O1", "-g", "-march=native", "-fno-math-errno", "-fno-trapping-math", "-ffp-contract=fast"),
    *("-fPIC", "-fopenmp", "-shared", "-Wl,--as-needed", "-Wl,-Bsymbolic-functions", "-D_GLIBCXX_ASSERTIONS"),
    *("-fsanitize=address,undefined", "-fno-sanitize-recover=undefined"),
)

HEADERS = (
    "algorithm atomic chrono cmath cstdint cstdlib cstring deque exception functional limits memory mutex new vector"
)

COUNTED = """
#ifdef __x86_64__
#include <immintrin.h>
#endif
static std::atomic<long> before_failure{-1}, lasting{0}, living{0};
static void *allocated(void *(*get)(size_t), size_t bytes) {
    if (before_failure >= 0 && before_failure.fetch_sub(1) == 0) {
        if (lasting) before_failure = 0;
        return nullptr;
    }
    living++;
    return get(bytes);
}
static void released(void *at) {
    if (at) living--;
    free(at);
}
static void *plain(size_t bytes) { return malloc(bytes ? bytes : 1); }
static void *aligned(size_t bytes) { return aligned_alloc(64, bytes); }
static void *thrown(void *at) {
    if (!at) throw std::bad_alloc();
    return at;
}
void *operator new(size_t bytes) { return thrown(allocated(plain, bytes)); }
void *operator new[](size_t bytes) { return thrown(allocated(plain, bytes)); }
void *operator new(size_t bytes, const std::nothrow_t &) noexcept { return allocated(plain, bytes); }
void *operator new[](size_t bytes, const std::nothrow_t &) noexcept { return allocated(plain, bytes); }
void operator delete(void *at) noexcept { released(at); }
void operator delete[](void *at) noexcept { released(at); }
void operator delete(void *at, size_t) noexcept { released(at); }
void operator delete[](void *at, size_t) noexcept { released(at); }
void operator delete(void *at, const std::nothrow_t &) noexcept { released(at); }
void operator delete[](void *at, const std::nothrow_t &) noexcept { released(at); }
extern "C" void fail_after(long count, long all) { lasting = all, before_failure = count; }
extern "C" long living_allocations() { return living; }
#define aligned_alloc(alignment, bytes) allocated(aligned, bytes)
#define free released
"""
"""Inserted before a library's source: counts its allocations and can make them fail."""


class Draw(random.Random):
    """The random numbers of a configuration."""

    def size(self, most: int) -> int:
        """A random size: often small, sometimes 0 or near a multiple of 16."""
        around = 16 * self.randint(0, most // 16) + self.randint(-1, 1)
        return self.choice([0, 1, 2, 3, self.randint(0, most), min(max(around, 0), most)])

    def some(self, most: int) -> int:
        return max(1, self.size(most))

    def tensor(self, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        generator = torch.Generator().manual_seed(self.getrandbits(40))
        return torch.randn(shape, generator=generator).to(dtype).requires_grad_()

    def dtype(self) -> torch.dtype:
        return self.choice([torch.float32, torch.bfloat16])


Results = list[Tensor | None]
Case = Callable[[], Results]
"""Computes a configuration; called with and without compiled kernels."""


def gradients(outputs: list[Tensor], inputs: list[Tensor]) -> Results:
    """The outputs, and the gradients of a sum that weights each of their elements differently."""
    total = sum((o.float() * torch.linspace(-1, 1, o.numel()).view(o.shape)).sum() for o in outputs)
    assert isinstance(total, Tensor)
    return [*outputs, *torch.autograd.grad(total, inputs, allow_unused=True)]


def dropout_case(draw: Draw) -> Case:
    shape = tuple(draw.size(40) for _ in range(draw.randint(1, 4)))
    x, p, seed = draw.tensor(*shape, dtype=draw.dtype()), draw.random(), draw.getrandbits(40)
    first, stride = draw.choice([0, 3, 2**40]), draw.choice([1, 2, 2**33])

    def run() -> Results:
        with step(seed, first_row=first, row_stride=stride):
            return gradients([dropout(x, p)], [x])

    return run


def packed_dropout_case(draw: Draw) -> Case:
    tokens, seed = draw.size(50), draw.getrandbits(40)
    x = draw.tensor(1, tokens, draw.some(40))
    rows, positions = torch.arange(tokens) // 3, torch.arange(tokens) % 3

    def run() -> Results:
        with step(seed), packed_at(rows, positions):
            return gradients([dropout(x, 0.4)], [x])

    return run


def norm_case(draw: Draw) -> Case:
    width = draw.some(130)
    shape = (*(draw.size(40) for _ in range(draw.randint(1, 2))), width)
    x, branch = draw.tensor(*shape), draw.tensor(*shape, dtype=draw.dtype())
    gain, shift = draw.tensor(width), draw.choice([draw.tensor(width), None])
    p, seed, kind = draw.choice([0.0, 0.3]), draw.getrandbits(40), draw.randrange(4)
    dtype = draw.dtype()
    vectors = [gain] if shift is None else [gain, shift]

    def run() -> Results:
        with step(seed):
            if kind == 0:
                return gradients([pointwise.add(x, branch, p)], [x, branch])
            if kind == 1:
                return gradients([pointwise.layer_norm(x, gain, shift, 1e-5, dtype=dtype)], [x, *vectors])
            both = pointwise.add_norm(x, branch, gain, shift, 1e-5, p, dtype=dtype)
            return gradients([both.normed] if kind == 2 else list(both), [x, branch, *vectors])

    return run


def activation_case(draw: Draw) -> Case:
    width = draw.some(130)
    x, dtype = draw.tensor(draw.size(60), width, dtype=draw.dtype()), draw.choice(["relu", "gelu"])
    bias, p, seed = draw.choice([draw.tensor(width), None]), draw.choice([0.0, 0.5]), draw.getrandbits(40)

    def run() -> Results:
        with step(seed):
            y = pointwise.activation_dropout(x, bias, dtype, p)
        return gradients([y], [x] if bias is None else [x, bias])

    return run


def loss_case(draw: Draw) -> Case:
    rows, width, vocabulary = draw.size(60), draw.some(20), draw.some(90)
    hidden, weight = draw.tensor(rows, width), draw.tensor(vocabulary, width)
    target = torch.tensor([draw.randrange(vocabulary) for _ in range(rows)], dtype=torch.int64)
    smoothing, bias = draw.choice([0.0, 0.1]), draw.choice([draw.tensor(vocabulary), None])
    soft = None
    if draw.random() < 0.5:
        best = torch.rand(rows, vocabulary).softmax(-1).topk(draw.randint(1, vocabulary))
        soft = SoftTargets(best.indices, best.values, draw.random())

    def run() -> Results:
        loss = linear_cross_entropy(hidden, weight, target, smoothing, bias, soft)
        return [loss.nll, *gradients([loss.total], [hidden, weight])]

    return run


def attention_case(draw: Draw) -> Case:
    batch, heads, width = draw.some(5), draw.some(4), draw.some(70)
    queries, keys = draw.some(40), draw.some(40)
    dtype, causal, packed = draw.dtype(), draw.random() < 0.3, draw.random() < 0.4
    if packed:
        lengths = [draw.size(20) for _ in range(batch)]
        others = lengths if causal else [draw.size(20) for _ in range(batch)]
        batch, queries, keys = 1, sum(lengths) + draw.some(3), sum(others) + draw.some(3)
        keys = queries if causal else keys  # with other lengths, a causal mask aligns the ends of rows
        mask: Any = EndToEnd(torch.tensor(lengths), queries, torch.tensor(others), keys)
    else:
        keys = queries if causal else keys
        limits = [torch.tensor([draw.randint(0, most) for _ in range(batch)]) for most in (keys, queries)]
        mask = Padding(limits[0], limits[1])
    equal = queries == keys and (not packed or lengths == others)
    bias = ALiBi(heads, symmetric=draw.random() < 0.5) if equal and draw.random() < 0.5 else None
    shapes = [(batch, length, heads, width) for length in (queries, keys, keys)]
    q, k, v = (draw.tensor(*shape, dtype=dtype) for shape in shapes)

    def run() -> Results:
        inputs = [x.transpose(1, 2) for x in (q, k, v)]
        longest = mask.row.longest if packed else None
        if not takes(*inputs, longest):
            whole = mask & Causal() if causal else mask
            full = [x.float() for x in inputs]
            sees = whole.dense(queries, keys).expand(batch, 1, queries, keys)
            scores = (full[0] @ full[1].transpose(-1, -2)) / width**0.5
            scores = scores if bias is None else scores + bias.dense(queries, keys)
            weights = scores.masked_fill(~sees, -torch.inf).softmax(-1).nan_to_num(0.0)
            output = (weights @ full[2]).to(dtype)
        elif packed:
            output = packed_short_attention(*inputs, mask.row, causal=causal, bias=bias)
        else:
            limited = {"key_lengths": limits[0], "query_lengths": limits[1]}
            output = short_attention(*inputs, **limited, causal=causal, bias=bias)
        return gradients([output], [q, k, v])

    return run


KERNEL_CASES = (dropout_case, packed_dropout_case, norm_case, activation_case, loss_case, attention_case)


def compare(case: Case, name: str) -> None:
    """Check that the results with and without compiled kernels are equal up to rounding."""
    before = native._loaded["kernels"]
    found = case()
    native._loaded["kernels"] = native.Native(None, "plain kernels")
    try:
        expected = case()
    finally:
        native._loaded["kernels"] = before
    for one, other in zip(found, expected, strict=True):
        assert (one is None) == (other is None), name
        if one is not None and other is not None:
            rough = torch.bfloat16 in (tensor.dtype for tensor in (*found, *expected) if tensor is not None)
            bound = 0.06 if rough else 2e-4
            torch.testing.assert_close(one.float(), other.float(), rtol=bound, atol=bound * 4, equal_nan=True, msg=name)


class EngineCase:
    """A search with one or several random models, and a random precision, batch and task."""

    def __init__(self, draw: Draw) -> None:
        source, target = draw.randint(5, 150), draw.randint(5, 150)
        self.models = [self.model(draw, source, target) for _ in range(draw.choice([1, 1, 2, 3]))]
        self.mean, self.weights = draw.choice(MEANS), [draw.random() + 1e-9 for _ in self.models]
        self.precision = draw.choice(PRECISIONS)
        beam = draw.choice([1, 2, 3, 5, 17])
        stopping = draw.choice(["exact", "ahead", "patience"])
        self.search = Search(beam=beam, stopping=stopping, alpha=draw.choice([0.0, 1.0]))
        self.limit = draw.randint(2, 24)
        forced = tuple(draw.randrange(4, target) for _ in range(draw.choice([0, 0, 1, 2])))
        symbols = Symbols(2, 3, draw.choice([(), (0, 1, 2)]), forced)
        self.task = SearchTask(symbols, n_best=draw.randint(1, beam), scores=draw.random() < 0.5)
        count = draw.choice([0, 1, 2, 9, 30])
        self.sources = [[draw.randrange(source) for _ in range(draw.some(30))] for _ in range(count)]
        self.minimums = [draw.randrange(self.limit) for _ in self.sources]
        self.shortlist = None
        if draw.random() < 0.3:
            always = [3, *(draw.randrange(target) for _ in range(draw.randint(0, 20)))]
            each = [[draw.randrange(target) for _ in range(draw.choice([0, 1, 9]))] for _ in range(source)]
            starts = [sum(map(len, each[:word])) for word in range(source + 1)]
            self.shortlist = Shortlist(always, starts, [symbol for row in each for symbol in row])
        self.target, self.workers, self.dropped = target, draw.randint(2, 3), draw.randrange(40)
        self.draft = self.model(draw, source, target) if beam == 1 and draw.random() < 0.8 else None
        self.guesses = draw.randint(1, 9), draw.choice([0.0, 0.01, 0.3])
        self.read: list[list[int]] = []
        self.written: list[list[int]] = []
        for row in self.sources:
            whole = [draw.randrange(target) for _ in range(draw.some(30))]
            for _ in range(draw.choice([0, 1, 4])):
                self.read.append(row)
                self.written.append([*whole[: draw.randint(0, len(whole))], draw.randrange(target)])

    @staticmethod
    def model(draw: Draw, source: int, target: int) -> Transformer:
        """A random model with these vocabularies."""
        heads = draw.randint(1, 4)
        settings: dict[str, Any] = {
            "width": heads * 2 * draw.randint(1, 20), "heads": heads, "inner": draw.some(70),
            "encoder_layers": draw.randint(1, 2), "decoder_layers": draw.randint(1, 2),
            "source_vocab": source, "target_vocab": target, "source_end": draw.random() < 0.8,
            "kv_heads": draw.choice([1, heads]), "norm": draw.choice(["pre", "post"]),
            "feed_forward": draw.choice(["relu", "gelu", "silu", "reglu", "geglu", "swiglu"]),
            "output_bias": draw.random() < 0.5, "tie_output": False, "tie_embeddings": False,
            "embedding_norm": draw.random() < 0.3, "attention_bias": draw.random() < 0.5,
        }  # fmt: skip
        if draw.random() < 0.4:
            settings |= {"key_dim": draw.choice([1, 5, 16]), "value_dim": draw.choice([1, 7, 16])}
        if draw.random() < 0.3:
            settings |= {"positions": "learned", "max_positions": draw.randint(1, 9)}
        elif draw.random() < 0.4:
            settings["positions"] = draw.choice(["alibi", "none", "shaw"])
        if draw.random() < 0.4:
            settings |= {"query_key_norm": draw.choice(["layer", "rms"]), "encoder_window": draw.some(9)}
        if settings["norm"] == "pre" and draw.random() < 0.3:
            settings["block"] = "parallel"
        torch.manual_seed(draw.getrandbits(40))
        return Transformer(TransformerConfig(**settings)).eval()

    def run(self, workers: int, *, drafted: bool = False) -> tuple[dict[int, Any], list[list[float]]]:
        """The results for each sentence, optionally with a draft model, and the log-probabilities of random targets.

        A sentence is dropped while the search runs.
        """
        engines = [Engine(model, self.precision, self.shortlist) for model in self.models]
        found: dict[int, Any] = {}
        engine: CompiledSearch = engines[0]
        engines[0].packed.library.decoding_large(0)  # a second thread helps with the last sentence, even if it is short
        if len(engines) > 1:
            engine = EngineEnsemble(engines, self.mean, self.weights)
        if drafted and self.draft is not None:
            engine = DraftedSearch(engine, Engine(self.draft, self.precision), *self.guesses)
        with engine.open(self.task, self.search, self.limit, workers) as running:
            for number, source in enumerate(self.sources):
                running.add(number, source, self.limit, self.minimums[number])
            seconds = 0.0
            while running.left:
                with contextlib.suppress(_NoContinuation):
                    found.update(self._read(running, seconds))
                running.leading(0)
                running.drop(self.dropped)
                seconds = 1.0
        found.pop(self.dropped, None)
        return found, force(engines[0], self.read, self.written, 2, workers=workers)

    @staticmethod
    def _read(running: Any, seconds: float) -> Iterator[tuple[int, Any]]:
        try:
            yield from running.run(seconds)
        except SurroundingsError:
            raise
        except MultiheadError as error:  # no symbol is permitted: few symbols and a minimum length
            raise _NoContinuation from error

    def check(self) -> None:
        found, values = self.run(1)
        for hypotheses in found.values():
            assert 1 <= len(hypotheses) <= self.task.n_best
            for one in hypotheses:
                assert len(one.tokens) <= self.limit
                assert all(0 <= symbol < self.target for symbol in one.tokens)
        again, others = self.run(self.workers, drafted=True)
        assert values == others
        for number in found.keys() & again.keys():
            assert repr(found[number]) == repr(again[number])  # a score can be NaN


class _NoContinuation(Exception):  # noqa: N818 - an expected outcome, not an error
    pass


class Libraries:
    """The compiled libraries of this process; sanitized ones if a folder is given."""

    def __init__(self, folder: Path | None) -> None:
        self.counted: list[ctypes.CDLL] = []
        for library in (KERNELS, DECODING):
            if folder is None:
                loaded = native.load_library(library).library
                assert loaded is not None
                continue
            loaded = ctypes.CDLL(str(folder / f"{library.name}.so"))
            native._declare(loaded, library)
            native._use_threads(loaded, native._loaded_openmp())
            native._loaded[library.name] = native.Native(loaded, "sanitized")
            loaded.fail_after.argtypes = [ctypes.c_long, ctypes.c_long]
            loaded.fail_after.restype, loaded.living_allocations.restype = None, ctypes.c_long
            self.counted.append(loaded)

    def living(self) -> list[int]:
        return [library.living_allocations() for library in self.counted]

    def fail_after(self, count: int, lasting: bool) -> None:
        for library in self.counted:
            library.fail_after(count, int(lasting))


def try_one(number: int, libraries: Libraries, tally: Counter[str]) -> None:
    """Try the configuration with this number."""
    draw = Draw(number)
    engine = number % 4 == 3
    before = libraries.living()
    if engine:
        search, name = EngineCase(draw), "engine"
        work: Callable[[], object] = search.check
    else:
        make = draw.choice(KERNEL_CASES)
        case, name = make(draw), make.__name__
        work = lambda: compare(case, name)  # noqa: E731
    torch.set_num_threads(draw.choice([1, 1, 2, 3]))
    fails = bool(libraries.counted) and draw.random() < 0.5
    try:
        if fails:
            most = draw.choice([3, 30, 300, 3000]) if engine else 20
            libraries.fail_after(draw.randrange(most), draw.random() < 0.5)
            if engine:
                search.run(search.workers)
            else:
                case()
        else:
            work()
        tally[name] += 1
    except (MemoryError, SurroundingsError):
        if not fails:  # no allocation was made to fail
            raise
        tally[f"{name}, refused without memory"] += 1
    finally:
        libraries.fail_after(-1, False)
    del work
    if engine:
        del search
    assert libraries.living() == before, f"configuration {number}: {name} leaks"


def compile_sanitized(folder: Path) -> None:
    for library in (KERNELS, DECODING):
        source = folder / f"{library.name}.cpp"
        headers = "".join(f"#include <{name}>\n" for name in HEADERS.split())
        source.write_text(f'{headers}{COUNTED}#include "{library.sources[0]}"\n', encoding="utf-8")
        target = folder / f"{library.name}.so"
        command = [*(levels.compiler() or ["g++"]), *FLAGS]
        subprocess.run([*command, str(source), str(native.THREADS), "-o", str(target)], check=True)


def run_sanitized(count: int, first: int) -> int:
    """Compile the libraries, and run this program with the sanitizer's runtime loaded first."""
    compiler = levels.compiler() or ["g++"]
    runtimes = []
    for name in ("libasan.so", "libstdc++.so"):  # the library that it intercepts must be loaded too
        command = [*compiler, f"-print-file-name={name}"]
        runtimes.append(subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip())
    with tempfile.TemporaryDirectory() as folder:
        compile_sanitized(Path(folder))
        words = [sys.executable, __file__, "--count", str(count), "--first", str(first), "--libraries", folder]
        options = "detect_leaks=0:detect_odr_violation=0:allocator_may_return_null=1:abort_on_error=0"
        surroundings = {
            **os.environ,
            "LD_PRELOAD": ":".join(runtimes),
            "ASAN_OPTIONS": options,
            "UBSAN_OPTIONS": "print_stacktrace=1",
        }
        return subprocess.run(words, env=surroundings, check=False).returncode


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=200, help="number of configurations")
    parser.add_argument("--first", type=int, default=0, help="number of the first configuration")
    parser.add_argument("--sanitize", action="store_true", help="with sanitizers and failing allocations")
    parser.add_argument("--libraries", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.sanitize:
        return run_sanitized(given.count, given.first)
    libraries, tally = Libraries(given.libraries), Counter[str]()
    for number in range(given.first, given.first + given.count):
        try:
            try_one(number, libraries, tally)
        except Exception:
            print(f"configuration {number} failed; to repeat it: --first {number} --count 1", file=sys.stderr)
            raise
    for name, count in sorted(tally.items()):
        print(f"{count:6} {name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
