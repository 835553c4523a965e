"""Corners of the backend: views, abandoned groups, work that nobody waited for, signals.

    torchrun --nproc-per-node 4 tests/torch/corners.py [CHECK...]
"""

import datetime
import os
import signal
import time

import torch
import torch.distributed as dist
from harness import check, main, raises

import moeccl.torch


@check
def views_with_a_conjugation_or_a_negation():
    numbers = torch.complex(torch.arange(WORLD) + 1.0, torch.full((WORLD,), RANK + 1.0))
    imaginary, turned = numbers.conj().imag, torch._neg_view(torch.arange(WORLD) + 1.0 + RANK)
    assert imaginary.is_neg() and turned.is_neg() and numbers.conj().is_conj()
    output = torch.empty(1)
    dist.reduce_scatter(output, list(turned.chunk(WORLD)))
    assert output.item() == -sum(RANK + 1 + rank for rank in range(WORLD)), output
    dist.reduce_scatter_tensor(output, imaginary)
    assert output.item() == -sum(rank + 1 for rank in range(WORLD)), output
    dist.all_to_all_single(received := torch.empty(WORLD), imaginary)
    assert received.tolist() == [-(rank + 1.0) for rank in range(WORLD)]
    # torch.distributed's own functions refuse conjugated views; others come here with them.
    group = dist.group.WORLD
    gathered = [torch.empty(WORLD, dtype=torch.complex64) for _ in range(WORLD)]
    group.allgather([gathered], [numbers.conj()]).wait()
    assert [each[0].item() for each in gathered] == [complex(1, -(rank + 1)) for rank in range(WORLD)]
    # As outputs, where PyTorch does not put copies in their place.
    shown = [torch._neg_view(torch.zeros(2)) for _ in range(WORLD)]
    dist.all_gather(shown, torch.full((2,), RANK + 1.0))
    assert [each.tolist() for each in shown] == [[rank + 1.0] * 2 for rank in range(WORLD)], shown
    if RANK == 0:
        dist.send(turned, 1)
    elif RANK == 1:
        dist.recv(got := torch.empty(WORLD), 0)
        assert got.tolist() == [-(each + 1.0) for each in range(WORLD)]


@check
def layers_take_negated_views():
    layer = moeccl.torch.MoE(torch.nn.ModuleList([torch.nn.Identity()]))
    tokens = torch.arange(12.0).reshape(3, 4)
    indices, weights = torch.full((3, 1), (RANK + 1) % WORLD), torch.full((3, 1), -2.0)
    output = layer(torch._neg_view(tokens), indices, torch._neg_view(weights))
    assert torch.equal(output, -2 * tokens), output


@check
def outputs_that_overlap():
    inputs = torch.full((4,), float(RANK))
    memory = torch.zeros(8 * WORLD)
    raises(lambda: dist.all_gather_into_tensor(memory.as_strided((WORLD, 4), (2, 1)), inputs), "share memory", "[2, 1]")
    raises(lambda: dist.all_reduce(memory.as_strided((4, 3), (2, 2))), "share memory")
    raises(lambda: dist.all_gather([memory[2 * rank:2 * rank + 4] for rank in range(WORLD)], inputs), "share a part")
    # Strides that only look like it.
    crossed = memory.as_strided((2, 2), (3, 2))
    dist.all_reduce(crossed.fill_(1))
    assert (crossed == WORLD).all()
    columns = torch.zeros(4, WORLD)
    dist.all_gather(list(columns.t()), inputs)
    assert torch.equal(columns, torch.arange(float(WORLD)).expand(4, WORLD))


def total():
    tensor = torch.tensor([RANK + 1])
    dist.all_reduce(tensor)
    return tensor.item()


@check
def exceptions_in_coalesced_calls():
    """The calls that follow are made, as if nothing had been coalesced."""
    right, left = (RANK + 1) % WORLD, (RANK - 1) % WORLD
    sparse = torch.ones(2).to_sparse()

    def exchange(sent):
        got = torch.zeros(2)
        operations = [dist.P2POp(dist.isend, sent, right), dist.P2POp(dist.irecv, got, left)]
        for work in dist.batch_isend_irecv(operations):
            work.wait()
        return got

    def failing():
        raise RuntimeError("in the block")

    for turn in range(2):
        raises(lambda: exchange(sparse))
        assert total() == WORLD * (WORLD + 1) // 2
        assert exchange(torch.full((2,), float(RANK))).tolist() == [left] * 2

        def block():
            with dist._coalescing_manager(device=torch.device("cpu")):
                dist.isend(torch.ones(2), right)
                failing()
        raises(block, "in the block")
        # The next to coalesce begins afresh: the send was never made.
        assert exchange(torch.full((2,), 7.0 + turn)).tolist() == [7.0 + turn] * 2
        assert total() == WORLD * (WORLD + 1) // 2
    # One of them is refused, the others are made.
    sent, got = torch.full((2,), float(RANK)), torch.zeros(2)
    with dist._coalescing_manager(device=torch.device("cpu"), async_ops=True) as manager:
        raises(lambda: dist.group.WORLD.send([sent, sent], right, 0), "one tensor")
        dist.isend(sent, right)
        dist.irecv(got, left)
    manager.wait()
    assert got.tolist() == [left] * 2


