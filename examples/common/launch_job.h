/* What launch.h knows of a job, and how it tells whoever waits what for. */
#ifndef MOECCL_EXAMPLES_LAUNCH_JOB_H_
#define MOECCL_EXAMPLES_LAUNCH_JOB_H_

#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

/* How long ranks wait for the id, or for others to ask for it, and for how long they do so
 * silently. */
#define LAUNCH_WAIT_SECONDS 120
#define LAUNCH_SILENT_SECONDS 2

/* The names of a launcher's variables, and of the one that names a job, where there is one. */
struct LaunchVariables {
  const char *rank, *nRanks, *job;
};

struct LaunchJob {
  struct LaunchVariables variables; /* rank NULL: no launcher has started this process */
  int rank, nRanks;
  char path[PATH_MAX]; /* of the file by which ranks get the id; "": they get it over TCP */
  time_t begin;
  int told; /* what this rank waits for */
};

/* An environment variable; NULL where it is not set, or empty. */
static inline const char* launchGet(const char* name) {
  const char* text = getenv(name);
  return text == NULL || *text == '\0' ? NULL : text;
}

/* Says once, after a while, what this rank waits for, and by which variables it believes so. */
static inline void launchTell(struct LaunchJob* job, const char* what) {
  if (job->told || job->nRanks == 1 || time(NULL) < job->begin + LAUNCH_SILENT_SECONDS) return;
  job->told = 1;
  fprintf(stderr, "rank %d of %d, by %s and %s, waits for %s\n", job->rank, job->nRanks,
          job->variables.rank, job->variables.nRanks, what);
}

/* Does the same while a call blocks. */
struct LaunchTeller {
  struct LaunchJob* job;
  pthread_t thread;
  pthread_mutex_t mutex;
  pthread_cond_t changed;
  int ended;
};

static inline void* launchTellLater(void* argument) {
  struct LaunchTeller* teller = (struct LaunchTeller*)argument;
  struct timespec until;
  clock_gettime(CLOCK_REALTIME, &until);
  until.tv_sec += LAUNCH_SILENT_SECONDS;
  pthread_mutex_lock(&teller->mutex);
  while (!teller->ended && pthread_cond_timedwait(&teller->changed, &teller->mutex, &until) == 0) {
  }
  if (!teller->ended) launchTell(teller->job, "the others to join");
  pthread_mutex_unlock(&teller->mutex);
  return NULL;
}

/* Where no thread can be had the call is silent. */
static inline void launchTellerBegin(struct LaunchTeller* teller, struct LaunchJob* job) {
  teller->job = job;
  teller->ended = 0;
  pthread_mutex_init(&teller->mutex, NULL);
  pthread_cond_init(&teller->changed, NULL);
  if (pthread_create(&teller->thread, NULL, launchTellLater, teller) != 0) teller->ended = 1;
}

static inline void launchTellerEnd(struct LaunchTeller* teller) {
  int begun;
  pthread_mutex_lock(&teller->mutex);
  begun = !teller->ended;
  teller->ended = 1;
  pthread_cond_signal(&teller->changed);
  pthread_mutex_unlock(&teller->mutex);
  if (begun) pthread_join(teller->thread, NULL);
  pthread_cond_destroy(&teller->changed);
  pthread_mutex_destroy(&teller->mutex);
}

#endif /* MOECCL_EXAMPLES_LAUNCH_JOB_H_ */
