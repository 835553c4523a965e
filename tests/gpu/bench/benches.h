// What bench_gpu measures, all of it in bfloat16 rows of 7168 elements, with 8 choices a token.
#pragma once

#include "tests/gpu/bench/bench.h"

namespace moeccl::gpu {

void layouts(Bench& bench);  // tokens to places of experts and back; blocks between exchanges
void gate(Bench& bench);     // logits, choices, places, loss, gradients
void rules(Bench& bench);    // the same of all kinds of gates, step by step
void experts(Bench& bench);  // products of matrices, of all experts at once
void lists(Bench& bench);    // the same as layouts without places: rows by lists of choices
void rows(Bench& bench);     // rows by lists, sums, float8, conversions
void latency(Bench& bench);  // the steps of a token route in latency mode

}  // namespace moeccl::gpu
