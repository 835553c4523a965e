/* Decodes token by token, in latency mode. Some ranks have no sequences of their own. All can call
 * each expert, a function, so what must come back is known. Link it with -lm too. */
#include <math.h>
#include <moeccl/route.h>
#include <stdio.h>
#include <stdlib.h>

enum { kHidden = 32, kExperts = 16, kChoices = 2, kSequences = 3, kSteps = 64 };
#define CHECK(call) \
  if ((call) != moecclSuccess) return fprintf(stderr, #call ": %s\n", moecclGetLastError(NULL)), 1

static void expert(int e, const float* row, float* result) {
  for (int i = 0; i < kHidden; ++i)
    result[i] = sinf((float)(e + 2) * row[(i + e) % kHidden] + (float)i);
}

/* The gate: the largest of a token's first elements and the next, with their softmax. */
static void choose(const float* token, int32_t* experts, float* weights) {
  for (int k = 0; k < kChoices; ++k) {
    experts[k] = k == 1 && experts[0] == 0;
    for (int e = 0; e < kExperts; ++e)
      if ((k == 0 || e != experts[0]) && token[e] > token[experts[k]]) experts[k] = e;
  }
  weights[0] = 1 / (1 + expf(token[experts[1]] - token[experts[0]])), weights[1] = 1 - weights[0];
}

int main(void) {
  float tokens[kSequences * kHidden], output[kSequences * kHidden], made[kChoices][kHidden];
  float weights[kSequences * kChoices];
  int32_t chosen[kSequences * kChoices];
  moecclComm_t comm;
  moecclGrid_t grid;
  moecclRoute_t route;
  moecclRouteConfig_t config = MOECCL_ROUTE_CONFIG_INITIALIZER;
  moecclRouteInfo_t info = MOECCL_ROUTE_INFO_INITIALIZER;
  moecclRouting_t routing = MOECCL_ROUTING_INITIALIZER;
  int rank, ranks, wrong = 0;
  CHECK(moecclCommInitEnv(&comm, NULL));
  CHECK(moecclCommUserRank(comm, &rank));
  CHECK(moecclCommCount(comm, &ranks));
  CHECK(moecclGridCreate(comm, (moecclGridShape_t){1, ranks, 1, moecclOrderEspEp}, &grid));
  config.mode = "latency", config.maxTokens = kSequences, config.datatype = moecclFloat32;
  config.experts = kExperts, config.topK = kChoices, config.hidden = kHidden;
  CHECK(moecclRouteCreate(grid, &config, &route));
  CHECK(moecclRouteGetInfo(route, &info));
  float* const rows = malloc(sizeof(float) * kHidden * (size_t)(info.maxRows + 1));
  float* const results = malloc(sizeof(float) * kHidden * (size_t)(info.maxRows + 1));
  for (int i = 0; i < kSequences * kHidden; ++i) tokens[i] = sinf((float)(i * 7 + rank));
  routing.tokens = rank % 3 == 2 ? 0 : kSequences, routing.experts = chosen,
  routing.weights = weights;
  for (int step = 0; step < kSteps; ++step) {
    moecclRoutePass_t pass;
    moecclRows_t come = MOECCL_ROWS_INITIALIZER;
    for (int t = 0; t < routing.tokens; ++t)
      choose(tokens + t * kHidden, chosen + 2 * t, weights + 2 * t);
    CHECK(moecclRouteBegin(route, &routing, NULL, &pass));
    CHECK(moecclPassDispatch(pass, tokens, rows, NULL));
    CHECK(moecclPassGetRows(pass, &come));
    for (int e = 0; e < info.localExperts; ++e)
      for (int64_t row = come.begins[e]; row < come.begins[e + 1]; ++row)
        expert(info.firstExpert + e, rows + row * kHidden, results + row * kHidden);
    CHECK(moecclPassCombine(pass, results, output, NULL));
    CHECK(moecclPassEnd(pass));
    for (int t = 0; t < routing.tokens; ++t) {
      float* const token = tokens + t * kHidden;
      const float* const weight = weights + 2 * t;
      for (int k = 0; k < kChoices; ++k) expert(chosen[2 * t + k], token, made[k]);
      for (int i = 0; i < kHidden; ++i) {
        token[i] = output[t * kHidden + i];
        wrong += fabsf(token[i] - weight[0] * made[0][i] - weight[1] * made[1][i]) > 1e-5f;
      }
    }
  }
  if (rank == 0 || wrong > 0) printf("rank %d: %d steps, %d wrong\n", rank, kSteps, wrong);
  free(rows), free(results);
  CHECK(moecclRouteDestroy(route));
  CHECK(moecclGridDestroy(grid));
  CHECK(moecclCommDestroy(comm));
  return wrong > 0;
}
