"""What torch.distributed asks of a backend, done by moeccl and by Gloo, whose results must be equal.

    torchrun --nproc-per-node 4 tests/torch/checks.py [CHECK...]

Every rank runs every check; the first difference ends the job with an error.
"""

import datetime
import time

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from harness import check, main, raises

TYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int8, torch.uint8, torch.int16, torch.int32,
         torch.int64, torch.bool, torch.complex64, torch.complex128]
LACKING = [torch.int16, torch.bfloat16, torch.complex64, torch.complex128]  # in Gloo
SIZES = [0, 1, 7, 1000, 70000]


def data(shape, dtype, salt=0):
    """Small whole numbers, other ones on each rank, whose sums and products are exact."""
    generator = torch.Generator().manual_seed(1000 * dist.get_rank() + salt)
    return torch.randint(0, 2 if dtype == torch.bool else 3, shape, generator=generator).to(dtype)


def both(call):
    """The results of call(group) on each backend."""
    return call(None), call(GLOO)


def same(ours, theirs, what):
    if isinstance(ours, (list, tuple)):
        assert len(ours) == len(theirs), what
        for one, other in zip(ours, theirs):
            same(one, other, what)
    else:
        assert ours.dtype == theirs.dtype and torch.equal(ours, theirs), f"{what}: {ours} is not {theirs}"


def moved(call, tensor):
    """call(group, tensor), which moves tensors and no more: what Gloo has no type for, it moves as bytes."""
    def of(group):
        if group is None or tensor.dtype not in LACKING:
            return call(group, tensor)
        results = call(group, tensor.view(torch.uint8))
        return [each.view(tensor.dtype) for each in results] if isinstance(results, list) else results.view(tensor.dtype)
    return of


def expect(call, what):
    same(*both(call), what)


def all_to_all_single(group, tensor, out_splits=None, in_splits=None, asynchronous=False):
    rows = tensor.shape[0] if out_splits is None else sum(out_splits)
    output = tensor.new_empty((rows,) + tensor.shape[1:])
    work = dist.all_to_all_single(output, tensor, out_splits, in_splits, group=group, async_op=asynchronous)
    if asynchronous:
        work.wait()
    return output


@check
def all_to_all_equal():
    for dtype in TYPES:
        for size in SIZES:
            tensor = data((WORLD * size, 2), dtype, size)
            expect(moved(all_to_all_single, tensor), f"{dtype}, {size}")


@check
def all_to_all_uneven_and_empty():
    for turn in range(6):
        counts = [[(turn * (i + 1) * (j + 2)) % 7 for j in range(WORLD)] for i in range(WORLD)]
        if turn == 5:
            counts = [[50000 if j == 0 else 0 for j in range(WORLD)] for i in range(WORLD)]
        mine, theirs = counts[RANK], [counts[i][RANK] for i in range(WORLD)]
        for asynchronous in (False, True):
            tensor = data((sum(mine), 3), torch.float32, turn)
            expect(lambda group: all_to_all_single(group, tensor, theirs, mine, asynchronous), f"turn {turn}")


@check
def all_to_all_lists():
    for dtype in (torch.float32, torch.int64, torch.bool):
        tensors = [data((RANK + peer, 2), dtype, peer) for peer in range(WORLD)]

        # Gloo has none of lists; what must come is known.
        outputs = [torch.empty((RANK + peer, 2), dtype=dtype) for peer in range(WORLD)]
        dist.all_to_all(outputs, tensors)
        for peer in range(WORLD):
            generator = torch.Generator().manual_seed(1000 * peer + RANK)
            right = torch.randint(0, 2 if dtype == torch.bool else 3, (RANK + peer, 2), generator=generator).to(dtype)
            same(outputs[peer], right, f"from {peer}")


