/* Own experts under every schedule: ranks of an MP group bring the same tokens, MP groups bring
 * different numbers of them, and experts may have a capacity. Expert e multiplies its rows by
 * e + 1, so what must come back is known. */
#include <moeccl/moe.h>
#include <moeccl/route.h>
#include <stdio.h>
#include <stdlib.h>

enum { kMost = 30, kWide = 8, kChoices = 2 };
#define CHECK(call) \
  if ((call) != moecclSuccess) return fprintf(stderr, #call ": %s\n", moecclGetLastError(NULL)), 1

static float x[kMost * kWide], y[kMost * kWide], dx[kMost * kWide];
static float weights[kMost * kChoices], dWeights[kMost * kChoices];
static int32_t chosen[kMost * kChoices];

/* The experts, of gradients too. Shards of an expert share its work. */
static void scale(float* rows, const moecclRows_t* come, const moecclRouteInfo_t* info,
                  int shards) {
  int64_t e, i;
  for (e = 0; e < info->localExperts; ++e)
    for (i = come->begins[e] * kWide; i < come->begins[e + 1] * kWide; ++i)
      rows[i] *= (float)(info->firstExpert + e + 1) / (float)shards;
}

static int run(moecclComm_t comm, moecclGridShape_t shape, double capacity, const char* schedule) {
  moecclGrid_t grid;
  moecclRoute_t route;
  moecclRoutePass_t pass;
  moecclRouteConfig_t config = MOECCL_ROUTE_CONFIG_INITIALIZER;
  moecclRouteInfo_t info = MOECCL_ROUTE_INFO_INITIALIZER;
  moecclRouting_t routing = MOECCL_ROUTING_INITIALIZER;
  moecclRows_t come = MOECCL_ROWS_INITIALIZER;
  int rank, i, wrong = 0;
  CHECK(moecclCommUserRank(comm, &rank));
  CHECK(moecclGridCreate(comm, shape, &grid));
  config.experts = 4 * shape.nEp, config.topK = kChoices, config.hidden = kWide;
  config.datatype = moecclFloat32, config.sharedTokens = 1;
  config.capacityFactor = capacity, config.schedule = schedule;
  CHECK(moecclRouteCreate(grid, &config, &route));
  CHECK(moecclRouteGetInfo(route, &info));
  const int group = rank / shape.nMp;
  routing.tokens = kMost - 7 * group % kMost, routing.experts = chosen, routing.weights = weights;
  for (i = 0; i < kMost * kWide; ++i) x[i] = (float)((i * 7 + group) % 11) - 5;
  for (i = 0; i < kMost * kChoices; ++i) /* the own gate: two experts by the token's number */
    chosen[i] = (i / kChoices + i % kChoices + group) % config.experts, weights[i] = 0.5f;
  CHECK(moecclRouteBegin(route, &routing, NULL, &pass));
  CHECK(moecclPassGetRows(pass, &come));
  float* const rows = malloc(sizeof(float) * (size_t)(come.rows * kWide + 1));
  float* const gradients = malloc(sizeof(float) * (size_t)(come.rows * kWide + 1));
  CHECK(moecclPassDispatch(pass, x, rows, NULL));
  scale(rows, &come, &info, shape.nEsp);
  CHECK(moecclPassCombine(pass, rows, y, NULL));
  CHECK(moecclPassCombineBackward(pass, x, rows, gradients, dWeights, NULL)); /* x for a gradient */
  scale(gradients, &come, &info, shape.nEsp);
  CHECK(moecclPassDispatchBackward(pass, gradients, NULL, dx, NULL, NULL));
  for (i = 0; i < routing.tokens * kWide; ++i) {
    const int32_t* const its = chosen + i / kWide * kChoices;
    const float right = 0.5f * (float)(its[0] + 1 + its[1] + 1) * x[i];
    wrong += y[i] != right || dx[i] != right;
  }
  if (rank == 0 || wrong > 0)
    printf("%s, nMp %d%s: %d wrong\n", come.algorithm, shape.nMp, capacity > 0 ? "" : ", dropless",
           wrong);
  free(rows), free(gradients);
  CHECK(moecclPassEnd(pass));
  CHECK(moecclRouteDestroy(route));
  CHECK(moecclGridDestroy(grid));
  return wrong;
}

int main(void) {
  moecclComm_t comm;
  int ranks, nMp, which, wrong = 0;
  CHECK(moecclCommInitEnv(&comm, NULL));
  CHECK(moecclCommCount(comm, &ranks));
  const int nEsp = ranks % 2 == 0 ? 2 : 1;
  for (nMp = 1; nMp <= ranks; ++nMp)
    for (which = 0; ranks % nMp == 0 && which < 2 * moecclNumSchedules; ++which) {
      const moecclSchedule_t schedule = (moecclSchedule_t)(which / 2);
      const double capacity = which % 2 == 0 ? 0 : 4 * ranks;      /* room for all */
      if (schedule == moecclScheduleBaseline && nMp > 1) continue; /* it has no gradients there */
      if (schedule == moecclScheduleS2 && capacity == 0) continue; /* which it splits */
      if (schedule == moecclSchedulePpMoe && nMp < ranks) continue;
      wrong += run(comm, (moecclGridShape_t){nMp, ranks / nEsp, nEsp, moecclOrderEspEp}, capacity,
                   moecclScheduleName(schedule));
    }
  CHECK(moecclCommDestroy(comm));
  return wrong > 0;
}
