/* How the examples and the perf tools join a communicator: by environment variables. The first
 * launcher in this table whose two variables are set counts.
 *
 *   moeccl-lab run, shell scripts   MOECCL_RANK           MOECCL_NRANKS
 *   torchrun                        RANK                  WORLD_SIZE
 *   Open MPI's mpirun               OMPI_COMM_WORLD_RANK  OMPI_COMM_WORLD_SIZE
 *   MPICH's and Intel's mpirun      PMI_RANK              PMI_SIZE
 *   srun                            SLURM_PROCID          SLURM_NTASKS
 *
 * Rank 0 makes the unique id; the others get it
 *
 *   by a file     MOECCL_ID_FILE is the path of a file that does not exist yet, in a folder that
 *                 every rank sees: rank 0 writes the id there, and removes it once all have joined.
 *                 Ranks are of one user, who alone can read it
 *   over TCP      else, where MASTER_ADDR and MASTER_PORT are set, from rank 0's host: at
 *                 MASTER_PORT, or one above where torchrun keeps that for itself. Whoever connects
 *                 gets the id: for trusted networks
 *   by a file     else, of the job's name in the working folder, where the launcher names its jobs
 *                 (srun, Open MPI)
 *
 * Without any of them the process is a communicator of one rank. A rank without the number of ranks
 * is an error, as an empty variable is none. Who waits for more than two seconds says for whom.
 * Header only, C99 with POSIX; include it before any other header. */
#ifndef MOECCL_EXAMPLES_LAUNCH_H_
#define MOECCL_EXAMPLES_LAUNCH_H_

#ifndef _POSIX_C_SOURCE
#define _POSIX_C_SOURCE 200809L
#endif

#include <limits.h>
#include <moeccl/moeccl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "launch_file.h"
#include "launch_job.h"
#include "launch_tcp.h"

/* 0 with *value, or -1, having said what is wrong. */
static inline int launchNumber(const char* name, int* value) {
  const char* text = launchGet(name);
  char* end = NULL;
  long number = -1;
  if (text != NULL) number = strtol(text, &end, 10);
  if (text == NULL || *end != '\0' || number < 0 || number > INT_MAX) {
    fprintf(stderr, "%s is %s%s%s; it must be a number from 0 on\n", name, text ? "\"" : "not set",
            text ? text : "", text ? "\"" : "");
    return -1;
  }
  *value = (int)number;
  return 0;
}

/* Finds the launcher that has started this process. -1: one has, and does not tell the number of
 * ranks. */
