/* Every struct of the public headers that begins {size, magic, version}, through the calls that
 * read or write it, on one rank, in C99. It says whether programs of one release run with the
 * library of another: built with GROWN, against headers whose structs have one more field, a newer
 * program; with a library that was built from such headers, an older one. */
#include <moeccl/model.h>
#include <moeccl/moe.h>
#include <moeccl/moeccl.h>
#include <moeccl/route.h>
#include <stdio.h>
#include <string.h>

#define CHECK(condition)                                                     \
  do {                                                                       \
    if (!(condition)) {                                                      \
      fprintf(stderr, "line %d: %s; last error: %s\n", __LINE__, #condition, \
              moecclGetLastError(NULL));                                     \
      return 1;                                                              \
    }                                                                        \
  } while (0)

/* A struct that the library fills, and what lies behind it in the caller's memory. */
enum { kGuard = 0xa5, kGuardBytes = 256 };
#define GUARDED(Struct, name, INITIALIZER) \
  struct {                                 \
    Struct it;                             \
    unsigned char guard[kGuardBytes];      \
  } name = {INITIALIZER, {0}};             \
  memset(name.guard, kGuard, sizeof name.guard)
#define CHECK_GUARD(name)                                                                     \
  do {                                                                                        \
    size_t guarded;                                                                           \
    for (guarded = 0; guarded < kGuardBytes; ++guarded) CHECK(name.guard[guarded] == kGuard); \
    CHECK(name.it.size == sizeof name.it && name.it.version == MOECCL_VERSION);               \
  } while (0)

/* A field that the library does not know must be zero: `call` refuses it. */
#ifdef GROWN
#define CHECK_UNKNOWN(name, call)                                    \
  do {                                                               \
    name.grown = 1;                                                  \
    CHECK((call) == moecclInvalidArgument);                          \
    CHECK(strstr(moecclGetLastError(NULL), "sets a field") != NULL); \
    name.grown = 0;                                                  \
  } while (0)
#else
#define CHECK_UNKNOWN(name, call) (void)(name)
#endif

enum { kTokens = 4, kEmbedding = 2, kHidden = 3, kExperts = 2 };

static moecclMoeConfig_t layerConfig(void) {
  moecclMoeConfig_t config = MOECCL_MOE_CONFIG_INITIALIZER;
  config.tokens = kTokens;
  config.embedding = kEmbedding;
  config.hidden = kHidden;
  config.experts = kExperts;
  config.topK = 1;
  config.capacityFactor = 2;
  config.training = 1;
  return config;
}

static int checkLayer(moecclGrid_t grid, moecclProfile_t profile) {
  const float gate[kEmbedding * kExperts] = {1, 0, 0, 1};
  const float w1[kExperts * kEmbedding * kHidden] = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1};
  const float w2[kExperts * kHidden * kEmbedding] = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1};
  const float input[kTokens * kEmbedding] = {1, 0, 1, 0, 1, 0, 0, 1};
  float output[kTokens * kEmbedding] = {0}, gradient[kTokens * kEmbedding] = {0};
  float w1Gradient[kExperts * kEmbedding * kHidden] = {0};
  moecclMoeConfig_t config = layerConfig();
  moecclMoeWeights_t weights = MOECCL_MOE_WEIGHTS_INITIALIZER;
  moecclMoeGradients_t gradients = MOECCL_MOE_GRADIENTS_INITIALIZER;
  moecclLayerSample_t sample = MOECCL_LAYER_SAMPLE_INITIALIZER;
  moecclMoeLayer_t layer = NULL;
  GUARDED(moecclMoeShapes_t, shapes, MOECCL_MOE_SHAPES_INITIALIZER);
  GUARDED(moecclMoeStats_t, stats, MOECCL_MOE_STATS_INITIALIZER);

  CHECK_UNKNOWN(config, moecclMoeLayerCreate(grid, &config, &layer));
  config.schedule = moecclScheduleS1;
  CHECK(moecclMoeLayerCreate(grid, &config, &layer) == moecclSuccess);
  CHECK(moecclMoeLayerGetShapes(layer, &shapes.it) == moecclSuccess);
  CHECK_GUARD(shapes);
  CHECK(shapes.it.firstExpert == 0 && shapes.it.localExperts == kExperts);
  CHECK(shapes.it.firstHidden == 0 && shapes.it.localHidden == kHidden);
  CHECK(shapes.it.capacity == kTokens && shapes.it.capacityGroups == 1);
  CHECK(shapes.it.schedule == moecclScheduleS1 && shapes.it.chunks == 1);

  weights.gate = gate;
  weights.w1 = w1;
  weights.w2 = w2;
  gradients.w1 = w1Gradient;
  CHECK_UNKNOWN(weights, moecclMoeLayerSetWeights(layer, &weights));
  CHECK_UNKNOWN(gradients, moecclMoeLayerSetGradients(layer, &gradients));
  CHECK(moecclMoeLayerSetWeights(layer, &weights) == moecclSuccess);
  CHECK(moecclMoeLayerSetGradients(layer, &gradients) == moecclSuccess);
  CHECK(moecclMoeForward(layer, input, output, NULL) == moecclSuccess);
  CHECK(moecclMoeBackward(layer, output, 0, gradient, NULL) == moecclSuccess);
  CHECK(output[0] > 0 && w1Gradient[0] > 0);
  CHECK(moecclMoeGetStats(layer, &stats.it) == moecclSuccess);
  CHECK_GUARD(stats);
  CHECK(stats.it.assigned[0] == 3 && stats.it.assigned[1] == 1 && stats.it.kept[0] == 3);
  CHECK(stats.it.droppedChoices == 0 && stats.it.imbalance == 1.5 && stats.it.auxiliaryLoss > 0);

  sample.layer = layer;
  sample.seconds = 1e-3;
  CHECK_UNKNOWN(sample, moecclProfileAddLayer(profile, &sample));
  CHECK(moecclProfileAddLayer(profile, &sample) == moecclSuccess);
  CHECK(moecclMoeLayerDestroy(layer) == moecclSuccess);
  return 0;
}

