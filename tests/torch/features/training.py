"""Autograd, modules and optimizers."""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
from torch import nn

from tests.torch.features.harness import DEVICE, check, raises, same


# ---- autograd and modules ------------------------------------------------------------------------
@check
def autograd() -> None:
    a = torch.randn(3, 4)
    grads = []
    for device in ("cpu", DEVICE):
        x = a.clone().to(device).requires_grad_()
        seen = []
        x.register_hook(seen.append)
        y = (x.exp() * x).tanh()
        (g,) = torch.autograd.grad(y.sum(), x, create_graph=True)
        g.square().sum().backward()
        assert len(seen) == 2
        grads.append(x.grad)
    same(grads[1], grads[0])


@check
def view_and_in_place_autograd() -> None:
    grads = []
    for device in ("cpu", DEVICE):
        x = torch.arange(6.0).to(device).requires_grad_()
        y = x * 2
        y[1:3].mul_(3)
        y.view(2, 3)[1].add_(y[:3])
        y.sum().backward()
        grads.append(x.grad)
    same(grads[1], grads[0])


@check
def saved_tensor_version_check() -> None:
    x = torch.ones(3, device=DEVICE, requires_grad=True)
    y = x.exp()
    y.add_(1)
    raises(RuntimeError, "modified by an inplace operation", lambda: y.sum().backward())


@check
def custom_function_and_checkpoint() -> None:
    from torch.utils.checkpoint import checkpoint

    class Double(torch.autograd.Function):
        @staticmethod
        def forward(ctx: object, x: torch.Tensor) -> torch.Tensor:
            return x * 2

        @staticmethod
        def backward(ctx: object, g: torch.Tensor) -> torch.Tensor:
            return g * 2

    model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(), nn.Linear(4, 4)).to(DEVICE)
    x = torch.randn(2, 4, device=DEVICE, requires_grad=True)
    torch.manual_seed(0)
    Double.apply(model(x)).sum().backward()
    plain, x.grad = x.grad, None
    torch.manual_seed(0)
    Double.apply(checkpoint(model, x, use_reentrant=False)).sum().backward()
    same(x.grad, plain.cpu())


def model_matches_cpu(make: Callable[[], nn.Module], *inputs: torch.Tensor) -> None:
    torch.manual_seed(0)
    host = make()
    model = copy.deepcopy(host).to(DEVICE)
    expected, actual = host(*inputs), model(*(x.to(DEVICE) for x in inputs))
    if isinstance(expected, tuple):
        expected, actual = expected[0], actual[0]
    torch.testing.assert_close(actual.cpu(), expected, rtol=1e-4, atol=1e-5)
    expected.square().mean().backward()
    actual.square().mean().backward()
    for p, q in zip(host.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(q.grad.cpu(), p.grad, rtol=1e-3, atol=1e-5)


@check
def convolution_model() -> None:
    model_matches_cpu(
        lambda: nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1),
            nn.BatchNorm2d(8),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.ConvTranspose2d(8, 4, 2, stride=2, bias=False),
            nn.GroupNorm(2, 4),
            nn.Conv2d(4, 4, 3, groups=2),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(4, 2),
        ),
        torch.randn(2, 3, 8, 8),
    )
    raises(
        RuntimeError,
        "'input' on neuron:0 and 'weight' on cpu",
        lambda: nn.Conv1d(1, 1, 1)(torch.ones(1, 1, 3, device=DEVICE)),
    )


@check
def lstm_and_gru() -> None:
    for kind in (nn.LSTM, nn.GRU, nn.RNN):
        for bias in (True, False):
            model_matches_cpu(
                lambda kind=kind, bias=bias: kind(
                    5, 6, num_layers=2, bias=bias, bidirectional=True, batch_first=True
                ),
                torch.randn(3, 4, 5),
            )


@check
def rnn_cells_and_packed_sequences() -> None:
    for kind in (nn.LSTMCell, nn.GRUCell):
        model_matches_cpu(lambda kind=kind: kind(5, 6), torch.randn(3, 5))
    packed = nn.utils.rnn.pack_padded_sequence(
        torch.randn(3, 4, 5, device=DEVICE), torch.tensor([4, 3, 1]), batch_first=True
    )
    out, _ = nn.LSTM(5, 6, batch_first=True).to(DEVICE)(packed)
    padded, lengths = nn.utils.rnn.pad_packed_sequence(out, batch_first=True)
    assert padded.shape == (3, 4, 6) and lengths.tolist() == [4, 3, 1]


@check
def transformer_layer() -> None:
    model_matches_cpu(
        lambda: nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True),
        torch.randn(2, 5, 16),
    )


@check
def embedding_and_losses() -> None:
    torch.manual_seed(0)
    host = nn.Embedding(10, 4)
    model = copy.deepcopy(host).to(DEVICE)
    index, target = torch.tensor([1, 5, 1]), torch.tensor([0, 3, 2])
    for net, device in ((host, "cpu"), (model, DEVICE)):
        nn.functional.cross_entropy(net(index.to(device)), target.to(device)).backward()
    same(model.weight.grad, host.weight.grad)


