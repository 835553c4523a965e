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
 *                 every rank sees: rank 0 writes the id there, and removes it once all have joined
 *   over TCP      else, where MASTER_ADDR and MASTER_PORT are set, from rank 0's host: at
 *                 MASTER_PORT, or one above where torchrun keeps that for itself. Whoever connects
 *                 gets the id: for trusted networks
 *   by a file     else, of the job's name in the working folder, where the launcher names its jobs
 *                 (srun, Open MPI)
 *
 * Without any of them the process is a communicator of one rank. Header only, C99 with POSIX;
 * include it before any other header. */
#ifndef MOECCL_EXAMPLES_LAUNCH_H_
#define MOECCL_EXAMPLES_LAUNCH_H_

#ifndef _POSIX_C_SOURCE
#define _POSIX_C_SOURCE 200809L
#endif

#include <errno.h>
#include <limits.h>
#include <moeccl/moeccl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
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

/* What a rank says to rank 0, which answers with the id. */
#define LAUNCH_GREETING "moeccl id, please"

/* 0 with the port at which rank 0 hands out the id in *port, as text. */
static inline int launchPort(char* port, size_t room) {
  const char* text = getenv("MASTER_PORT");
  const char* agent = getenv("TORCHELASTIC_USE_AGENT_STORE");
  char* end = NULL;
  long number = strtol(text, &end, 10);
  if (*text == '\0' || *end != '\0' || number < 1 || number > 65534) {
    fprintf(stderr, "MASTER_PORT is \"%s\"; it must be a port from 1 to 65534\n", text);
    return -1;
  }
  if (agent != NULL && strcmp(agent, "True") == 0) ++number;
  snprintf(port, room, "%ld", number);
  return 0;
}

/* Sends or receives all of it, within a second. */
static inline int launchTransfer(int fd, int out, char* bytes, size_t size) {
  while (size > 0) {
    struct pollfd ready = {fd, 0, 0};
    ssize_t moved;
    ready.events = out ? POLLOUT : POLLIN;
    if (poll(&ready, 1, 1000) <= 0) return -1;
    moved = out ? send(fd, bytes, size, MSG_NOSIGNAL) : recv(fd, bytes, size, 0);
    if (moved <= 0) return -1;
    bytes += moved;
    size -= (size_t)moved;
  }
  return 0;
}

/* A socket that listens at the port on all of IPv4's addresses, IPv6's too where there are any; -1:
 * none. */
static inline int launchListen(const char* port) {
  const int families[] = {AF_INET6, AF_INET};
  int i, fd = -1;
  for (i = 0; i < 2 && fd < 0; ++i) {
    struct addrinfo hints, *found = NULL;
    const int yes = 1, no = 0;
    memset(&hints, 0, sizeof hints);
    hints.ai_family = families[i];
    hints.ai_socktype = SOCK_STREAM;
    hints.ai_flags = AI_PASSIVE;
    if (getaddrinfo(NULL, port, &hints, &found) != 0) continue;
    fd = socket(found->ai_family, SOCK_STREAM, 0);
    if (fd >= 0) {
      setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
      if (families[i] == AF_INET6) setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &no, sizeof no);
      if (bind(fd, found->ai_addr, found->ai_addrlen) != 0 || listen(fd, 128) != 0) {
        close(fd);
        fd = -1;
      }
    }
    freeaddrinfo(found);
  }
  return fd;
}

/* Rank 0: hands the id to all others. */
static inline int launchServe(int nRanks, const moecclUniqueId* id) {
  const time_t until = time(NULL) + LAUNCH_WAIT_SECONDS;
  char port[16], greeting[sizeof LAUNCH_GREETING];
  moecclUniqueId copy = *id;
  int served = 1, fd;
  if (launchPort(port, sizeof port) != 0) return -1;
  fd = launchListen(port);
  if (fd < 0) {
    fprintf(stderr, "cannot listen at port %s: %s; set MASTER_PORT to one that is free\n", port,
            strerror(errno));
    return -1;
  }
  while (served < nRanks && time(NULL) < until) {
    struct pollfd ready = {fd, POLLIN, 0};
    int peer;
    if (poll(&ready, 1, 1000) <= 0) continue;
    peer = accept(fd, NULL, NULL);
    if (peer < 0) continue;
    if (launchTransfer(peer, 0, greeting, sizeof greeting) == 0 &&
        memcmp(greeting, LAUNCH_GREETING, sizeof greeting) == 0 &&
        launchTransfer(peer, 1, copy.internal, sizeof copy.internal) == 0)
      ++served;
    close(peer);
  }
  close(fd);
  if (served == nRanks) return 0;
  fprintf(stderr, "only %d of %d ranks have asked for the id at port %s in %d seconds\n", served,
          nRanks, port, LAUNCH_WAIT_SECONDS);
  return -1;
}

