/* What a user's first program does, in C99: one rank, every kind of call once. Built in the tree
 * against the shared library, and out of it against an installed one. */
#include <moeccl/moeccl.h>
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

static int checkErrors(void) {
  int result, version = -1;
  CHECK(moecclGetVersion(&version) == moecclSuccess);
  CHECK(version == MOECCL_VERSION);
  CHECK(moecclGetVersion(NULL) == moecclInvalidArgument);
  CHECK(strstr(moecclGetLastError(NULL), "version") != NULL);
  for (result = 0; result < moecclNumResults; ++result) {
    const char* text = moecclGetErrorString((moecclResult_t)result);
    CHECK(text != NULL && *text != '\0');
    CHECK(result == 0 || strcmp(text, moecclGetErrorString((moecclResult_t)(result - 1))) != 0);
  }
  CHECK(moecclGetErrorString((moecclResult_t)12345) != NULL);
  return 0;
}

static int checkCollectives(moecclComm_t comm) {
  const float sent[3] = {1, 2, 3};
  float received[3] = {0, 0, 0}, gathered[3] = {0, 0, 0};
  moecclStream_t stream;
  CHECK(moecclAllToAll(sent, received, 3, moecclFloat32, comm, NULL) == moecclSuccess);
  CHECK(memcmp(sent, received, sizeof sent) == 0);
  CHECK(moecclStreamCreate(comm, &stream) == moecclSuccess);
  CHECK(moecclAllGather(sent, gathered, 3, moecclFloat32, comm, stream) == moecclSuccess);
  CHECK(moecclStreamSynchronize(stream) == moecclSuccess);
  CHECK(memcmp(sent, gathered, sizeof sent) == 0);
  CHECK(moecclStreamDestroy(stream) == moecclSuccess);
  return 0;
}

int main(void) {
  moecclUniqueId id;
  moecclComm_t comm = NULL;
  moecclConfig_t config = MOECCL_CONFIG_INITIALIZER;
  int nRanks = 0, rank = -1;
  if (checkErrors() != 0) return 1;
  config.timeoutMs = 60000;
  CHECK(moecclGetUniqueId(&id) == moecclSuccess);
  CHECK(moecclCommInitRankConfig(&comm, 1, id, 0, &config) == moecclSuccess);
  CHECK(moecclCommCount(comm, &nRanks) == moecclSuccess && nRanks == 1);
  CHECK(moecclCommUserRank(comm, &rank) == moecclSuccess && rank == 0);
  if (checkCollectives(comm) != 0) return 1;
  CHECK(moecclCommDestroy(comm) == moecclSuccess);
  return 0;
}