static int checkRoute(moecclGrid_t grid) {
  const float input[kTokens * kEmbedding] = {1, 2, 3, 4, 5, 6, 7, 8};
  const int32_t experts[kTokens] = {1, 0, 1, 0};
  const float ones[kTokens] = {1, 1, 1, 1};
  float rows[kTokens * kEmbedding] = {0}, output[kTokens * kEmbedding] = {0};
  moecclRouteConfig_t config = MOECCL_ROUTE_CONFIG_INITIALIZER;
  moecclRouting_t routing = MOECCL_ROUTING_INITIALIZER;
  moecclRoute_t route = NULL;
  moecclRoutePass_t pass = NULL;
  int i;
  GUARDED(moecclRouteInfo_t, info, MOECCL_ROUTE_INFO_INITIALIZER);
  GUARDED(moecclRows_t, come, MOECCL_ROWS_INITIALIZER);
  config.experts = kExperts;
  config.topK = 1;
  config.hidden = kEmbedding;
  config.datatype = config.tokenDatatype = moecclFloat32;
  config.maxTokens = kTokens;
  CHECK_UNKNOWN(config, moecclRouteCreate(grid, &config, &route));
  CHECK(moecclRouteCreate(grid, &config, &route) == moecclSuccess);
  CHECK(moecclRouteGetInfo(route, &info.it) == moecclSuccess);
  CHECK_GUARD(info);
  CHECK(info.it.localExperts == kExperts && info.it.tokenBytes == kEmbedding * sizeof(float));
  routing.tokens = kTokens;
  routing.experts = experts;
  routing.weights = ones;
  CHECK_UNKNOWN(routing, moecclRouteBegin(route, &routing, NULL, &pass));
  CHECK(moecclRouteBegin(route, &routing, NULL, &pass) == moecclSuccess);
  CHECK(moecclPassGetRows(pass, &come.it) == moecclSuccess);
  CHECK_GUARD(come);
  CHECK(come.it.rows == kTokens && come.it.begins[1] == 2 && come.it.counts[1] == 2);
  CHECK(moecclPassDispatch(pass, input, rows, NULL) == moecclSuccess);
  CHECK(rows[0] == 3 && rows[2] == 7 && rows[4] == 1 && rows[6] == 5);
  CHECK(moecclPassCombine(pass, rows, output, NULL) == moecclSuccess);
  CHECK(moecclPassEnd(pass) == moecclSuccess);
  for (i = 0; i < kTokens * kEmbedding; ++i) CHECK(output[i] == input[i]);
  CHECK(moecclRouteDestroy(route) == moecclSuccess);
  return 0;
}

