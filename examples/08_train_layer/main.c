/* Trains a layer with its own gate and experts, which scale tokens by vectors. The layer learns 2 x
 * where x[0] > 0, else -x. Each step, ranks bring other numbers of tokens. Link it with -lm too. */
#include <math.h>
#include <moeccl/route.h>
#include <stdio.h>
#include <stdlib.h>

enum { kSteps = 2000, kMost = 64, kWide = 4, kExperts = 8, kGate = 32, kRoom = 16384 };
#define CHECK(call) \
  if ((call) != moecclSuccess) return fprintf(stderr, #call ": %s\n", moecclGetLastError(NULL)), 1

static float gate[kGate], experts[kGate], weights[kMost], dWeights[kMost];
static float x[kMost * kWide], y[kMost * kWide], dy[kMost * kWide], dx[kMost * kWide];
static float rows[kRoom], made[kRoom], dMade[kRoom], dRows[kRoom];
static int32_t chosen[kMost];
static float uniform(void) { return 2.0f * (float)rand() / (float)RAND_MAX - 1; }

int main(void) {
  moecclComm_t comm = NULL;
  moecclGrid_t grid;
  moecclRoute_t route;
  moecclRouteConfig_t config = MOECCL_ROUTE_CONFIG_INITIALIZER;
  moecclRouteInfo_t info = MOECCL_ROUTE_INFO_INITIALIZER;
  int ranks, step, e, i, t;
  float first = 0, loss = 0;
  CHECK(moecclCommInitEnv(&comm, NULL));
  CHECK(moecclCommCount(comm, &ranks));
  CHECK(moecclGridCreate(comm, (moecclGridShape_t){1, ranks, 1, moecclOrderEspEp}, &grid));
  config.experts = kExperts, config.hidden = kWide, config.datatype = moecclFloat32;
  CHECK(moecclRouteCreate(grid, &config, &route));
  CHECK(moecclRouteGetInfo(route, &info));
  for (i = 0; i < kGate; ++i) gate[i] = uniform(), experts[i] = uniform();
  float* const own = experts + info.firstExpert * kWide;
  srand((unsigned)info.firstExpert + 1);
  for (step = 0; step < kSteps; ++step) {
    moecclRouting_t routing = MOECCL_ROUTING_INITIALIZER;
    moecclRows_t come = MOECCL_ROWS_INITIALIZER;
    moecclRoutePass_t pass;
    float sums[kGate + 1] = {0}; /* gradients of the gate, and the loss */
    routing.tokens = rand() % (kMost + 1), routing.experts = chosen, routing.weights = weights;
    for (t = 0; t < routing.tokens; ++t) { /* to the largest logit, weighted by its sigmoid */
      float best = -INFINITY, logit;
      for (i = t * kWide; i < (t + 1) * kWide; ++i) x[i] = uniform();
      for (e = 0; e < kExperts; ++e) {
        for (logit = 0, i = 0; i < kWide; ++i) logit += gate[e * kWide + i] * x[t * kWide + i];
        if (logit > best) best = logit, chosen[t] = e;
      }
      weights[t] = 1 / (1 + expf(-best));
    }
    CHECK(moecclRouteBegin(route, &routing, NULL, &pass));
    CHECK(moecclPassGetRows(pass, &come));
    CHECK(moecclPassDispatch(pass, x, rows, NULL));
    for (e = 0; e < info.localExperts; ++e)
      for (i = (int)come.begins[e] * kWide; i < come.begins[e + 1] * kWide; ++i)
        made[i] = own[e * kWide + i % kWide] * rows[i];
    CHECK(moecclPassCombine(pass, made, y, NULL));
    for (i = 0; i < routing.tokens * kWide; sums[kGate] += dy[i] * dy[i], ++i)
      dy[i] = y[i] - (x[i / kWide * kWide] > 0 ? 2 : -1) * x[i];
    CHECK(moecclPassCombineBackward(pass, dy, made, dMade, dWeights, NULL));
    for (e = 0; e < info.localExperts; ++e)
      for (i = (int)come.begins[e] * kWide; i < come.begins[e + 1] * kWide; ++i) {
        dRows[i] = own[e * kWide + i % kWide] * dMade[i];
        own[e * kWide + i % kWide] -= 0.02f * rows[i] * dMade[i];
      }
    CHECK(moecclPassDispatchBackward(pass, dRows, NULL, dx, NULL, NULL)); /* for what is below */
    CHECK(moecclPassEnd(pass));
    for (t = 0; t < routing.tokens; ++t)
      for (e = chosen[t], i = 0; i < kWide; ++i)
        sums[e * kWide + i] += dWeights[t] * weights[t] * (1 - weights[t]) * x[t * kWide + i];
    CHECK(moecclAllReduce(sums, sums, kGate + 1, moecclFloat32, moecclSum, comm, NULL));
    for (i = 0; i < kGate; ++i) gate[i] -= 0.02f * sums[i] / (float)ranks;
    loss = sums[kGate] / (float)ranks;
    if (step == 0) first = loss;
  }
  if (info.firstExpert == 0) printf("the loss went from %.3f to %.3f\n", first, loss);
  CHECK(moecclRouteDestroy(route));
  CHECK(moecclGridDestroy(grid));
  CHECK(moecclCommDestroy(comm));
  return loss > first / 10;
}
