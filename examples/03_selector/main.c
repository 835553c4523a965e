/* Which schedule is the fastest for a layer, on clusters that are not there: one node of eight
 * ranks, and four of them. Nothing is sent. A profile of moeccl-fit as the argument: by its links
 * instead of typical ones. */
#include <moeccl/model.h>
#include <stdio.h>
#include <stdlib.h>

enum { kRanksPerNode = 8, kMaxNodes = 4 };

static int fail(const char* what) {
  fprintf(stderr, "%s: %s\n", what, moecclGetLastError(NULL));
  return 1;
}

/* Of the forward pass, each with its fastest algorithm. */
static int printExchanges(moecclChoices_t choices, int index, int count) {
  moecclChoice_t exchange = MOECCL_CHOICE_INITIALIZER;
  int i;
  for (i = 0; i < count; ++i) {
    if (moecclChoicesGet(choices, index, i, &exchange) != moecclSuccess) return fail("getting");
    if (exchange.pass == moecclPassForward)
      printf("%s %s: %s", i == 0 ? "" : ",", exchange.phase, exchange.name);
  }
  printf("\n");
  return 0;
}

static int printChoices(const moecclQuery_t* query) {
  moecclChoices_t choices = NULL;
  moecclChoice_t choice = MOECCL_CHOICE_INITIALIZER;
  int i, count = 0, result = 0;
  if (moecclSelect(query, &choices, &count) != moecclSuccess) return fail("selecting");
  for (i = 0; i < count && result == 0; ++i) {
    if (moecclChoicesGet(choices, i, -1, &choice) != moecclSuccess) {
      result = fail("getting");
      break;
    }
    printf("  %-8s %8.3f ms, of these %.3f ms in", choice.name, 1e3 * choice.seconds,
           1e3 * choice.communication);
    result = printExchanges(choices, i, choice.nExchanges);
  }
  moecclChoicesDestroy(choices);
  return result;
}

/* Why: all terms, and all algorithms for them. */
static int printReasons(const moecclQuery_t* query) {
  size_t bytes = 0;
  char* text;
  int result = 0;
  /* Without room this is how much the text takes. */
  if (moecclExplain(query, NULL, NULL, &bytes) != moecclSuccess) return fail("explaining");
  text = malloc(bytes);
  if (moecclExplain(query, NULL, text, &bytes) == moecclSuccess)
    printf("%s", text);
  else
    result = fail("explaining");
  free(text);
  return result;
}

int main(int count, char** arguments) {
  const int ranksPerNode[kMaxNodes] = {kRanksPerNode, kRanksPerNode, kRanksPerNode, kRanksPerNode};
  moecclMoeConfig_t layer = MOECCL_MOE_CONFIG_INITIALIZER;
  moecclCluster_t cluster = MOECCL_CLUSTER_INITIALIZER;
  moecclQuery_t query = MOECCL_QUERY_INITIALIZER;
  int result = 0;
  if (count > 1 && moecclProfileLoad(arguments[1], &cluster.profile) != moecclSuccess)
    return fail("loading the profile");

  layer.tokens = 2048; /* of each MP group */
  layer.embedding = 1024;
  layer.hidden = 4096;
  layer.experts = 32;
  layer.topK = 2;
  layer.capacityFactor = 1.25;
  layer.training = 1;
  cluster.ranksPerNode = ranksPerNode;
  query.cluster = &cluster;
  query.layer = &layer;
  query.pass = moecclPassBoth;

  for (cluster.nNodes = 1; cluster.nNodes <= kMaxNodes && result == 0; cluster.nNodes *= 4) {
    const int ranks = cluster.nNodes * kRanksPerNode;
    cluster.shape.nMp = 4;
    cluster.shape.nEsp = 2;
    cluster.shape.nEp = ranks / cluster.shape.nEsp;
    printf("%d ranks on %d node%s, forward and backward:\n", ranks, cluster.nNodes,
           cluster.nNodes == 1 ? "" : "s");
    result = printChoices(&query);
  }
  cluster.nNodes = 1;
  cluster.shape.nEp = kRanksPerNode / cluster.shape.nEsp;
  printf("\n");
  if (result == 0) result = printReasons(&query);
  moecclProfileDestroy(cluster.profile);
  return result;
}
