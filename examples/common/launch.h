/* How the examples and the perf tools join a communicator: by three environment variables that
 * `moeccl-lab run` sets for each rank, and any other launcher or shell script can.
 *
 *   MOECCL_RANK     this process's rank, 0 to MOECCL_NRANKS - 1
 *   MOECCL_NRANKS   number of ranks
 *   MOECCL_ID_FILE  path of a file that does not exist yet, in a folder that every rank sees: rank 0
 *                   writes the unique id there, and removes it once all have joined
 *
 * With none of them set the process is a communicator of one rank. Header only, C99 with POSIX;
 * include it before any other header. */
#ifndef MOECCL_EXAMPLES_LAUNCH_H_
#define MOECCL_EXAMPLES_LAUNCH_H_

#ifndef _POSIX_C_SOURCE
#define _POSIX_C_SOURCE 200809L
#endif

#include <errno.h>
#include <limits.h>
#include <moeccl/moeccl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* How long ranks wait for rank 0 to write the id. */
#define LAUNCH_WAIT_SECONDS 120

/* 0 with *value, or -1, having said what is wrong. */
static inline int launchNumber(const char* name, int* value) {
  const char* text = getenv(name);
  char* end = NULL;
  long number = -1;
  if (text != NULL) number = strtol(text, &end, 10);
  if (text == NULL || end == text || *end != '\0' || number < 0 || number > INT_MAX) {
    fprintf(stderr, "%s is %s%s%s; it must be a number from 0 on\n", name, text ? "\"" : "not set",
            text ? text : "", text ? "\"" : "");
    return -1;
  }
  *value = (int)number;
  return 0;
}

/* Writes the id so that it appears at `path` whole or not at all, and never in place of another. */
static inline int launchPublish(const char* path, const moecclUniqueId* id) {
  char draft[PATH_MAX];
  FILE* file;
  int written, published = -1;
  if (snprintf(draft, sizeof draft, "%s.%ld", path, (long)getpid()) >= (int)sizeof draft) {
    fprintf(stderr, "MOECCL_ID_FILE is too long a path\n");
    return -1;
  }
  file = fopen(draft, "wb");
  if (file == NULL) {
    fprintf(stderr, "cannot write %s: %s\n", draft, strerror(errno));
    return -1;
  }
  written = fwrite(id, sizeof *id, 1, file) == 1;
  if (fclose(file) != 0 || !written)
    fprintf(stderr, "cannot write %s: %s\n", draft, strerror(errno));
  else if (link(draft, path) == 0)
    published = 0;
  else
    fprintf(stderr, "cannot create MOECCL_ID_FILE %s: %s%s\n", path, strerror(errno),
            errno == EEXIST ? "; each run needs a new one" : "");
  remove(draft);
  return published;
}

/* Waits for rank 0's id. */
static inline int launchReceive(const char* path, moecclUniqueId* id) {
  const struct timespec pause = {0, 10 * 1000 * 1000};
  int tries;
  for (tries = 0; tries < LAUNCH_WAIT_SECONDS * 100; ++tries) {
    FILE* file = fopen(path, "rb");
    if (file != NULL) {
      const int complete = fread(id, sizeof *id, 1, file) == 1;
      fclose(file);
      if (complete) return 0;
      fprintf(stderr, "MOECCL_ID_FILE %s holds no unique id; each run needs a new one\n", path);
      return -1;
    }
    if (errno != ENOENT) {
      fprintf(stderr, "cannot read MOECCL_ID_FILE %s: %s\n", path, strerror(errno));
      return -1;
    }
    nanosleep(&pause, NULL);
  }
  fprintf(stderr, "rank 0 has not written MOECCL_ID_FILE %s in %d seconds: was it started?\n", path,
          LAUNCH_WAIT_SECONDS);
  return -1;
}

/* Joins the communicator of all ranks of this run. Collective. config NULL: defaults. Whatever is
 * wrong has been said on stderr when the result is not moecclSuccess. */
static inline moecclResult_t launchComm(moecclComm_t* comm, const moecclConfig_t* config) {
  const char* path = getenv("MOECCL_ID_FILE");
  int rank = 0, nRanks = 1;
  moecclUniqueId id;
  moecclResult_t result = moecclSuccess;
  if ((getenv("MOECCL_RANK") != NULL || getenv("MOECCL_NRANKS") != NULL || path != NULL) &&
      (launchNumber("MOECCL_RANK", &rank) != 0 || launchNumber("MOECCL_NRANKS", &nRanks) != 0))
    return moecclInvalidArgument;
  if (nRanks > 1 && path == NULL) {
    fprintf(stderr, "MOECCL_ID_FILE is not set; name a new file that every rank can see\n");
    return moecclInvalidArgument;
  }
  if (rank == 0) {
    result = moecclGetUniqueId(&id);
    if (result == moecclSuccess && path != NULL && launchPublish(path, &id) != 0)
      return moecclSystemError;
  } else if (launchReceive(path, &id) != 0) {
    return moecclSystemError;
  }
  if (result == moecclSuccess) result = moecclCommInitRankConfig(comm, nRanks, id, rank, config);
  if (result != moecclSuccess)
    fprintf(stderr, "rank %d of %d could not join: %s\n", rank, nRanks, moecclGetLastError(NULL));
  if (rank == 0 && path != NULL) remove(path);
  return result;
}

#endif /* MOECCL_EXAMPLES_LAUNCH_H_ */
