#!/usr/bin/env python3
"""Times the softmax top-k gate on a GPU beside the same gate in PyTorch, in one run.

    gate_bench.py BENCH_GPU [--tokens N...] [--embedding M] [--choices K] [--experts E...]

BENCH_GPU is the program that tests/run_gpu.sh --bench builds. Both gates take float32 tokens to experts,
weights, places and the auxiliary loss; places are given to first choices before second ones, in token order.
"product" is logits = tokens x gate, "rest" all that comes after. PyTorch runs as it is (eager), and compiled.
"""
import argparse
import subprocess
import sys

from measured import milliseconds, note


def gate(torch, logits, choices, capacity):
    """(experts, weights, places or -1, loss), all as moeccl's."""
    tokens, experts = logits.shape
    probabilities = torch.softmax(logits, dim=1)
    best, chosen = torch.topk(probabilities, choices, dim=1)
    weights = best if choices == 1 else best / best.sum(dim=1, keepdim=True)
    # [choices x tokens][experts]: first choices of all tokens come first.
    mask = torch.nn.functional.one_hot(chosen.t().reshape(-1), experts)
    places = ((torch.cumsum(mask, dim=0) - 1) * mask).sum(dim=1).reshape(choices, tokens).t()
    places = torch.where(places < capacity, places, -1)
    share = mask[:tokens].to(logits.dtype).mean(dim=0)
    loss = experts * (share * probabilities.mean(dim=0)).sum()
    return chosen, weights, places, loss


def compare(torch, options, count, experts):
    tokens = torch.rand(count, options.embedding, device="cuda") * 2 - 1
    weights = torch.rand(options.embedding, experts, device="cuda") * 2 - 1
    capacity = -(-count * options.choices // experts)
    logits = tokens @ weights
    output = subprocess.run([options.program, "gate", str(count), str(options.embedding), str(experts),
                             str(options.choices)], check=True, capture_output=True, text=True).stdout
    ours = [float(word) for word in output.split()]
    rows = {"moeccl": ours}
    product = milliseconds(torch, lambda: tokens @ weights, calls=20)
    for name, function in (("eager", gate), ("compiled", torch.compile(gate))):
        try:
            rest = milliseconds(torch, lambda: function(torch, logits, options.choices, capacity), calls=20)
            rows[name] = [product, rest]
        except Exception as error:  # no compiler for it on this machine
            print(f"{count:>8}{experts:>8}{name:>12}  {str(error).splitlines()[0]}")
    for name, (first, rest) in rows.items():
        note({"gate": name, "tokens": count, "experts": experts, "embedding": options.embedding,
              "choices": options.choices, "product_ms": first, "rest_ms": rest})
        print(f"{count:>8}{experts:>8}{name:>12}{first:>10.3f}{rest:>10.3f}{first + rest:>10.3f}"
              f"{rest / ours[1]:>10.1f}{(first + rest) / sum(ours):>10.1f}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("--tokens", type=int, nargs="+", default=[8192, 128], help="in training, while decoding")
    parser.add_argument("--embedding", type=int, default=4096)
    parser.add_argument("--choices", type=int, default=2)
    parser.add_argument("--experts", type=int, nargs="+", default=[8, 64, 256])
    options = parser.parse_args()
    try:
        import torch
    except ImportError:
        print(f"{sys.executable} has no PyTorch; install it: {sys.executable} -m pip install torch")
        sys.exit(77)
    if not torch.cuda.is_available():
        print("there is no GPU")
        sys.exit(77)

    print(f"{torch.cuda.get_device_name()}, PyTorch {torch.__version__}, tokens of {options.embedding}, "
          f"{options.choices} choices; milliseconds")
    print(f"{'tokens':>8}{'experts':>8}{'':>12}{'product':>10}{'rest':>10}{'all':>10}{'rest, x':>10}{'all, x':>10}")
    for count in options.tokens:
        for experts in options.experts:
            compare(torch, options, count, experts)


if __name__ == "__main__":
    main()