static int checkSchedule(moecclGrid_t grid) {
  const float input[kTokens * kEmbedding] = {1, 2, 3, 4, 5, 6, 7, 8};
  const int32_t experts[kTokens] = {1, 0, 1, -1};
  const float ones[kTokens] = {1, 1, 1, 1};
  float rows[kExperts * kTokens * kEmbedding] = {0}, gradients[kExperts * kTokens * kEmbedding];
  float output[kTokens * kEmbedding] = {0}, gradient[kTokens * kEmbedding] = {0};
  float weightGradients[kTokens] = {0};
  char text[4096];
  size_t bytes = sizeof text;
  moecclRouteConfig_t config = MOECCL_ROUTE_CONFIG_INITIALIZER;
  moecclRouting_t routing = MOECCL_ROUTING_INITIALIZER;
  moecclRoute_t route = NULL;
  moecclRoutePass_t pass = NULL;
  int i;
  GUARDED(moecclRows_t, come, MOECCL_ROWS_INITIALIZER);
  config.experts = kExperts;
  config.topK = 1;
  config.hidden = kEmbedding;
  config.datatype = moecclFloat32;
  config.capacityFactor = kExperts;
  config.schedule = "S1";
  CHECK(moecclRouteCreate(grid, &config, &route) == moecclSuccess);
  routing.tokens = kTokens;
  routing.experts = experts;
  routing.weights = ones;
  CHECK(moecclRouteBegin(route, &routing, NULL, &pass) == moecclSuccess);
  CHECK(moecclPassGetRows(pass, &come.it) == moecclSuccess);
  CHECK_GUARD(come);
  CHECK(come.it.rows == kExperts * kTokens && come.it.begins[1] == kTokens);
  CHECK(come.it.counts[0] == kTokens && come.it.counts[1] == kTokens && come.it.dropped == 0);
  CHECK(strcmp(come.it.algorithm, "S1") == 0);
  CHECK(moecclPassDispatch(pass, input, rows, NULL) == moecclSuccess);
  for (i = 0; i < kExperts * kTokens * kEmbedding; ++i) rows[i] *= 2;
  CHECK(moecclPassCombine(pass, rows, output, NULL) == moecclSuccess);
  for (i = 0; i < kTokens * kEmbedding; ++i)
    CHECK(output[i] == (i < 3 * kEmbedding ? 2 * input[i] : 0));
  CHECK(moecclPassCombineBackward(pass, output, rows, gradients, weightGradients, NULL) ==
        moecclSuccess);
  CHECK(weightGradients[0] == 20 && weightGradients[3] == 0);
  CHECK(moecclPassDispatchBackward(pass, gradients, NULL, gradient, NULL, NULL) == moecclSuccess);
  for (i = 0; i < kTokens * kEmbedding; ++i) CHECK(gradient[i] == output[i]);
  CHECK(moecclPassEnd(pass) == moecclSuccess);
  CHECK(moecclRouteExplain(route, text, &bytes) == moecclSuccess && strstr(text, "S1") != NULL);
  bytes = sizeof text;
  CHECK(moecclRouteSave(route, text, &bytes) == moecclSuccess && bytes <= sizeof text);
  CHECK(moecclRouteRestore(route, text) == moecclSuccess);
  CHECK(moecclRouteDestroy(route) == moecclSuccess);
  return 0;
}

static int checkSamples(moecclComm_t comm, moecclProfile_t profile) {
  moecclCollectiveSample_t sample = MOECCL_COLLECTIVE_SAMPLE_INITIALIZER;
  sample.collective = "alltoall";
  sample.algorithm = "linear";
  sample.comm = comm;
  for (sample.bytes = 64; sample.bytes <= 4096; sample.bytes *= 4) {
    sample.seconds = 1e-6 * (double)sample.bytes;
    CHECK(moecclProfileAddCollective(profile, &sample) == moecclSuccess);
  }
  CHECK_UNKNOWN(sample, moecclProfileAddCollective(profile, &sample));
  CHECK(moecclProfileFit(profile) == moecclSuccess);
  return 0;
}