@check
def optimizers_match_cpu() -> None:
    cases = [
        (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "nesterov": True}),
        (torch.optim.AdamW, {"lr": 0.01}),
        (torch.optim.AdamW, {"lr": 0.01, "foreach": True}),
        (torch.optim.AdamW, {"lr": 0.01, "fused": True}),
        (torch.optim.Adam, {"lr": 0.01, "amsgrad": True}),
        (torch.optim.RMSprop, {"lr": 0.01}),
        (torch.optim.Adagrad, {"lr": 0.01}),
        (torch.optim.LBFGS, {"lr": 0.1}),
    ]
    for kind, options in cases:
        results = []
        for device in ("cpu", DEVICE):
            torch.manual_seed(0)
            model = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 1)).to(device)
            with torch.no_grad():
                for i, p in enumerate(model.parameters()):
                    p.copy_(torch.linspace(-1, 1, p.numel()).view_as(p) * (i + 1) / 5)
            x = torch.linspace(-1, 1, 12).view(4, 3).to(device)
            optimizer = kind(model.parameters(), **options)

            def closure(model=model, optimizer=optimizer, x=x) -> torch.Tensor:
                optimizer.zero_grad()
                loss = model(x).square().mean()
                loss.backward()
                return loss

            for _ in range(3):
                optimizer.step(closure)
            nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            results.append([p.detach() for p in model.parameters()])
        for p, q in zip(*results, strict=True):
            same(q, p)


@check
def autocast() -> None:
    a, b = torch.randn(4, 4, device=DEVICE), torch.randn(4, 4, device=DEVICE)
    with torch.autocast(DEVICE):
        assert (a @ b).dtype == torch.bfloat16
        assert (a @ b).exp().dtype == torch.float32
        assert torch.softmax((a @ b), 0).dtype == torch.float32
        assert (a @ b).sum().dtype == torch.float32
        assert torch.addcmul(a, a.bfloat16(), b).dtype == torch.float32
        with torch.autocast(DEVICE, enabled=False):
            assert (a @ b).dtype == torch.float32
        raises(
            RuntimeError,
            "binary_cross_entropy_with_logits",
            lambda: nn.functional.binary_cross_entropy(a.sigmoid(), b.sigmoid()),
        )
    with torch.autocast(DEVICE, dtype=torch.float16):
        assert nn.Linear(4, 4).to(DEVICE)(a).dtype == torch.float16
    assert (a @ b).dtype == torch.float32


@check
def grad_scaler() -> None:
    model = nn.Linear(4, 1).to(DEVICE)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler(DEVICE, init_scale=2.0**10)
    before = model.weight.detach().clone()
    with torch.autocast(DEVICE, dtype=torch.float16):
        loss = model(torch.ones(2, 4, device=DEVICE)).sum()
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    same(model.weight.grad, torch.full((1, 4), 2.0))
    scaler.step(optimizer)
    scaler.update()
    assert not torch.equal(before.cpu(), model.weight.detach().cpu())
    model.weight.grad.fill_(float("inf"))
    kept = model.weight.detach().clone()
    scaler.scale(loss.detach())
    scaler.unscale_(optimizer)
    scaler.step(optimizer)
    scaler.update()
    assert torch.equal(kept.cpu(), model.weight.detach().cpu()) and scaler.get_scale() == 2.0**9


@check
def data_loader() -> None:
    data = torch.utils.data.TensorDataset(torch.arange(10.0), torch.arange(10))
    loader = torch.utils.data.DataLoader(data, batch_size=4, num_workers=2, pin_memory=True)
    seen = []
    for x, y in loader:
        assert x.is_pinned()
        same(x.to(DEVICE, non_blocking=True), y.float())
        seen += y.tolist()
    assert seen == list(range(10))


def _add_in_child(queue: object, done: object) -> None:
    x, view = queue.get()
    assert x.device == torch.device("neuron:1") and view.shape == (2,)
    x.add_(1)
    assert view.tolist() == [1.0, 1.0]
    done.put(x.sum().item())


@check
def processes_share_tensors() -> None:
    context = torch.multiprocessing.get_context("fork")
    queue, done = context.SimpleQueue(), context.SimpleQueue()
    child = context.Process(target=_add_in_child, args=(queue, done))
    child.start()
    x = torch.zeros(4, device="neuron:1")
    queue.put((x, x[2:]))
    total = done.get()
    child.join()
    assert child.exitcode == 0 and total == 4.0
    assert x.tolist() == [1.0] * 4
    y = torch.ones(2, device=DEVICE, requires_grad=True)
    raises(RuntimeError, "detach()", lambda: queue.put(y * 2))


@check
def random_numbers_are_reserved() -> None:
    from trnx_torch.registration import reserve_random

    torch.neuron.manual_seed_all(9)
    assert reserve_random(5) == (9, 0)
    assert reserve_random(8) == (9, 8)
    g = torch.Generator(DEVICE).manual_seed(3)
    assert reserve_random(1, generator=g) == (3, 0)
    assert g.get_offset() == 4 and reserve_random(0) == (9, 16)
    raises(
        RuntimeError,
        "Expected a generator of neuron:0",
        lambda: reserve_random(1, generator=torch.Generator()),
    )