def fresh_store(name):
    """A store of this job for another process group."""
    port = int(os.environ["MASTER_PORT"])
    return dist.PrefixStore(name, dist.TCPStore(os.environ["MASTER_ADDR"], port, WORLD, is_master=False))


def anew(name, **options):
    if dist.is_initialized():
        dist.destroy_process_group()
    options = {"timeout": datetime.timedelta(seconds=60), **options}
    dist.init_process_group("cpu:moeccl", store=fresh_store(name), rank=RANK, world_size=WORLD, **options)


class Stop(Exception):
    pass


def alarmed(seconds, raising=None):
    """Key of the store that says that this rank's handler has run."""
    global ALARMS
    ALARMS += 1
    key = f"alarm {ALARMS}"

    def handle(number, frame):
        STORE.set(key, "run")
        if raising is not None:
            raise raising("from a handler")

    if RANK == 0:
        signal.signal(signal.SIGALRM, handle)
        signal.setitimer(signal.ITIMER_REAL, seconds)
    return key


@check
def signals_are_handled_while_a_rank_waits():
    """The others come only once rank 0's handler has run: where it runs behind the call, nobody goes on."""
    layer = moeccl.torch.MoE(torch.nn.ModuleList([torch.nn.Identity()]))
    indices = torch.full((3, 1), (RANK + 1) % WORLD)
    waits = {
        "synchronous": lambda: dist.all_reduce(torch.ones(2)),
        "exchange": lambda: dist.all_to_all_single(torch.empty(WORLD), torch.ones(WORLD)),
        "barrier": dist.barrier,
        "layer": lambda: layer(torch.ones(3, 4), indices, torch.ones(3, 1)),
        "asynchronous": lambda: dist.all_reduce(torch.ones(2), async_op=True).wait(),
        "with a timeout": lambda: dist.all_reduce(torch.ones(2), async_op=True).wait(datetime.timedelta(seconds=60)),
        "receive": lambda: dist.recv(torch.ones(2), 1) if RANK == 0 else dist.send(torch.ones(2), 0) if RANK == 1 else None,
    }
    for call in waits.values():
        key = alarmed(0.2)
        if RANK != 0:
            STORE.wait([key])
        call()


@check
def exceptions_of_handlers_end_the_wait():
    """The work itself goes on, and can be waited for again."""
    for raising in (KeyboardInterrupt, Stop):
        key = alarmed(0.2, raising)
        tensor = torch.ones(2)
        if RANK == 0:
            work = dist.all_reduce(tensor, async_op=True)
            try:
                work.wait()
                raise AssertionError("no exception")
            except (KeyboardInterrupt, Stop) as error:
                assert type(error) is raising, error
            STORE.set(f"{key} over", "")
            work.wait()
        else:
            STORE.wait([f"{key} over"])
            dist.all_reduce(tensor)
        assert tensor[0] == WORLD
    work = dist.all_reduce(tensor, async_op=True) if RANK == 0 else None
    if RANK == 0:
        raises(lambda: work.wait(datetime.timedelta(seconds=0.3)), "timed out")
    dist.barrier(BESIDE)
    if RANK == 0:
        work.wait()
    else:
        dist.all_reduce(tensor)


@check
def exceptions_of_handlers_end_synchronous_calls():
    """On all ranks: what a call has begun cannot be taken back, and nobody shall wait for this rank."""
    for turn, raising in enumerate((KeyboardInterrupt, Stop)):
        anew(f"interrupted {turn}")
        key = alarmed(0.2, raising)
        began = time.monotonic()
        if RANK == 0:
            try:
                dist.all_reduce(torch.ones(2))
                raise AssertionError("no exception")
            except (KeyboardInterrupt, Stop) as error:
                assert type(error) is raising, error
        else:
            STORE.wait([key])
            raises(lambda: dist.all_reduce(torch.ones(2)), "rank 0", "a signal's handler raised an exception")
        assert time.monotonic() - began < 5
        raises(lambda: dist.all_reduce(torch.ones(2)), "a signal's handler raised an exception")
    anew("after interruptions")
    assert total() == WORLD * (WORLD + 1) // 2