/* Asks rank 0 for the id. */
static inline int launchAsk(moecclUniqueId* id) {
  const struct timespec pause = {0, 50 * 1000 * 1000};
  const time_t until = time(NULL) + LAUNCH_WAIT_SECONDS;
  const char* host = getenv("MASTER_ADDR");
  char port[16], greeting[] = LAUNCH_GREETING;
  if (launchPort(port, sizeof port) != 0) return -1;
  for (; time(NULL) < until; nanosleep(&pause, NULL)) {
    struct addrinfo hints, *found = NULL, *each;
    memset(&hints, 0, sizeof hints);
    hints.ai_socktype = SOCK_STREAM;
    if (getaddrinfo(host, port, &hints, &found) != 0) continue;
    for (each = found; each != NULL; each = each->ai_next) {
      const int fd = socket(each->ai_family, SOCK_STREAM, 0);
      int got;
      if (fd < 0) continue;
      got = connect(fd, each->ai_addr, each->ai_addrlen) == 0 &&
            launchTransfer(fd, 1, greeting, sizeof greeting) == 0 &&
            launchTransfer(fd, 0, id->internal, sizeof id->internal) == 0;
      close(fd);
      if (got) break;
    }
    freeaddrinfo(found);
    if (each != NULL) return 0;
  }
  fprintf(stderr, "rank 0 has not answered at %s, port %s, in %d seconds: was it started?\n", host,
          port, LAUNCH_WAIT_SECONDS);
  return -1;
}

/* The names of a launcher's variables, and of the one that names a job, where there is one. */
struct LaunchVariables {
  const char *rank, *nRanks, *job;
};

/* Those of the launcher that has started this process; NULL: none has. */
static inline const struct LaunchVariables* launchVariables(void) {
  static const struct LaunchVariables known[] = {
      {"MOECCL_RANK", "MOECCL_NRANKS", NULL},
      {"RANK", "WORLD_SIZE", NULL},
      {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_MCA_ess_base_jobid"},
      {"PMI_RANK", "PMI_SIZE", NULL},
      {"SLURM_PROCID", "SLURM_NTASKS", "SLURM_JOB_ID"},
  };
  size_t i;
  for (i = 0; i < sizeof known / sizeof known[0]; ++i)
    if (getenv(known[i].rank) != NULL && getenv(known[i].nRanks) != NULL) return &known[i];
  return NULL;
}

/* The path of the file by which ranks get the id, at `room` bytes; "": they get it over TCP. -1:
 * there is no way. */
static inline int launchPath(const struct LaunchVariables* launcher, char* path, size_t room) {
  const char* given = getenv("MOECCL_ID_FILE");
  const char* job = launcher->job == NULL ? NULL : getenv(launcher->job);
  const char* step = getenv("SLURM_STEP_ID");
  int length = 0;
  path[0] = '\0';
  if (given != NULL)
    length = snprintf(path, room, "%s", given);
  else if (getenv("MASTER_ADDR") != NULL && getenv("MASTER_PORT") != NULL)
    return 0;
  else if (job != NULL)
    length = snprintf(path, room, "moeccl-id.%s.%s", job, step == NULL ? "0" : step);
  if (length > 0 && length < (int)room) return 0;
  fprintf(stderr, given != NULL ? "MOECCL_ID_FILE is too long a path\n"
                                : "MOECCL_ID_FILE is not set; name a new file that every rank can "
                                  "see, or set MASTER_ADDR and MASTER_PORT\n");
  return -1;
}

/* Joins the communicator of all ranks of this run. Collective. config NULL: defaults. Whatever is
 * wrong has been said on stderr when the result is not moecclSuccess. */
static inline moecclResult_t launchComm(moecclComm_t* comm, const moecclConfig_t* config) {
  const struct LaunchVariables* launcher = launchVariables();
  char path[PATH_MAX] = "";
  int rank = 0, nRanks = 1;
  moecclUniqueId id;
  moecclResult_t result = moecclSuccess;
  if (launcher == NULL && (getenv("MOECCL_RANK") != NULL || getenv("MOECCL_NRANKS") != NULL ||
                           getenv("MOECCL_ID_FILE") != NULL)) {
    fprintf(stderr,
            "MOECCL_RANK, MOECCL_NRANKS and MOECCL_ID_FILE go together, and %s is not set\n",
            getenv("MOECCL_RANK") == NULL ? "MOECCL_RANK" : "MOECCL_NRANKS");
    return moecclInvalidArgument;
  }
  if (launcher != NULL &&
      (launchNumber(launcher->rank, &rank) != 0 || launchNumber(launcher->nRanks, &nRanks) != 0))
    return moecclInvalidArgument;
  if (rank >= nRanks) {
    fprintf(stderr, "%s is %d; it must be below %s, which is %d\n", launcher->rank, rank,
            launcher->nRanks, nRanks);
    return moecclInvalidArgument;
  }
  if (nRanks > 1 && launchPath(launcher, path, sizeof path) != 0) return moecclInvalidArgument;
  if (rank == 0) {
    result = moecclGetUniqueId(&id);
    if (result == moecclSuccess && nRanks > 1 &&
        (path[0] != '\0' ? launchPublish(path, &id) : launchServe(nRanks, &id)) != 0)
      return moecclSystemError;
  } else if ((path[0] != '\0' ? launchReceive(path, &id) : launchAsk(&id)) != 0) {
    return moecclSystemError;
  }
  if (result == moecclSuccess) result = moecclCommInitRankConfig(comm, nRanks, id, rank, config);
  if (result != moecclSuccess)
    fprintf(stderr, "rank %d of %d could not join: %s\n", rank, nRanks, moecclGetLastError(NULL));
  if (rank == 0 && path[0] != '\0') remove(path);
  return result;
}

#endif /* MOECCL_EXAMPLES_LAUNCH_H_ */