@check
def reductions():
    operators = [dist.ReduceOp.SUM, dist.ReduceOp.PRODUCT, dist.ReduceOp.MIN, dist.ReduceOp.MAX]
    bits = [dist.ReduceOp.BAND, dist.ReduceOp.BOR, dist.ReduceOp.BXOR]
    for dtype in (torch.float32, torch.float64, torch.float16, torch.int8, torch.uint8, torch.int32, torch.int64):
        for op in operators + ([] if dtype.is_floating_point else bits):
            for size in (1, 1000):
                def all_reduce(group):
                    tensor = data((size,), dtype, size)
                    dist.all_reduce(tensor, op, group=group)
                    return tensor

                def reduce(group):
                    tensor = data((size,), dtype, size)
                    dist.reduce(tensor, size % WORLD, op, group=group)
                    return tensor if RANK == size % WORLD else torch.empty(0)

                expect(all_reduce, f"all_reduce {dtype} {op}")
                expect(reduce, f"reduce {dtype} {op}")
    # Those that Gloo has not.
    for dtype in (torch.float32, torch.int16, torch.bfloat16):
        tensor = torch.full((5,), RANK, dtype=dtype)
        dist.all_reduce(tensor)
        assert tensor.tolist() == [WORLD * (WORLD - 1) // 2] * 5, tensor
    average = torch.full((3,), float(RANK))
    dist.all_reduce(average, dist.ReduceOp.AVG)
    assert average.tolist() == [(WORLD - 1) / 2] * 3, average
    flags = torch.tensor([RANK == 1, True, False])
    dist.all_reduce(flags, dist.ReduceOp.MAX)
    assert flags.tolist() == [True, True, False]
    numbers = torch.full((4,), complex(RANK, 1), dtype=torch.complex64)
    dist.all_reduce(numbers)
    assert numbers[0] == complex(WORLD * (WORLD - 1) // 2, WORLD)


@check
def gathers_and_scatters():
    for dtype in TYPES:
        for size in (0, 1, 1000):
            root = size % WORLD

            def all_gather(group, tensor):
                outputs = [torch.empty_like(tensor) for _ in range(WORLD)]
                dist.all_gather(outputs, tensor, group=group)
                return outputs

            def all_gather_single(group, tensor):
                output = tensor.new_empty((WORLD * tensor.shape[0],) + tensor.shape[1:])
                dist.all_gather_into_tensor(output, tensor, group=group)
                return output

            def gather(group, tensor):
                outputs = [torch.empty_like(tensor) for _ in range(WORLD)] if RANK == root else None
                dist.gather(tensor, outputs, root, group=group)
                return outputs or []

            def scatter(group, tensor):
                # The root's are other ones for each rank.
                inputs = [tensor.roll(i, 0) for i in range(WORLD)] if RANK == root else None
                output = torch.empty_like(tensor)
                dist.scatter(output, inputs, root, group=group)
                return output

            def broadcast(group, tensor):
                copy = tensor.clone()
                dist.broadcast(copy, root, group=group)
                return copy

            for call in (all_gather, all_gather_single, gather, scatter, broadcast):
                if size > 0 or call is all_gather:
                    expect(moved(call, data((size, 2), dtype, size)), f"{call.__name__} {dtype} {size}")
    for dtype in (torch.float32, torch.int64):
        parts = [data((50,), dtype, i) for i in range(WORLD)]

        def reduce_scatter(group):
            output = torch.empty(50, dtype=dtype)
            dist.reduce_scatter(output, parts, group=group)
            return output

        whole = torch.cat(parts)
        dist.all_reduce(whole)
        same(reduce_scatter(None), whole[50 * RANK:50 * RANK + 50], "reduce_scatter")
        output = torch.empty(50, dtype=dtype)
        dist.reduce_scatter_tensor(output, torch.cat(parts))
        same(output, whole[50 * RANK:50 * RANK + 50], "reduce_scatter_tensor")
    # Parts of other sizes, which Gloo refuses.
    outputs = [torch.empty(peer) for peer in range(WORLD)]
    dist.all_gather(outputs, torch.full((RANK,), float(RANK)))
    same(outputs, [torch.full((peer,), float(peer)) for peer in range(WORLD)], "uneven all_gather")


@check
def strided_tensors():
    def all_reduce(group):
        tensor = data((6, 8), torch.float32).t()[1:, ::2]
        dist.all_reduce(tensor, group=group)
        return tensor.contiguous()

    tensor = data((6, 8), torch.float32).t()[1:, ::2].contiguous()
    expected = tensor.clone()
    dist.all_reduce(expected, group=GLOO)
    same(all_reduce(None), expected, "strides")
    wide = data((WORLD * 2, 4), torch.int32)[:, ::2]
    output = torch.zeros(WORLD * 2, 4, dtype=torch.int32)[:, 1::2]
    dist.all_to_all_single(output, wide)
    same(output.contiguous(), all_to_all_single(GLOO, wide.contiguous()), "strided output")


@check
def asynchronous_work():
    tensors = [data((1000,), torch.int64, i) for i in range(20)]
    expected = [tensor.clone() for tensor in tensors]
    for tensor in expected:
        dist.all_reduce(tensor, group=GLOO)
    works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
    sums = torch.zeros(20, dtype=torch.int64)
    futures = []
    for i, work in enumerate(works):
        def note(future, i=i):
            sums[i] = future.value()[0].sum()
            return i
        futures.append(work.get_future().then(note))
    for work in reversed(works):
        work.wait()
        assert work.is_completed()
    same(tensors, expected, "all_reduce")
    assert [future.wait() for future in futures] == list(range(20))
    assert sums.tolist() == [tensor.sum() for tensor in expected]


@check
def sends_and_receives():
    right, left = (RANK + 1) % WORLD, (RANK - 1) % WORLD
    for size in (1, 300000):
        mine, got = torch.full((size,), RANK), torch.empty(size, dtype=torch.int64)
        for work in [dist.isend(mine, right), dist.irecv(got, left)]:
            work.wait()
        assert (got == left).all()
        operations = [dist.P2POp(dist.isend, mine, right), dist.P2POp(dist.irecv, got, left),
                      dist.P2POp(dist.isend, mine + 1, left, tag=0)]
        more = torch.empty_like(got)
        operations.append(dist.P2POp(dist.irecv, more, right, tag=0))
        for work in dist.batch_isend_irecv(operations):
            work.wait()
        assert (got == left).all() and (more == right + 1).all()
        # By tags, in another order than they were sent.
        if RANK == 0:
            for tag in (1, 2, 3):
                dist.send(torch.full((size,), tag), WORLD - 1, tag=tag)
        elif RANK == WORLD - 1:
            works = [(tag, torch.empty(size, dtype=torch.int64)) for tag in (3, 1, 2)]
            for tag, tensor in works:
                work = dist.irecv(tensor, 0, tag=tag)
                if size == 1:
                    work.wait()
                    assert (tensor == tag).all()
            if size > 1:
                while not all((tensor == tag).all() for tag, tensor in works):
                    time.sleep(0.001)
        dist.barrier()
        if RANK == 0:
            seen = set()
            for _ in range(WORLD - 1):
                seen.add(dist.recv(got))
                assert (got == max(seen, key=lambda rank: got[0] == rank)).all()
            assert seen == set(range(1, WORLD)), seen
        else:
            dist.send(mine, 0)
        dist.barrier()


@check
def groups():
    made = []
    for size in range(1, WORLD + 1):
        ranks = list(range(WORLD))[-size:]
        group = dist.new_group(ranks)
        if RANK in ranks:
            tensor = torch.tensor([RANK])
            dist.all_reduce(tensor, group=group)
            assert tensor.item() == sum(ranks)
            made.append(group)
    # All at once, in both orders, of pairs.
    evens, odds = dist.new_group(list(range(0, WORLD, 2))), dist.new_group(list(range(1, WORLD, 2)))
    mine = evens if RANK % 2 == 0 else odds
    outputs = [None] * dist.get_world_size(mine)
    dist.all_gather_object(outputs, {"rank": RANK}, group=mine)
    assert [each["rank"] for each in outputs] == list(range(RANK % 2, WORLD, 2))
    sub, subs = dist.new_subgroups(group_size=2) if WORLD % 2 == 0 else (None, [])
    if sub is not None:
        tensor = torch.tensor([RANK])
        dist.broadcast(tensor, RANK // 2 * 2 + 1, group=sub)
        assert tensor.item() == RANK // 2 * 2 + 1
    for group in made[:2]:
        dist.destroy_process_group(group)
    dist.barrier()


@check
def objects():
    outputs = [None] * WORLD
    dist.all_gather_object(outputs, list(range(RANK)))
    assert outputs == [list(range(rank)) for rank in range(WORLD)]
    things = ["x" * 1000, RANK] if RANK == 0 else [None, None]
    dist.broadcast_object_list(things, 0)
    assert things == ["x" * 1000, 0]
    got = [None]
    dist.scatter_object_list(got, [f"for {rank}" for rank in range(WORLD)] if RANK == 0 else None, 0)
    assert got == [f"for {RANK}"]
    gathered = [None] * WORLD if RANK == 1 else None
    dist.gather_object(RANK, gathered, 1)
    assert RANK != 1 or gathered == list(range(WORLD))


@check
def functional_collectives_and_gradients():
    tensor = data((WORLD * 3, 2), torch.float32)
    group = dist.group.WORLD
    same(functional.all_to_all_single(tensor, None, None, group).wait(), all_to_all_single(GLOO, tensor), "functional")
    total = functional.all_reduce(tensor, "sum", group).wait()
    expected = tensor.clone()
    dist.all_reduce(expected, group=GLOO)
    same(total + 0, expected, "functional all_reduce")
    gathered = functional.all_gather_tensor(tensor, 0, group).wait()
    assert gathered.shape[0] == WORLD * WORLD * 3
    several = functional.all_reduce_coalesced([tensor.clone(), tensor + 1], "sum", group)
    same(several[0] + 0, expected, "coalesced")
    same(several[1] + 0, expected + WORLD, "coalesced")
    counts = [RANK + peer + 1 for peer in range(WORLD)]
    rows = torch.ones(sum(counts), 2, requires_grad=True)
    moved = functional.all_to_all_single_autograd(rows, counts, counts, group)
    (moved * (RANK + 1)).sum().backward()
    right = torch.cat([torch.full((count, 2), float(peer + 1)) for peer, count in enumerate(counts)])
    same(rows.grad, right, "gradient")
    with dist._coalescing_manager(async_ops=True) as manager:
        tensors = [torch.full((3,), float(RANK + i)) for i in range(5)]
        for each in tensors:
            dist.all_reduce(each)
    manager.wait()
    for i, each in enumerate(tensors):
        assert each[0] == sum(rank + i for rank in range(WORLD))


@check
def distributed_data_parallel():
    def train(group):
        torch.manual_seed(7)
        model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1)).double()
        model = torch.nn.parallel.DistributedDataParallel(model, process_group=group)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for step in range(5):
            inputs = data((4, 8), torch.float64, step)
            optimizer.zero_grad()
            model(inputs).square().mean().backward()
            optimizer.step()
        return [parameter.detach().clone() for parameter in model.parameters()]

    for ours, theirs in zip(*both(train)):
        assert torch.allclose(ours, theirs, rtol=1e-12, atol=1e-14), "DDP"
    mine = train(None)
    for parameter in mine:
        everyone = [torch.empty_like(parameter) for _ in range(WORLD)]
        dist.all_gather(everyone, parameter)
        assert all(torch.equal(each, parameter) for each in everyone), "ranks have other parameters"


@check
def barriers():
    for _ in range(5):
        dist.barrier()
    dist.barrier(async_op=True).wait()
    dist.monitored_barrier()
    started = time.monotonic()
    if RANK == 0:
        time.sleep(0.3)
    dist.barrier()
    assert time.monotonic() - started > 0.25


@check
def wrong_arguments_are_told():
    raises(lambda: dist.all_to_all_single(torch.empty(WORLD + 1), torch.empty(WORLD + 1)), "split")
    raises(lambda: dist.all_to_all_single(torch.empty(WORLD, 2), torch.empty(WORLD, 3)), "split sizes", str(3 * WORLD))
    raises(lambda: dist.all_gather_into_tensor(torch.empty(1), torch.empty(3)), "bytes")
    raises(lambda: dist.reduce_scatter_tensor(torch.empty(1).double(), torch.empty(WORLD)), "Double", "Float")
    raises(lambda: dist.all_reduce(torch.ones(2), dist.ReduceOp.BAND), "bitwise")
    dist.barrier()


@check
def timeouts_and_aborts_name_ranks():
    """Last: it leaves the process group broken, and makes it again."""
    group = dist.new_group(list(range(WORLD)), timeout=datetime.timedelta(milliseconds=700))
    late = WORLD - 1
    dist.barrier()
    if RANK != late:
        text = raises(lambda: dist.all_reduce(torch.ones(3), group=group))
        assert f"rank {late}" in text or "rank" in text, text
    else:
        time.sleep(3)
        raises(lambda: dist.all_reduce(torch.ones(3), group=group), "rank")
    dist.barrier()


def start():
    global WORLD, RANK, GLOO
    RANK, WORLD = dist.get_rank(), dist.get_world_size()
    GLOO = dist.new_group(backend="gloo")


if __name__ == "__main__":
    main(start)