@check
def layers_go_on_after_an_interruption():
    layer = moeccl.torch.MoE(torch.nn.ModuleList([torch.nn.Identity()]))
    tokens, indices, weights = torch.arange(12.0).reshape(3, 4), torch.full((3, 1), (RANK + 1) % WORLD), torch.ones(3, 1)
    for _ in range(2):
        key = alarmed(0.2, KeyboardInterrupt)
        if RANK == 0:
            try:
                layer(tokens, indices, weights)
                raise AssertionError("no exception")
            except KeyboardInterrupt:
                pass
        else:
            STORE.wait([key])
            raises(lambda: layer(tokens, indices, weights), "rank 0")
        moeccl.torch.recover()
        assert torch.equal(layer(tokens, indices, weights), tokens)


def refused_by_rank_1():
    """Calls in which rank 1 alone errs, before it has sent anything, and what it is told."""
    ones, splits = torch.ones(WORLD), [1] * WORLD
    wrong = [1] * (WORLD + 1) if RANK == 1 else splits
    parts = [torch.empty(2) for _ in range(WORLD)] if RANK == 1 else None
    operation = dist.ReduceOp.BAND if RANK == 1 else dist.ReduceOp.SUM
    return (
        (lambda: dist.all_to_all_single(torch.empty(WORLD), ones, wrong, splits), f"{WORLD + 1} split sizes"),
        (lambda: dist.all_to_all_single(torch.empty(WORLD), ones, splits, wrong, async_op=True).wait(), "split sizes"),
        (lambda: dist.all_gather_into_tensor(torch.empty(WORLD + (RANK == 1)), torch.ones(1)), "bytes"),
        (lambda: dist.all_reduce(ones, operation), "bitwise"),
        (lambda: dist.scatter(torch.empty(1), parts, src=1), "2 elements"),
    )


def refuse_alike():
    raises(lambda: dist.all_to_all_single(torch.empty(WORLD), torch.ones(WORLD), [1], [1]), "split sizes")


@check
def a_call_that_one_rank_refuses():
    """Those who wait for it in the call are told why it does not come."""
    for number in range(len(refused_by_rank_1())):
        anew(f"refused {number}")
        refuse_alike()
        call, said = refused_by_rank_1()[number]
        began = time.monotonic()
        text = raises(call, said)
        assert (f"rank 1 of {WORLD} takes no part" in text) == (RANK != 1), text
        if RANK == 0:
            STORE.set(f"refused {number}", "told")
        elif RANK == 1:
            STORE.wait([f"refused {number}"])  # they do not need this rank for it
            raises(lambda: dist.all_reduce(torch.ones(2)), said)
        assert time.monotonic() - began < 10, text
    anew("refused in a part")
    group = dist.new_group(list(range(1, WORLD)))
    if RANK > 0:
        ones, wrong = torch.ones(WORLD - 1), [1] if RANK == 2 else None
        call = lambda: dist.all_to_all_single(torch.empty(WORLD - 1), ones, wrong, None, group=group)  # noqa: E731
        assert (f"rank 1 of {WORLD - 1}" in raises(call, "split sizes")) == (RANK != 2)
    dist.barrier()


@check
def calls_that_all_ranks_refuse():
    """They have sent nothing, and go on, however long they wait then."""
    for _ in range(3):
        refuse_alike()
    for slow in range(2):
        time.sleep(1.5 if RANK == slow else 0)
        dist.all_reduce(tensor := torch.ones(2))
        assert tensor[0] == WORLD
        refuse_alike()


@check
def the_end_waits_for_work_of_all():
    """Calls that all ranks have made complete, also where some ranks never wait for theirs and end first."""
    for turn in range(5):
        anew(f"end {turn}")
        slow = turn % WORLD
        if RANK == slow:
            time.sleep(0.3)
        first, second = torch.ones(70000), torch.ones(70000)
        dist.all_reduce(first)
        works = [dist.all_reduce(second, async_op=True)]
        works.append(dist.isend(first, (RANK + 1) % WORLD))
        works.append(dist.irecv(got := torch.empty(70000), (RANK - 1) % WORLD))
        dist.destroy_process_group()
        for work in works:
            work.wait()
        assert (first == WORLD).all() and (second == WORLD).all() and (got == WORLD).all()
    anew("receives without a message")
    dist.barrier()
    unmatched = dist.irecv(torch.empty(1), (RANK - 1) % WORLD)
    dist.destroy_process_group()  # gives it up
    raises(unmatched.wait, "rank")
    anew("last")


def start():
    global WORLD, RANK, STORE, ALARMS, BESIDE
    RANK, WORLD = dist.get_rank(), dist.get_world_size()
    BESIDE = dist.new_group(list(range(WORLD)))
    STORE, ALARMS = fresh_store("alarms"), 0


if __name__ == "__main__":
    main(start)
