"""Gradients of experts' parameters, behind a backward pass and in it."""

import contextlib
import itertools

import torch
from torch.autograd.graph import get_gradient_edge

from .. import _C

_graphs = itertools.count(1)


@contextlib.contextmanager
def _with_autograd():
    """In an operator, which autograd is done with, what it knows of tensors can be asked for."""
    included = torch._C._dispatch_tls_local_include_set()
    with torch.enable_grad(), torch._C._ForceDispatchKeyGuard(included, torch._C.DispatchKeySet.from_raw_repr(0)):
        yield


def note_backward(layer, leaf):
    """Called in each backward pass, maybe by several forward passes of it. leaf: one that no backward pass with inputs of
    its own reaches."""
    task = torch._C._current_graph_task_id()
    if task == layer._noted:
        return
    trained = {name: each for name, each in layer.experts.named_parameters()
               if each.requires_grad and name not in layer.sharded}
    with _with_autograd():
        if not torch._C._will_engine_execute_node(get_gradient_edge(leaf).node):
            trained = {name: each for name, each in trained.items() if _is_asked_for(layer, name, each)}
    layer._noted = task
    torch.autograd.Variable._execution_engine.queue_callback(lambda: _after_backward(layer, list(trained.values())))


def _is_asked_for(layer, name, parameter):
    """Of backward(inputs=) or torch.autograd.grad: whether it is among the inputs."""
    try:
        return torch._C._will_engine_execute_node(get_gradient_edge(parameter).node)
    except RuntimeError:  # torch.autograd.grad returns it, and adds it to nothing
        if needs_average(layer, name):
            raise RuntimeError(
                f"torch.autograd.grad would give the gradient of the experts' parameter {name} by this rank's tokens alone, "
                "without those of replicas; call backward(), which averages it into .grad") from None
        return False


class _Connected(torch.autograd.Function):
    """What experts made of their rows, connected to parameters that took no part in it. Their gradients are zeros."""

    @staticmethod
    def forward(ctx, results, *parameters):
        ctx.parameters = parameters
        return results.detach()

    @staticmethod
    def backward(ctx, gradient):
        return gradient, *(torch.zeros_like(each) for each in ctx.parameters)


@torch.compiler.assume_constant_result
def graph_of_compiler():
    """The number of the graph that torch.compile makes of the caller, of which all parameters are inputs. Another one where
    something has broken the graph."""
    context = torch._guards.TracingContext.try_get()
    return 0 if context is None else vars(context).setdefault("moeccl_number", next(_graphs))


@torch.compiler.disable
def connected(layer, results, rows):
    """The results, from which a backward pass reaches all parameters of the experts. Experts without rows may leave
    theirs out, and backward(inputs=) or torch.autograd.grad would pass by the exchange on this rank alone."""
    unreached = set(layer._checked[0])  # of all of them
    seen, following = {rows.grad_fn, None}, [results.grad_fn]
    while following and unreached:
        node = following.pop()
        if node not in seen:
            seen.add(node)
            following.extend(each for each, _ in node.next_functions)
            if hasattr(node, "variable"):
                unreached.discard(id(node.variable))
    if not unreached:
        return results
    missing = [each for name, each in layer.experts.named_parameters()
               if id(each) in unreached and each.requires_grad and name not in layer.sharded]
    return _Connected.apply(results, *missing) if missing else results


def needs_average(layer, name):
    """Gradients of what fully_shard has cut among replicas are averaged by FSDP."""
    if not layer._averages or name in layer.sharded:
        return False
    return layer._replicas is not None or (layer.places[name].shared and layer.grid.size > 1)


def refuse_hooks(layer):
    """Hooks behind the accumulation of a gradient see it before it is averaged."""
    for name, parameter in layer.experts.named_parameters():
        if parameter._post_accumulate_grad_hooks and needs_average(layer, name):
            raise ValueError(f"the experts' parameter {name} has a hook of register_post_accumulate_grad_hook, which would see "
                             "the gradient by this rank's tokens alone, without those of replicas; use it behind backward()")


def _after_backward(layer, trained):
    layer._noted = None
    with layer.revoking():
        _finish(layer, trained)


def _finish(layer, trained):
    for ticket, shape in layer.half_done.values():  # gradients of tokens were not asked for
        _C.route_pass(ticket).dispatch_backward(torch.zeros(shape), torch.empty(0))
    layer.half_done.clear()
    for parameter in trained:
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
    if layer._averages and trained:
        _average(layer, trained)
    layer.grid.unfinished.discard(layer.number)


def _average(layer, trained):
    chosen = {id(each) for each in trained}
    shared = [each.grad for each in layer._shared() if id(each) in chosen]
    if shared and layer.grid.size > 1:
        layer.grid.set.average(shared)
    if layer._replicas is not None:
        layer._replicas.average([each.grad for each in trained])


def _scaled(parameter, factor):
    """The parameter, whose gradient through this counts so many times."""
    alias = parameter.view_as(parameter)
    alias.register_hook(lambda gradient: gradient * factor)
    return alias


def _factors(layer, scale):
    """By id of parameters, where it is not 1."""
    # Averaged over the ranks, that is their sum, also where it is averaged again with a gradient that was there.
    factors = {id(each): scale for each in layer.experts.parameters()}
    factors |= {id(each): scale * layer.grid.size for each in layer._shared()}
    return {each: factor for each, factor in factors.items() if factor != 1}


@contextlib.contextmanager
def scaled_parameters(layer, scale):
    """Within, experts find parameters whose gradients count so many times, or as often as they are to be added."""
    factors = _factors(layer, scale) if torch.is_grad_enabled() else {}
    aliases, swapped = {}, []
    for module in layer.experts.modules() if factors else ():
        for name, parameter in module._parameters.items():
            if parameter is not None and id(parameter) in factors and parameter.requires_grad:
                if id(parameter) not in aliases:
                    aliases[id(parameter)] = _scaled(parameter, factors[id(parameter)])
                swapped.append((module, name, parameter))
    try:
        for module, name, parameter in swapped:
            module._parameters[name] = aliases[id(parameter)]
        yield
    finally:
        for module, name, parameter in swapped:
            module._parameters[name] = parameter