static inline int launchVariables(struct LaunchVariables* found) {
  static const struct LaunchVariables known[] = {
      {"MOECCL_RANK", "MOECCL_NRANKS", NULL},
      {"RANK", "WORLD_SIZE", NULL},
      {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_MCA_ess_base_jobid"},
      {"PMI_RANK", "PMI_SIZE", NULL},
      {"SLURM_PROCID", "SLURM_NTASKS", "SLURM_JOB_ID"},
      {"PMIX_RANK", NULL, NULL}, /* PMIx's server would tell more */
  };
  const size_t count = sizeof known / sizeof known[0];
  size_t i;
  for (i = 0; i < count; ++i) {
    *found = known[i];
    if (found->nRanks != NULL && launchGet(found->rank) != NULL && launchGet(found->nRanks) != NULL)
      return 0;
  }
  for (i = 0; i < count; ++i) {
    *found = known[i];
    /* A batch script of Slurm's is a process of its own. */
    if (strcmp(found->rank, "SLURM_PROCID") == 0 || launchGet(found->rank) == NULL) continue;
    fprintf(stderr,
            "%s is set, and %s%s; MOECCL_RANK and MOECCL_NRANKS name a rank for any launcher\n",
            found->rank,
            found->nRanks == NULL ? "no variable tells the number of ranks" : found->nRanks,
            found->nRanks == NULL ? "" : " is not set");
    return -1;
  }
  for (i = 0; i < 2; ++i) {
    const char* name = i == 0 ? "MOECCL_NRANKS" : "MOECCL_ID_FILE";
    if (launchGet(name) == NULL) continue;
    fprintf(stderr,
            "%s is set, and MOECCL_RANK is not set; MOECCL_RANK, MOECCL_NRANKS and MOECCL_ID_FILE "
            "go together\n",
            name);
    return -1;
  }
  found->rank = NULL;
  return 0;
}

/* How ranks get the id. -1: there is no way. */
static inline int launchPath(struct LaunchJob* job) {
  const char* given = launchGet("MOECCL_ID_FILE");
  const char* name = job->variables.job == NULL ? NULL : launchGet(job->variables.job);
  const char* step = launchGet("SLURM_STEP_ID");
  int length = 0;
  if (given != NULL)
    length = snprintf(job->path, sizeof job->path, "%s", given);
  else if (launchGet("MASTER_ADDR") != NULL && launchGet("MASTER_PORT") != NULL)
    return 0;
  else if (name != NULL)
    length =
        snprintf(job->path, sizeof job->path, "moeccl-id.%s.%s", name, step == NULL ? "0" : step);
  if (length > 0 && length < (int)sizeof job->path) return 0;
  fprintf(stderr, given != NULL ? "MOECCL_ID_FILE is too long a path\n"
                                : "MOECCL_ID_FILE is not set; name a new file that every rank can "
                                  "see, or set MASTER_ADDR and MASTER_PORT\n");
  return -1;
}

/* Which rank this process is, and of how many. -1: the variables contradict each other. */
static inline int launchFind(struct LaunchJob* job) {
  memset(job, 0, sizeof *job);
  job->nRanks = 1;
  job->begin = time(NULL);
  if (launchVariables(&job->variables) != 0) return -1;
  if (job->variables.rank == NULL) return 0;
  if (launchNumber(job->variables.rank, &job->rank) != 0 ||
      launchNumber(job->variables.nRanks, &job->nRanks) != 0)
    return -1;
  if (job->rank >= job->nRanks) {
    fprintf(stderr, "%s is %d; it must be below %s, which is %d\n", job->variables.rank, job->rank,
            job->variables.nRanks, job->nRanks);
    return -1;
  }
  return job->nRanks > 1 ? launchPath(job) : 0;
}

/* Joins the communicator of all ranks of this run. Collective. config NULL: defaults. Whatever is
 * wrong has been said on stderr when the result is not moecclSuccess. */
static inline moecclResult_t launchComm(moecclComm_t* comm, const moecclConfig_t* config) {
  struct LaunchJob job;
  struct LaunchTeller teller;
  moecclUniqueId id;
  moecclResult_t result = moecclSuccess;
  if (launchFind(&job) != 0) return moecclInvalidArgument;
  if (job.rank == 0) {
    result = moecclGetUniqueId(&id);
    if (result == moecclSuccess && job.nRanks > 1 &&
        (job.path[0] != '\0' ? launchPublish(job.path, &id) : launchServe(&job, &id)) != 0)
      return moecclSystemError;
  } else if ((job.path[0] != '\0' ? launchReceive(&job, &id) : launchAsk(&job, &id)) != 0) {
    return moecclSystemError;
  }
  if (result == moecclSuccess) {
    launchTellerBegin(&teller, &job);
    result = moecclCommInitRankConfig(comm, job.nRanks, id, job.rank, config);
    launchTellerEnd(&teller);
  }
  if (result != moecclSuccess)
    fprintf(stderr, "rank %d of %d could not join: %s\n", job.rank, job.nRanks,
            moecclGetLastError(NULL));
  if (job.rank == 0 && job.path[0] != '\0') unlink(job.path);
  return result;
}

#endif /* MOECCL_EXAMPLES_LAUNCH_H_ */