static int checkSchedules(const moecclQuery_t* query) {
  moecclChoices_t choices = NULL;
  int count = 0, i;
  GUARDED(moecclChoice_t, choice, MOECCL_CHOICE_INITIALIZER);
  GUARDED(moecclChoice_t, exchange, MOECCL_CHOICE_INITIALIZER);
  CHECK(moecclSelect(query, &choices, &count) == moecclSuccess && count > 1);
  CHECK(moecclChoicesGet(choices, 0, -1, &choice.it) == moecclSuccess);
  CHECK_GUARD(choice);
  CHECK(choice.it.schedule != moecclScheduleAuto && choice.it.chunks == 1);
  CHECK(choice.it.communication > 0 && choice.it.seconds > choice.it.communication);
  CHECK(choice.it.bytesBetween > 0 && strcmp(choice.it.source, "links") == 0 &&
        choice.it.nExchanges > 1);
  for (i = 0; i < choice.it.nExchanges; ++i) {
    CHECK(moecclChoicesGet(choices, 0, i, &exchange.it) == moecclSuccess);
    CHECK_GUARD(exchange);
    CHECK(exchange.it.pass == moecclPassForward && exchange.it.group < moecclNumGroups);
    CHECK(exchange.it.phase[0] != '\0' && exchange.it.collective[0] != '\0');
    CHECK(exchange.it.name[0] != '\0' && exchange.it.bytes > 0 && exchange.it.calls == 1);
    CHECK(exchange.it.seconds > 0 && exchange.it.digest != 0);
    CHECK(strcmp(exchange.it.source, "links") == 0);
  }
  CHECK(moecclChoicesDestroy(choices) == moecclSuccess);
  return 0;
}

static int checkQuestions(void) {
  const int ranksPerNode[2] = {2, 2};
  moecclMoeConfig_t layer = layerConfig();
  moecclCluster_t cluster = MOECCL_CLUSTER_INITIALIZER;
  moecclQuery_t query = MOECCL_QUERY_INITIALIZER;
  moecclChoices_t none = NULL;
  moecclChoices_t algorithms = NULL;
  int count = 0;
  GUARDED(moecclChoice_t, algorithm, MOECCL_CHOICE_INITIALIZER);
  cluster.nNodes = 2;
  cluster.ranksPerNode = ranksPerNode;
  cluster.shape.nMp = 2;
  cluster.shape.nEp = 2;
  cluster.shape.nEsp = 2;
  layer.hidden = 2 * kHidden;
  query.cluster = &cluster;
  query.layer = &layer;
  CHECK_UNKNOWN(query, moecclSelect(&query, &none, NULL));
  CHECK_UNKNOWN(cluster, moecclSelect(&query, &none, NULL));
  CHECK_UNKNOWN(layer, moecclSelect(&query, &none, NULL));
  (void)none;
  if (checkSchedules(&query) != 0) return 1;

  query.layer = NULL;
  query.collective = "alltoall";
  query.bytes = 4096;
  CHECK(moecclSelect(&query, &algorithms, &count) == moecclSuccess && count > 1);
  CHECK(moecclChoicesGet(algorithms, count - 1, -1, &algorithm.it) == moecclSuccess);
  CHECK_GUARD(algorithm);
  CHECK(algorithm.it.name[0] != '\0' && algorithm.it.seconds > 0);
  CHECK(algorithm.it.digest != 0 && algorithm.it.beta > 0);
  CHECK(strcmp(algorithm.it.source, "links") == 0);
  CHECK(moecclChoicesDestroy(algorithms) == moecclSuccess);
  return 0;
}

int main(void) {
  moecclUniqueId id;
  moecclConfig_t config = MOECCL_CONFIG_INITIALIZER;
  const moecclGridShape_t alone = {1, 1, 1, moecclOrderEspEp};
  moecclComm_t comm = NULL;
  moecclGrid_t grid = NULL;
  moecclProfile_t profile = NULL;
  config.timeoutMs = 60000;
  config.algorithms = "alltoall=linear";
  config.nodeId = "here";
  CHECK(moecclGetUniqueId(&id) == moecclSuccess);
  CHECK_UNKNOWN(config, moecclCommInitRankConfig(&comm, 1, id, 0, &config));
  CHECK(moecclCommInitRankConfig(&comm, 1, id, 0, &config) == moecclSuccess);
  CHECK(moecclGridCreate(comm, alone, &grid) == moecclSuccess);
  CHECK(moecclProfileCreate(comm, &profile) == moecclSuccess);
  if (checkLayer(grid, profile) != 0) return 1;
  if (checkRoute(grid) != 0) return 1;
  if (checkSchedule(grid) != 0) return 1;
  if (checkSamples(comm, profile) != 0) return 1;
  if (checkQuestions() != 0) return 1;
  CHECK(moecclProfileDestroy(profile) == moecclSuccess);
  CHECK(moecclGridDestroy(grid) == moecclSuccess);
  CHECK(moecclCommDestroy(comm) == moecclSuccess);
  return 0;
}
